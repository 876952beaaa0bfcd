"""The interfaces between the HTTP server, the requests and the connections to replicas.

    client ─► server.Exchange ─► App (a driver) ─► upstream.Upstream ─► replica
                    ◄── respond, write ──┘   ▲             │
                                             └── Caller ◄──┘

Everything runs on one event loop; no method here waits.
"""

from typing import Protocol

from holdfast.core.failure import Kind
from holdfast.core.intake.byte_budget import ByteAccount


class Listener(Protocol):
    """Is notified when the client of an exchange leaves, reads too slowly or catches up."""

    def on_client_gone(self) -> None:
        """Stop all work: the client closed its connection before the response was complete."""

    def on_client_slow(self) -> None:
        """Stop producing output: the client's write buffer is full."""

    def on_client_ready(self) -> None:
        """Resume producing output: the client's write buffer has room again."""


class BodySink(Protocol):
    """Takes the body of a request piece by piece, for requests too large to be held."""

    def on_body(self, data: bytes) -> None:
        """Take the next piece; ``on_request`` of the app follows the last one."""


class Exchange(Protocol):
    """One request of a client, and the methods that send its response."""

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
        """Read the rest of the request again."""

    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        """Send a whole response. ``headers``: lines that each end in CRLF, without lengths."""

    def start(self, status: int, headers: bytes) -> None:
        """Send the head of a response of unknown length; ``write`` and ``end`` follow."""

    def write(self, payload: bytes) -> None:
        """Send one piece of the response body, framed as one chunk."""

    def end(self) -> None:
        """Complete the response that ``start`` began."""

    def fail(self, payload: bytes) -> None:
        """Complete the response with a last piece which says that the answer failed."""

    def abort(self) -> None:
        """Close the connection within a response, which the client then sees as broken."""


class App(Protocol):
    """The application behind the HTTP server: gets each request's head, then all of it."""

    def on_head(self, exchange: Exchange) -> None:
        """Inspect a request before its body is read; answer at once, which closes, or return."""

    def on_request(self, exchange: Exchange) -> None:
        """Handle a request whose body is complete."""


class Caller(Protocol):
    """Receives the response of one call: on_head, on_data, then either on_end or on_failure.

    A cancelled call gets neither of the two.
    """

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        """Take the status and the headers (names in lower case) of the response."""

    def on_data(self, data: bytes) -> None:
        """Take a piece of the response body, without transfer framing."""

    def on_end(self) -> None:
        """Note that the response is complete."""

    def on_failure(self, kind: Kind, detail: str) -> None:
        """Note that the response failed; ``detail`` holds no text of the request or the answer."""


class Call(Protocol):
    """One call of a replica under way, for its caller to cancel, pause or resume."""

    def cancel(self) -> None:
        """End the call and its connection without a callback; harmless when the call is over."""

    def pause(self) -> None:
        """Stop reading the response until ``resume``."""

    def resume(self) -> None:
        """Read the response again after ``pause``."""


__all__ = ["App", "BodySink", "Call", "Caller", "Exchange", "Listener"]
