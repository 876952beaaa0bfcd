"""Keeps one kind of object equal to what an API server has: a list, and then a watch.

    list (pages) ─► rows ◄─ watch: ADDED, MODIFIED, DELETED; bookmarks move the version on
      ▲                       │
      └───── 410: too old ◄───┴─ ended, cut, quiet ─► again from the last version, later each time

Bookmarks come from the server's watch cache. Events are not in it: a watch of them may be silent
for as long as nothing happens, and after that its version may be too old, which a list mends.

Rows are never emptied after a failure: readers see the last ones, their age, and what failed.
A list replaces all rows at once and only when its last page is there.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final, Generic, TypeVar

import orjson
import structlog

from holdfast.core.view.layers import Part
from holdfast.sources.kubernetes.api import (
    Json,
    KubernetesApi,
    KubernetesApiError,
    StreamQuietError,
)
from holdfast.sources.kubernetes.config import KubernetesConfig

WATCH_S: Final = 290  # asked of the server: below the five minutes at which balancers cut
TURN_ROWS: Final = 25  # objects that are read at once: some 4 ms
LASTED_S: Final = 5.0  # a watch that held for so long was a good one, though nothing happened

_GONE: Final = 410
_REFUSED: Final = (403, 405)  # a watch may be forbidden where a list is not

_log = structlog.get_logger("holdfast.sources.kubernetes")

RowT = TypeVar("RowT")


class ObjectWatch(Generic[RowT]):
    """Keeps the rows of one kind of object equal to those of the API server."""

    def __init__(
        self,
        name: str,
        path: str,
        read: Callable[[Json], RowT | None],
        api: KubernetesApi,
        config: KubernetesConfig,
        *,
        limit: int,
        changed: Callable[[], None],
        chance: Random,
        params: Mapping[str, str] | None = None,
        forgets: bool = False,
        marked: bool = True,
        feeds: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.rows: dict[str, RowT] = {}
        self.unread = 0  # objects that made no sense, ever
        self.left_out = False  # there are more than are kept
        self._path = path
        self._read = read
        self._api = api
        self._config = config
        self._limit = limit
        self._changed = changed
        self._chance = chance
        self._params = dict(params or {})
        self._forgets = forgets  # the oldest make room; else newcomers are left out
        self._marked = marked  # the server sends bookmarks; else it may say nothing for minutes
        self._feeds = feeds
        self._version = ""  # empty: a list is needed
        self._versions: dict[str, str] = {}  # of each row's object
        self._parsed = 0  # objects that were read, ever
        self._paged = True
        self._tries = 0  # since anything went well
        self._gone = False  # it was too old already, since anything went well
        self._open = False
        self._at: float | None = None
        self._error = ""
        self._failing_since: float | None = None
        self._calls = 0
        self._took_s = 0.0

    @property
    def listed(self) -> bool:
        """Whether a first list was read completely."""
        return self._at is not None

    @property
    def failing(self) -> bool:
        """Whether the last list or watch failed."""
        return bool(self._error)

    @property
    def error(self) -> str:
        """Why the last list or watch failed; empty: it did not."""
        return self._error

    def part(self, now: float) -> Part:
        """How current the rows are, with the number of API calls since the last call of this."""
        calls, self._calls = self._calls, 0
        at = now if self._open else self._at
        told = (self._error, self._failing_since, calls, self._took_s, self._feeds)
        return Part(self.name, at, *told)

    # --- life ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            wait_s = await self._turn()
            if wait_s:
                await asyncio.sleep(wait_s)

    async def _turn(self) -> float:
        """List where needed and watch until that ends; seconds until the next turn."""
        failed, gone = "", False
        try:
            if not self._version:
                await self._list()
            await self._follow()
        except StreamQuietError:
            failed = ""  # nothing happened, or it was cut unseen: a new watch will show which
        except KubernetesApiError as error:
            if error.status == _GONE:
                self._version, gone = "", True
            else:
                failed = str(error)
                if error.status in _REFUSED:
                    self._version = ""  # lists, one by one, are better than rows of long ago
        except Exception as error:  # noqa: BLE001
            # Else a mistake of ours would end this watch, and its rows would grow old unseen.
            _log.exception("watch failed", part=self.name)
            failed = f"a mistake in Holdfast: {type(error).__name__}"
        if failed:
            self._error = failed
            if self._failing_since is None:
                self._failing_since = time.time()
            self._changed()
        self._tries += 1
        again = self._gone  # a server that finds each list too old is not to be asked at once
        self._gone = self._gone or gone
        if not failed and (self._tries == 1 or (gone and not again)):
            return 0.0
        longest = min(
            self._config.retry_max_s, self._config.retry_s * 2.0 ** min(self._tries - 1, 16)
        )
        return longest * self._chance.uniform(0.5, 1.0)

    def _went_well(self) -> None:
        self._tries, self._gone = 0, False

    # --- lists -----------------------------------------------------------------------------------

    async def _list(self) -> None:
        began = time.monotonic()
        found: dict[str, RowT] = {}
        versions: dict[str, str] = {}
        params = dict(self._params)
        if self._paged:
            params["limit"] = str(self._config.page)
        left_out = False
        while True:
            try:
                self._calls += 1
                page = await self._api.get(self._path, params)
            except KubernetesApiError as error:
                if error.status == _GONE and "continue" in params:
                    self._paged = False  # pages that age while they are read: once, in one piece
                raise
            meta = page.get("metadata") if isinstance(page, dict) else None
            if not isinstance(meta, dict) or not isinstance(page.get("items"), list):
                raise KubernetesApiError("its list has no items")
            for item in page["items"]:
                before = self._parsed
                left_out |= not self._keep(found, item, versions)
                if self._parsed > before and self._parsed % TURN_ROWS == 0:
                    await asyncio.sleep(0)  # canaries must not wait for a list
            follows = meta.get("continue")
            if not follows or (left_out and not self._forgets):
                break
            params["continue"] = str(follows)
            await asyncio.sleep(0)  # others have their turn between pages
        self._paged = True
        self._version = str(meta.get("resourceVersion") or "")
        if not self._version:
            raise KubernetesApiError("its list has no resourceVersion")
        self.rows, self.left_out = found, left_out
        self._versions = versions
        self._at = time.time()
        self._took_s = time.monotonic() - began
        self._changed()

    def _keep(self, rows: dict[str, RowT], item: Any, versions: dict[str, str]) -> bool:
        """Take an object in; whether there was room.

        One that is as it was keeps its row: a list after a cut watch has few that are not.
        """
        try:
            key, version = key_of(item), str(item["metadata"].get("resourceVersion") or "")
            row = self.rows.get(key)
            if row is None or not version or self._versions.get(key) != version:
                self._parsed += 1
                row = self._read(item)
        except (KeyError, TypeError, ValueError, AttributeError):
            self.unread += 1
            return True
        if row is None:
            rows.pop(key, None)
            versions.pop(key, None)
            return True
        full = key not in rows and len(rows) >= self._limit
        if full and not self._forgets:
            return False
        if full:
            oldest = next(iter(rows))
            del rows[oldest]
            versions.pop(oldest, None)
        if self._forgets:
            rows.pop(key, None)  # the order is that of the last news
        rows[key], versions[key] = row, version
        return True

    # --- watches ---------------------------------------------------------------------------------

    async def _follow(self) -> None:
        span = {"watch": "true", "timeoutSeconds": str(WATCH_S)}
        quiet_s = None if self._marked else WATCH_S + self._config.timeout_s
        if self._marked:
            span["allowWatchBookmarks"] = "true"
        params = {**self._params, **span, "resourceVersion": self._version}
        self._calls += 1
        began = heard = time.monotonic()
        try:
            async with self._api.lines(self._path, params, quiet_s) as lines:
                self._open = True
                if self._error:
                    self._error, self._failing_since = "", None
                    self._changed()
                async for line in lines:
                    heard = time.monotonic()
                    self._take(line)
                    self._went_well()
        except StreamQuietError:
            self._at = time.time() - (time.monotonic() - heard)
            self._open = False
            self._went_well()
            raise
        finally:
            if self._open:
                self._at = time.time()
            self._open = False
            if time.monotonic() - began >= LASTED_S:
                self._went_well()

    def _take(self, line: bytes) -> None:
        try:
            told = orjson.loads(line)
            kind, thing = told["type"], told["object"]
            if kind == "ERROR":
                code = thing.get("code")
                raise KubernetesApiError(
                    str(thing.get("message") or "the watch failed")[:200], code
                )
            version = str(thing["metadata"]["resourceVersion"])
            key = key_of(thing) if kind != "BOOKMARK" else ""
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise KubernetesApiError("its watch sent what is no event") from error
        self._version = version
        if kind == "BOOKMARK":
            return
        if kind == "DELETED":
            self.rows.pop(key, None)
            self._versions.pop(key, None)
        elif not self._keep(self.rows, thing, self._versions):
            self.left_out = True
        self._changed()


def key_of(thing: Json) -> str:
    """The name of an object, with its namespace where it has one."""
    meta = thing["metadata"]
    space = meta.get("namespace")
    return f"{space}/{meta['name']}" if space else str(meta["name"])


__all__ = ["TURN_ROWS", "ObjectWatch", "key_of"]
