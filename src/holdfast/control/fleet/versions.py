"""Asks an engine for its version each time a replica becomes ready.

Only then can it have changed: a new version is a new process. An engine that has no such page, or
does not answer it, has an unknown version, which differs from none.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import orjson

from holdfast.config.fleet_file import Deployed
from holdfast.control.fetch import FetchError, fetch
from holdfast.control.fleet.canaries import bearer
from holdfast.engines import dialect

DEADLINE_S: Final = 2.0
AT_ONCE_MAX: Final = 8
WAITING_MAX: Final = 1_000  # a fleet that becomes ready all at once
VERSION_CHARACTERS: Final = 64


class VersionWatch:
    """Asks engines for their versions in the background; calls ``told(replica id, version)``.

    Nothing is reported where an engine does not answer or names no usable version.
    """

    def __init__(self, told: Callable[[str, str], None], environment: Mapping[str, str]) -> None:
        self._told = told
        self._environment = environment
        self._gate = asyncio.Semaphore(AT_ONCE_MAX)
        self._asking: set[asyncio.Task[None]] = set()

    def ask(self, deployed: Deployed) -> None:
        """Start one background question for the version of a replica's engine.

        Does nothing for engines without a version page, or while 1,000 questions are under way.
        """
        if dialect(deployed.engine).version_page is None or len(self._asking) >= WAITING_MAX:
            return
        task = asyncio.create_task(self._ask(deployed))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask(self, deployed: Deployed) -> None:
        page = dialect(deployed.engine).version_page
        assert page is not None, "ask looked"
        path, member = page
        token = bearer(deployed, self._environment)
        try:
            async with self._gate:
                answer = await fetch(
                    deployed.url, path, DEADLINE_S, bearer=token, tls=deployed.context()
                )
        except FetchError:
            return  # unknown, and its canaries say what is the matter with it
        version = read_version(answer.body, member) if answer.status == 200 else ""
        if version:
            self._told(deployed.replica.id, version)

    async def close(self) -> None:
        """Cancel the questions that are under way and wait for their end."""
        tasks = list(self._asking)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def read_version(body: bytes, member: str) -> str:
    """Read a version from a member of a JSON object.

    Empty where the body is no such object or the member is no printable text of at most 64
    characters.
    """
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    found = told.get(member) if isinstance(told, dict) else None
    plain = isinstance(found, str) and found.isprintable() and len(found) <= VERSION_CHARACTERS
    return str(found) if plain else ""


__all__ = ["AT_ONCE_MAX", "DEADLINE_S", "VersionWatch", "read_version"]
