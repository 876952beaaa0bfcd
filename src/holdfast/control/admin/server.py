"""Serves the admin port: uvicorn, with bounded connections, inside control's event loop."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any, cast

import uvicorn

from holdfast.acceptor import Acceptor
from holdfast.control.admin.connections import AdminConnection, AdminConnections
from holdfast.core.intake.descriptors import OwnResource


class AdminServer(uvicorn.Server):
    """uvicorn for the admin port: no signal handlers, bounded connections, one sweep a second.

    It ends when ``stopping`` is done.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        bounds: AdminConnections,
        stopping: "asyncio.Future[Any]",
        on_shortage: Callable[[OwnResource], None],
    ) -> None:
        super().__init__(config)
        self._bounds = bounds
        self._stopping = stopping  # done: the port is to be closed
        self._on_shortage = on_shortage

    def capture_signals(self) -> Any:
        """Return a context manager that does nothing: control handles signals itself.

        Replaces uvicorn's own.
        """
        return contextlib.nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Run the app's startup, then accept connections on these bound sockets.

        Connections and TLS handshakes are limited. Replaces uvicorn's own; ``serve`` calls it.
        """
        await self.lifespan.startup()
        loop, limits = asyncio.get_running_loop(), self._bounds.config
        acceptors = [
            Acceptor(
                listener,
                self._connection,
                loop,
                tls=self.config.ssl,
                handshake_s=limits.handshake_s,
                handshakes_max=limits.handshakes_max,
                backlog=self.config.backlog,
                spare=self._bounds.has_place,
                relieve=self._bounds.make_place,
                on_shortage=self._on_shortage,
            )
            for listener in sockets or ()
        ]
        self.servers = cast("list[Any]", acceptors)  # close and wait_closed are all that is used
        self.started = True

    def _connection(self) -> AdminConnection:
        return AdminConnection(
            self._bounds,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )

    async def main_loop(self) -> None:
        """Each second, close connections that made no progress for too long, until the end.

        Replaces uvicorn's own.
        """
        while not await self.on_tick(0):
            self._bounds.sweep()
            await asyncio.wait({self._stopping}, timeout=1.0)


__all__ = ["AdminServer"]
