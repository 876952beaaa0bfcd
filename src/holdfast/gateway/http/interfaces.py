"""The interfaces between the HTTP server, the requests and the connections to replicas.

    client ─► server.Exchange ─► App (a driver) ─► upstream.Upstream ─► replica
                    ◄── respond, write ──┘   ▲             │
                                             └── Caller ◄──┘

Everything runs on one event loop; no method here waits.
"""

from typing import Protocol

from holdfast.core.failure import Kind
from holdfast.core.intake.byte_budget import ByteAccount, HeldBody


class Listener(Protocol):
    """Is told when the client of an exchange leaves, reads too slowly, or reads again."""

    def on_client_gone(self) -> None:
        """Stop all work: the client closed its connection before the response was complete.

        Called at most once; nothing written to the exchange afterwards reaches anybody.
        """

    def on_client_slow(self) -> None:
        """Stop producing output until ``on_client_ready``: the client's write buffer is full."""

    def on_client_ready(self) -> None:
        """Resume producing output after ``on_client_slow``: the write buffer has room again."""


class BodySink(Protocol):
    """Takes a request's body piece by piece as it comes, for bodies too large to be held."""

    def on_body(self, data: bytes) -> None:
        """Take the next piece, which may be empty.

        The last one comes in ``body``, with ``on_request``.
        """


class Exchange(Protocol):
    """One request of a client, and the methods that send its one response.

    Either ``respond``, or ``start``, any number of ``write``, and ``end``. Calls after the client
    left do nothing.
    """

    method: bytes  # as sent: b"POST"
    path: bytes  # without the query, as sent and checked: visible ASCII, begins with /
    query: bytes
    headers: dict[bytes, bytes]  # names in lower case; repeated ones joined by ", "
    body: bytes  # whole, when on_request is called
    body_max: int  # on_head may lower it
    listener: Listener | None  # set by whoever answers later than at once
    account: ByteAccount | None  # set by on_head: where the request and its bytes are counted
    started: bool  # a response head was written
    sink: "BodySink | None"  # set by on_head: takes the body as it comes, in place of ``body``

    def pause_body(self) -> None:
        """Stop reading the rest of the request from the client until ``resume_body``."""

    def resume_body(self) -> None:
        """Read the rest of the request from the client again, after ``pause_body``."""

    def pass_body_on(self) -> HeldBody:
        """Return what counts this request and its body: it is counted until the caller ends it.

        For a body that is held for longer than the exchange lasts. To be called once.
        """

    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        """Send a whole response and end the exchange.

        ``headers``: lines that each end in CRLF, without content-length, which is added.
        """

    def start(self, status: int, headers: bytes) -> None:
        """Send the head of a response of unknown length; ``write`` and ``end`` must follow."""

    def write(self, payload: bytes) -> None:
        """Send one piece of the body of a response that ``start`` began; framed as one chunk."""

    def end(self) -> None:
        """Complete the response that ``start`` began; the exchange is then over."""

    def fail(self, payload: bytes) -> None:
        """Write a last piece, which says that the answer failed, and complete the response."""

    def abort(self) -> None:
        """Close the connection within a response, which the client then sees as broken off."""


class App(Protocol):
    """The application behind the HTTP server: gets each request's head, then the whole request."""

    def on_head(self, exchange: Exchange) -> None:
        """Inspect a request before its body is read: set listener, account or sink, or answer it.

        An answer given before the body is complete closes the connection.
        """

    def on_request(self, exchange: Exchange) -> None:
        """Handle a request whose body is complete; the response may be sent at once or later."""


class Caller(Protocol):
    """Receives the response of one call: ``on_head``, ``on_data`` any number of times, ``on_end``.

    ``on_failure`` may come at any point instead, as the last call. A cancelled call gets nothing
    more.
    """

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        """Take the final status, error statuses too, and the headers with names in lower case."""

    def on_data(self, data: bytes) -> None:
        """Take a piece of the response body, without transfer framing."""

    def on_end(self) -> None:
        """Note that the response is complete; nothing follows."""

    def on_failure(self, kind: Kind, detail: str) -> None:
        """Note that the call failed before the response was complete; nothing follows.

        ``kind`` classifies the failure; ``detail`` is for logs and holds no text of the request or
        answer.
        """


class Call(Protocol):
    """Handle of one call to a replica under way, for its caller to cancel, pause or resume."""

    def cancel(self) -> None:
        """End the call and its connection; the caller hears nothing more.

        Harmless when it is over.
        """

    def pause(self) -> None:
        """Stop reading the response until ``resume``; bytes read already may still be delivered."""

    def resume(self) -> None:
        """Read the response again after ``pause``."""


__all__ = ["App", "BodySink", "Call", "Caller", "Exchange", "Listener"]
