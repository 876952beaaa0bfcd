"""Serves the joined view: ``GET /view`` once, ``GET /view/stream`` whenever it changes.

    somebody looks ─► once a second at most: what control knows + readings + incidents ─► join
                  ─► bytes, made once ─► everybody who looks

The view is joined only while there are listeners, once a second for all of them, and sent only when
its inputs changed: ages alone are no change, and a client can count seconds itself. A client that
does not read gets no queue: it misses versions, and is dropped when one piece cannot be sent in
time.

A client that keeps the view can ask for changes alone (``?only=changes``): to parse the whole of
500 replicas took a browser longer than to draw what changed. The first event is the whole view, and
so is one that follows a version which this client missed.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import orjson
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from holdfast.control.access.guard import json_answer
from holdfast.core.diagnose.evidence import Incident
from holdfast.core.view.fleet_records import FleetRecords
from holdfast.core.view.layers import Reading
from holdfast.core.view.snapshot import Snapshot
from holdfast.core.view.snapshot_changes import changes
from holdfast.core.view.snapshot_join import join

PERIOD_S: Final = 1.0  # between two pictures
COMMENT_S: Final = 10.0  # between two signs of life to whoever waits for news
SLOW_S: Final = 20.0  # for one piece to go out
LISTENERS_MAX: Final = 32
_OPTIONS: Final = orjson.OPT_NON_STR_KEYS
_NOTHING: Final = Snapshot(0.0, version=-1)  # told to nobody
_HEADERS: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
_STREAM: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)

_log = structlog.get_logger("holdfast.control.view.live_view")


class ViewInputs(Protocol):
    """The inputs of the joined view: control's records, readings of sources, incidents."""

    def records(self) -> FleetRecords:
        """Control's own records of replicas and models, without ages: equal means unchanged."""

    def readings(self) -> list[Reading]:
        """The last reading of each source, failing ones included."""

    def unclosed(self) -> Sequence[Incident]:
        """The incidents that are not closed."""

    def took_s(self) -> float | None:
        """Seconds that the slowest source took for its last reading; None: unknown."""

    def names(self) -> dict[str, str]:
        """The id of each replica, by its URL."""


class _Told:
    """One version of the view, encoded as the events that listeners get."""

    def __init__(self, snapshot: Snapshot, body: bytes, before: Snapshot) -> None:
        self.snapshot = snapshot
        self.version = snapshot.version
        self.since = before.version
        self.whole = b"event: view\nid: %d\ndata: %b\n\n" % (self.version, body)
        self._before: Snapshot | None = before
        self._changes = b""

    def changes(self) -> bytes:
        """The event with what differs from the version before; encoded on first use."""
        if self._before is not None:
            found = orjson.dumps(changes(self._before, self.snapshot), option=_OPTIONS)
            self._changes = b"event: changes\nid: %d\ndata: %b\n\n" % (self.version, found)
            self._before = None
        return self._changes


class LiveView:
    """Joins control's records, readings and incidents into one view, and streams it.

    Built at most once a second for all listeners together.
    """

    def __init__(
        self,
        inputs: ViewInputs,
        *,
        period_s: float = PERIOD_S,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        core: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._inputs = inputs
        self._period_s = period_s
        self._clock, self._wall, self._core = clock, wall, core
        self._built_at: float | None = None
        self._went_in: tuple[Any, ...] = ()
        self._snapshot = Snapshot(0.0)
        self._bytes: bytes | None = None
        self._told = _Told(_NOTHING, b"{}", _NOTHING)
        self._changed = asyncio.Event()
        self._pulse: asyncio.Task[None] | None = None
        self.listeners = self.refused = self.dropped = self.built = self.errors = 0

    # --- pictures --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The joined view; rebuilt now if the last one is a second old.

        Its version grows only if its inputs changed.
        """
        now = self._clock()
        if self._built_at is None or now - self._built_at >= self._period_s:
            self._built_at = now
            self._build()
        return self._snapshot

    def _build(self) -> None:
        inputs = self._inputs
        records, readings, incidents = inputs.records(), inputs.readings(), list(inputs.unclosed())
        seen = tuple((one.id, one.changed_at, one.stage, one.action) for one in incidents)
        went_in = (records, readings, seen)
        version = self._snapshot.version + (went_in != self._went_in)
        self._went_in = went_in
        made = join(
            readings,
            records,
            incidents,
            self._wall(),
            self._core(),
            names=inputs.names(),
            took_s=inputs.took_s(),
        )
        self._snapshot, self._bytes = replace(made, version=version), None
        self.built += 1

    def body(self) -> bytes:
        """The joined view as JSON, encoded once for each build."""
        snapshot = self.snapshot()
        if self._bytes is None:
            self._bytes = orjson.dumps(snapshot, option=_OPTIONS)
        return self._bytes

    # --- news ------------------------------------------------------------------------------------

    async def follow(self, *, only_changes: bool = False) -> AsyncIterator[bytes]:
        """Yield the view as server-sent events to one listener: at once, then at each change.

        With ``only_changes`` an event has only what changed, unless the listener missed a version.
        A comment comes every 10 s without news. Raises ``TooManyError`` at 32 listeners.
        """
        if self.listeners >= LISTENERS_MAX:
            self.refused += 1
            raise TooManyError
        self.listeners += 1
        try:
            self._beat()
            version = _NOTHING.version
            while True:
                told = self._told
                if version != told.version:
                    follows = version == told.since != _NOTHING.version
                    version = told.version
                    yield told.changes() if only_changes and follows else told.whole
                    continue
                try:
                    async with asyncio.timeout(COMMENT_S):
                        await self._changed.wait()
                except TimeoutError:
                    yield b": nothing new\n\n"
        finally:
            self.listeners -= 1

    def _beat(self) -> None:
        if self._pulse is None or self._pulse.done():
            self._look()
            self._pulse = asyncio.create_task(self._keep_looking())

    async def _keep_looking(self) -> None:
        """Rebuild the view once a second, while there are listeners."""
        while self.listeners:
            await asyncio.sleep(self._period_s)
            self._look()

    def _look(self) -> None:
        try:
            body = self.body()
        except Exception:  # noqa: BLE001 one bad picture must not end the row of them
            self.errors += 1
            if self.errors == 1:
                _log.exception("view not joined")
            return
        if self._snapshot.version != self._told.version:
            self._told = _Told(self._snapshot, body, self._told.snapshot)
            self._changed.set()
            self._changed = asyncio.Event()

    async def close(self) -> None:
        """Stop rebuilding the view; listeners get no more changes."""
        if self._pulse is not None:
            self._pulse.cancel()
            await asyncio.gather(self._pulse, return_exceptions=True)

    def metrics(self) -> tuple[dict[str, float], dict[str, float]]:
        """Prometheus counters of views built, failed builds, refused and dropped listeners.

        The gauge is the number of listeners now.
        """
        counters: dict[str, float] = {
            "views_joined_total": self.built,
            "views_failed_total": self.errors,
            "view_listeners_refused_total": self.refused,
            "view_listeners_dropped_total": self.dropped,
        }
        return counters, {"view_listeners": self.listeners}


class TooManyError(Exception):
    """The view has 32 listeners already, as many as are allowed."""

    def __init__(self) -> None:
        super().__init__(f"{LISTENERS_MAX} clients follow the view already; no more can")


# --- over HTTP ------------------------------------------------------------------------------------


def view_routes(view: Callable[[], LiveView]) -> list[Route]:
    """The routes ``GET /view`` (JSON) and ``GET /view/stream`` (events).

    ``view`` is called for each request; 503 if there are too many listeners.
    """

    async def once(_: Request) -> Response:
        body = view().body()
        return Response(body + b"\n", media_type="application/json", headers=_HEADERS)

    async def stream(request: Request) -> Response:
        only = request.query_params.get("only")
        if only not in (None, "changes"):
            told = f"only: is {only!r}; leave it out, or say changes"
            return json_answer({"error": told}, 400)
        found = view()
        events = found.follow(only_changes=only is not None)
        try:
            first = await anext(events)
        except TooManyError as error:
            return json_answer({"error": str(error)}, 503)
        return _Events(found, first, events)

    return [Route("/view", once), Route("/view/stream", stream)]


class _Events(Response):
    """A response that streams events until the client disconnects or stops reading."""

    def __init__(self, view: LiveView, first: bytes, events: AsyncIterator[bytes]) -> None:
        super().__init__()
        self._view = view
        self._first = first
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream the events."""
        del scope
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            await self._events.aclose()  # type: ignore[attr-defined]

    async def _send(self, send: Send) -> None:
        start: Message = {"type": "http.response.start", "status": 200, "headers": list(_STREAM)}
        try:
            await _in_time(send, start)
            await _in_time(send, _piece(self._first))
            async for event in self._events:
                await _in_time(send, _piece(event))
        except TimeoutError:
            self._view.dropped += 1


async def _in_time(send: Send, message: Message) -> None:
    async with asyncio.timeout(SLOW_S):
        await send(message)


def _piece(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


__all__ = ["LISTENERS_MAX", "PERIOD_S", "LiveView", "TooManyError", "view_routes"]
