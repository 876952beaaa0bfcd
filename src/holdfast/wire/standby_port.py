"""The operators' port of a standby control: it says that another one leads, and which.

``GET /livez`` is answered with 200: this process runs. All else gets 503, with ``standby`` and the
leader's name: ask there.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final

import orjson

from holdfast.config.fleet_file import AdminTlsSection

if TYPE_CHECKING:
    import uvicorn

    ConfigMaker = Callable[[Any, AdminTlsSection | None], uvicorn.Config]

_Message = MutableMapping[str, Any]
_ALIVE: Final = "/livez"
_END_S: Final = 2.0


class _StandbyApp:
    """Answers every request alike."""

    def __init__(self, leader: Callable[[], str]) -> None:
        self._leader = leader

    async def __call__(
        self,
        scope: _Message,
        _receive: Callable[[], Awaitable[_Message]],
        send: Callable[[_Message], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            return
        alive = scope["path"] == _ALIVE
        told = {"standby": True, "leader": self._leader() or None}
        headers = [(b"content-type", b"application/json"), (b"retry-after", b"5")]
        status = 200 if alive else 503
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": orjson.dumps(told)})


@contextlib.asynccontextmanager
async def standby_port(
    admin: socket.socket,
    tls: AdminTlsSection | None,
    leader: Callable[[], str],
    configured: "ConfigMaker",
) -> AsyncIterator[None]:
    """Answer at the operators' port while the block runs; the socket stays open behind it."""
    import uvicorn  # noqa: PLC0415 gateways do without

    class Server(uvicorn.Server):
        """Signals are control's own."""

        def capture_signals(self) -> Any:
            """Capture none."""
            return contextlib.nullcontext()

    server = Server(configured(_StandbyApp(leader), tls))
    copy = admin.dup()  # it closes what it was given
    serving = asyncio.ensure_future(server.serve(sockets=[copy]))
    try:
        yield
    finally:
        server.should_exit = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await serving


__all__ = ["standby_port"]
