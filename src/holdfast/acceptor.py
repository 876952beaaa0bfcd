"""Accepts connections one by one, with a bound on unfinished TLS handshakes.

Beside ``loop.create_server`` this knows two more things. A connection that cannot be accepted for
want of a descriptor is counted, and accepting rests for a moment: clients wait in the kernel's
queue. (uvloop accepts such a connection on a descriptor that it keeps for this, and closes it; the
client sees a reset, and nobody else sees anything.) And a TLS handshake is a connection from its
first packet on: handshakes are counted, have a time limit, and beyond their bound the oldest that
takes long is given up, or accepting rests.

It costs 50 to 80 µs more for each connection than ``create_server``. So the data port uses it where
one of the two matters: with TLS, whose handshake costs a millisecond, and where the limit on open
files is below what the bounds on connections need.
"""

import asyncio
import resource
import socket
import ssl
import sys
from collections.abc import Callable
from time import monotonic_ns
from typing import Final

from holdfast.core.intake.descriptors import OwnResource, own_shortage
from holdfast.core.types import SECOND

ACCEPTED_AT_ONCE: Final = 32  # before others get their turn of the event loop
REST_S: Final = 0.05  # until the next look, where nothing could be accepted
GIVEN_UP_AFTER: Final = SECOND  # a handshake takes that long on a very busy machine only


def descriptor_limit() -> int:
    """How many files a process started here may open, once it has raised its limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def raise_descriptor_limit(wanted: int) -> int:
    """Raise this process's limit on open files to ``wanted``, or as far as it may; return it.

    Not further than wanted: children inherit it, and some close every descriptor below it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= wanted:
        return wanted if soft == unlimited else soft
    limit = wanted if hard == unlimited else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (ValueError, OSError):  # some systems state a limit that they do not grant
        return soft
    return limit


class Acceptor:
    """Accepts the connections of one listening socket; closes the socket at its end."""

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        loop: asyncio.AbstractEventLoop,
        *,
        tls: ssl.SSLContext | None = None,
        handshake_s: float = 10.0,
        handshakes_max: int = 1_000,
        backlog: int = 1_024,
        spare: Callable[[int], bool] = lambda _: True,
        relieve: Callable[[], bool] = lambda: False,
        on_shortage: Callable[[OwnResource], None] = lambda _: None,
        now_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._listener = listener
        self._protocol = protocol
        self._loop = loop
        self._tls = tls
        self._handshake_s = handshake_s if tls is not None else None
        self._handshakes_max = handshakes_max
        self._spare = spare  # whether there is a place for one beside so many unfinished ones
        self._relieve = relieve  # closes a connection for another one; whether it could
        self._on_shortage = on_shortage
        self._now_ns = now_ns
        self._unfinished: dict[asyncio.Task[None], int] = {}  # since when; the oldest first
        self._resting: asyncio.TimerHandle | None = None
        self._closed = False
        self.given_up = 0  # handshakes, for others
        self.failed = 0  # handshakes that were not completed, or took too long
        listener.setblocking(False)
        listener.listen(backlog)
        loop.add_reader(listener.fileno(), self._accept)

    @property
    def unfinished(self) -> int:
        """How many connections are accepted whose handshake is not complete."""
        return len(self._unfinished)

    def close(self) -> None:
        """Accept what waits, then close the listening socket and give up unfinished handshakes."""
        if self._closed:
            return
        self._rest(ends=True)
        self._closed = True
        while self._take_one():
            pass
        self._listener.close()

    def abort(self) -> None:
        """Give up all unfinished handshakes, after ``close``."""
        for task in list(self._unfinished):
            task.cancel()

    async def wait_closed(self) -> None:
        """Return once no handshake is unfinished."""
        self.abort()
        await asyncio.gather(*self._unfinished, return_exceptions=True)

    # --- one turn ---------------------------------------------------------------------------------

    def _accept(self) -> None:
        for number in range(ACCEPTED_AT_ONCE):
            unfinished = len(self._unfinished)
            if unfinished >= self._handshakes_max or not self._spare(unfinished):
                if number:
                    return  # whether anybody else waits is not known; if so, we are called again
                if not (self._give_up_oldest() or self._relieve()):
                    self._rest()
                    return
            if not self._take_one():
                return

    def _give_up_oldest(self) -> bool:
        """Give up the oldest handshake, if it has taken long; whether it had."""
        if not self._unfinished:
            return False
        oldest, since = next(iter(self._unfinished.items()))
        if self._now_ns() - since < GIVEN_UP_AFTER:
            return False
        self.given_up += 1
        del self._unfinished[oldest]
        oldest.cancel()
        return True

    def _take_one(self) -> bool:
        try:
            peer, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            lacks = own_shortage(error.errno)
            if lacks is None:
                return True  # that client left before it was accepted
            self._on_shortage(lacks)
            if not self._closed:
                self._rest()
            return False
        peer.setblocking(False)
        task = self._loop.create_task(self._connect(peer))
        self._unfinished[task] = self._now_ns()
        task.add_done_callback(self._finished)
        return True

    async def _connect(self, peer: socket.socket) -> None:
        """Make a transport of an accepted socket, with the handshake if there is one."""
        try:
            await self._loop.connect_accepted_socket(
                self._protocol,
                peer,
                ssl=self._tls,
                ssl_handshake_timeout=self._handshake_s,
            )
        except OSError:  # a handshake that failed, or took too long: ssl.SSLError is one
            self.failed += 1
            peer.close()

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._unfinished.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            self._loop.call_exception_handler(
                {"message": "a connection was not taken", "exception": task.exception()}
            )

    def _rest(self, *, ends: bool = False) -> None:
        """Accept nobody for a moment, or never again."""
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        else:
            self._loop.remove_reader(self._listener.fileno())
        if not ends:
            self._resting = self._loop.call_later(REST_S, self._resume)

    def _resume(self) -> None:
        self._resting = None
        self._loop.add_reader(self._listener.fileno(), self._accept)


__all__ = ["Acceptor", "descriptor_limit", "raise_descriptor_limit"]
