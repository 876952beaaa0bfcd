"""The Ray source: reads nodes and Serve applications from the dashboard, again and again.

    every period:  GET /api/v0/nodes, GET /api/serve/applications/ ─► rows ─► Reading
                                                       └─► changed ─► discovery of replicas

A call that fails keeps the rows of its part, with their age and the reason. Reading never waits for
the dashboard, except shortly for the first answer.
"""

import asyncio
import http.client
import json
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from holdfast.core.view.layers import Host, Part, Placed, Reading
from holdfast.core.view.staleness import HOSTS, PLACED
from holdfast.ports import UnreadableError
from holdfast.sources.ray.config import RayConfig
from holdfast.sources.ray.rows import hosts_of, placed_of

FIRST_S: Final = 3.0  # a first reading waits so long, to begin with something
_NODES: Final = "/api/v0/nodes?limit=10000&detail=1"
_SERVE: Final = "/api/serve/applications/"


class RaySource:
    """Reads nodes and Serve applications of one Ray cluster."""

    kind: str = "ray"

    def __init__(self, name: str, config: RayConfig) -> None:
        self.name = name
        self.period_s = config.period_s
        self.version = 0  # of what is known; moves with each change
        self.replica_of: Callable[[str], str] = lambda _: ""  # discovery sets it
        self._config = config
        self._hosts: tuple[Host, ...] = ()
        self._placed: tuple[Placed, ...] = ()
        self._parts = {
            "nodes": Part("nodes", feeds=(HOSTS,)),
            "serve": Part("serve", feeds=(PLACED,)),
        }
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    # --- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read on the running loop; no effect if started or closed before."""
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop reading for good."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(self.period_s)

    async def look(self) -> None:
        """Read both parts once, side by side."""
        nodes, serve = await asyncio.gather(self._get("nodes", _NODES), self._get("serve", _SERVE))
        now, before = time.time(), (self._hosts, self._placed)
        if nodes is not None:
            self._hosts = hosts_of(nodes, self._config.zone_label, now, self._config.dead_s)
        if serve is not None:
            self._placed = placed_of(serve)
        if before != (self._hosts, self._placed) or self.version == 0:
            self.version += 1
        self._news.set()

    async def changed(self, since: int) -> int:
        """Wait until the data is newer than version ``since``; returns the new version."""
        self.start()
        while self.version <= since:
            self._news.clear()
            await self._news.wait()
        return self.version

    # --- reading ---------------------------------------------------------------------------------

    @property
    def known(self) -> bool:
        """Whether Serve's applications were listed at least once."""
        return self._parts["serve"].at is not None

    async def read(self) -> Reading:
        """A reading of all that is known now; waits only for the first answers, and shortly."""
        if self._task is None and not self._closed:
            self.start()
            with suppress(TimeoutError):  # what did not come shows as a part without age
                async with asyncio.timeout(FIRST_S):
                    await self._news.wait()
        made = self.glance()
        placed = tuple(replace(one, replica=self.replica_of(one.id)) for one in made.placed)
        return replace(made, placed=placed, parts=tuple(self._parts.values()))

    def glance(self) -> Reading:
        """The hosts and rows that are known now, without their parts."""
        return Reading(self.name, self.kind, time.time(), hosts=self._hosts, placed=self._placed)

    async def _get(self, part: str, path: str) -> Any | None:
        """One answer of the dashboard; None: there is none, and the part says why."""
        began, before = time.monotonic(), self._parts[part]
        try:
            answer = await asyncio.to_thread(fetch_json, self._config, path)
        except UnreadableError as error:
            since = before.failing_since or time.time()
            self._parts[part] = replace(before, error=str(error), failing_since=since, calls=1)
            return None
        took = time.monotonic() - began
        self._parts[part] = Part(part, time.time(), calls=1, took_s=took, feeds=before.feeds)
        return answer


def fetch_json(config: RayConfig, path: str) -> Any:
    """Get one page of the dashboard as JSON; ``UnreadableError`` says why there is none. Blocks."""
    parts = urlsplit(config.dashboard_url)
    host, port = parts.hostname or "127.0.0.1", parts.port
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(host, port, timeout=config.call_s, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=config.call_s)
    try:
        connection.request("GET", parts.path.rstrip("/") + path, headers=_headers(config))
        answer = connection.getresponse()
        body = answer.read(config.body_bytes_max + 1)
    except (OSError, http.client.HTTPException) as error:
        told = str(error) or type(error).__name__
        raise UnreadableError(f"its dashboard does not answer: {told[:160]}") from error
    finally:
        connection.close()
    if answer.status != 200:
        told = f"its dashboard answers {answer.status} for {path.partition('?')[0]}"
        raise UnreadableError(told, answer.status)
    if len(body) > config.body_bytes_max:
        raise UnreadableError(f"its dashboard sends more than {config.body_bytes_max} bytes")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UnreadableError("its dashboard sends no JSON") from error


def _headers(config: RayConfig) -> dict[str, str]:
    headers = {"Accept": "application/json"}
    if config.token_file:
        try:
            token = Path(config.token_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            told = f"its token_file cannot be read: {error.strerror}"
            raise UnreadableError(told) from error
        headers["Authorization"] = f"Bearer {token}"
    return headers


__all__ = ["RaySource", "fetch_json"]
