"""The interfaces between server, request and upstream: who calls whom inside a gateway.

    client ─► server.Exchange ─► App (a driver) ─► upstream.Upstream ─► replica
                    ◄── respond, write ──┘   ▲             │
                                             └── Caller ◄──┘

Everything runs on one event loop; no method here waits.
"""

from typing import Protocol

from holdfast.core.failure import Kind


class Listener(Protocol):
    """Who answers an exchange, and is told how its client fares."""

    def on_client_gone(self) -> None:
        """The client closed or broke its connection before the answer was complete."""

    def on_client_slow(self) -> None:
        """Its buffer is full: stop producing."""

    def on_client_ready(self) -> None:
        """There is room again."""


class Exchange(Protocol):
    """One request of a client and the place where its answer goes."""

    method: bytes  # as sent: b"POST"
    path: bytes  # without the query, as sent and checked: visible ASCII, begins with /
    query: bytes
    headers: dict[bytes, bytes]  # names in lower case; repeated ones joined by ", "
    body: bytes  # whole, when on_request is called
    body_max: int  # on_head may lower it
    listener: Listener | None  # set by whoever answers later than at once
    started: bool  # a response head was written

    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        """Send a whole response. ``headers``: lines that each end in CRLF, without lengths."""

    def start(self, status: int, headers: bytes) -> None:
        """Begin a response of unknown length."""

    def write(self, payload: bytes) -> None:
        """Send one piece of it, framed as one chunk."""

    def end(self) -> None:
        """Complete it."""

    def abort(self) -> None:
        """Break the connection: the response cannot be completed honestly."""


class App(Protocol):
    """What a server serves."""

    def on_head(self, exchange: Exchange) -> None:
        """Headers are here, the body is not: answer now (it is then closed), or let it come."""

    def on_request(self, exchange: Exchange) -> None:
        """The request is complete."""


class Caller(Protocol):
    """Who called a replica. Exactly one of on_end and on_failure comes, unless cancelled."""

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        """Status and headers (names in lower case) of the response."""

    def on_data(self, data: bytes) -> None:
        """A piece of the body, without transfer framing."""

    def on_end(self) -> None:
        """The response is complete."""

    def on_failure(self, kind: Kind, detail: str) -> None:
        """It will not be; ``detail`` holds no text of the request or the answer."""


class Call(Protocol):
    """One call of a replica under way."""

    def cancel(self) -> None:
        """Close it; nothing more is reported. Harmless when it is over."""

    def pause(self) -> None:
        """Stop reading until resumed."""

    def resume(self) -> None:
        """Read on."""


__all__ = ["App", "Call", "Caller", "Exchange", "Listener"]
