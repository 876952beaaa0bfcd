"""The pipe to the bridge: starts it, sends requests, returns answers, and starts it again.

The bridge is Ray's driver and ends with its cluster; then all open requests fail with
``LaunchError``, and another bridge is started after a while. What control must do with each new
one (adopt what runs) is the ``greet`` of whoever made the link.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from holdfast.core.types import require
from holdfast.launchers.environment import engine_environment
from holdfast.ports import LaunchError, NoRoomError

REQUEST_S: Final = 120.0  # for what takes a second: adoption asks every actor
PLACE_REQUEST_S: Final = 300.0  # above all nodes tried, with a reservation and an actor on the last
_AGAIN_FIRST_S: Final = 1.0
_AGAIN_MAX_S: Final = 30.0
_LINE_BYTES_MAX: Final = 4 << 20
_LAST_WORDS: Final = 2_000  # bytes of the bridge's own log that are looked at

_log = structlog.get_logger("holdfast.launcher.ray")


@dataclass(slots=True, frozen=True)
class RaySettings:
    """Which cluster replicas are launched on, and how long they live without control."""

    address: str = "auto"  # the cluster that this host is a node of
    namespace: str = "holdfast"  # of actors and records: one per fleet
    zone_label: str = "zone"  # the label of nodes that names their zone
    lease_s: float = 300.0  # without control; above a restart of the head or of control's host

    def __post_init__(self) -> None:
        require(bool(self.address), "ray.address", "is empty", "write auto, or HOST:PORT")
        named = bool(self.namespace) and "/" not in self.namespace
        fix = "use a name without slashes"
        require(named, "ray.namespace", f"is {self.namespace!r}", fix)
        fix = "use 30 s to a day"
        require(30 <= self.lease_s <= 86_400, "ray.lease_s", f"is {self.lease_s}", fix)


class BridgeLink:
    """One bridge at a time, started again whenever it ends."""

    def __init__(
        self,
        settings: RaySettings,
        directory: Path,
        *,
        hear: Callable[[Mapping[str, Any]], None],
        greet: Callable[[], Awaitable[None]],
        lost: Callable[[], None],
        environment: Mapping[str, str],
    ) -> None:
        self._settings = settings
        self._log_path = directory / "bridge.log"
        self._hear = hear
        self._greet = greet
        self._lost = lost
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._running: asyncio.Task[None] | None = None
        self.why_down = "it is being started"

    def start(self) -> None:
        """Begin to keep a bridge running; no effect if that began before."""
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def ask(self, do: str, within_s: float = REQUEST_S, **more: Any) -> Any:
        """Ask the bridge for something; ``LaunchError`` where it cannot or does not do it.

        ``NoRoomError`` where there is no bridge now, or no room in the cluster.
        """
        process = self._process
        if process is None or process.stdin is None:
            # Whoever waits for room waits for this, too: nobody's start has failed.
            raise NoRoomError(f"the Ray cluster cannot be used: {self.why_down}")
        self._number += 1
        number = self._number
        answer = self._pending[number] = asyncio.get_running_loop().create_future()
        process.stdin.write(json.dumps({"id": number, "do": do, **more}).encode() + b"\n")
        try:
            async with asyncio.timeout(within_s):
                return await answer
        except TimeoutError:
            told = f"Ray did not answer to '{do}' in {within_s:g} s; see {self._log_path}"
            raise LaunchError(told) from None
        finally:
            self._pending.pop(number, None)

    async def close(self) -> None:
        """End the bridge; replicas run on."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    # --- the process -----------------------------------------------------------------------------

    async def _run(self) -> None:
        wait_s = _AGAIN_FIRST_S
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await self._once()
            except (OSError, ValueError) as error:  # it cannot be started, or talks nonsense
                self.why_down = f"{type(error).__name__}: {str(error)[:160]}"
            lived = asyncio.get_running_loop().time() - began
            wait_s = _AGAIN_FIRST_S if lived > _AGAIN_MAX_S else min(wait_s * 2, _AGAIN_MAX_S)
            _log.warning("the bridge to Ray ended", reason=self.why_down, again_s=wait_s)
            await asyncio.sleep(wait_s)

    async def _once(self) -> None:
        """Run one bridge until it ends."""
        self._log_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._log_path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "holdfast.launchers.ray.bridge", json.dumps(asdict(self._settings))),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=_environment(self._environment),
                limit=_LINE_BYTES_MAX,
                start_new_session=True,  # Ctrl-C is for control
            )
        greeting: asyncio.Task[None] | None = None
        try:
            assert process.stdout is not None, "it was asked for"
            while line := await process.stdout.readline():
                message = json.loads(line)
                if message.get("event") == "ready":
                    self._process = process
                    greeting = asyncio.create_task(self._welcome())
                else:
                    self._take(message)
        finally:
            self._process = None
            if greeting is not None:
                greeting.cancel()
            await self._end(process)
            self.why_down = self._last_words()
            for answer in self._pending.values():
                if not answer.done():
                    answer.set_exception(LaunchError(f"the bridge to Ray ended: {self.why_down}"))
            self._lost()

    async def _welcome(self) -> None:
        try:
            await self._greet()
        except LaunchError as error:
            _log.error("the Ray cluster cannot be read", reason=str(error))

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is not None:
            process.stdin.close()  # it ends by itself, and leaves replicas running
        try:
            async with asyncio.timeout(5.0):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    def _take(self, message: Mapping[str, Any]) -> None:
        if "event" in message:
            self._hear(message)
            return
        answer = self._pending.get(message["id"])
        if answer is None or answer.done():
            return
        if "ok" in message:
            answer.set_result(message["ok"])
        else:
            kind = LaunchError if message["room"] else NoRoomError
            answer.set_exception(kind(message["error"]))

    def _last_words(self) -> str:
        try:
            text = self._log_path.read_bytes()[-_LAST_WORDS:].decode("utf-8", "replace")
        except OSError:
            return "it left no log"
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if any("No module named 'ray'" in line for line in lines):
            return "Ray is not installed here; install holdfast[ray]"
        return lines[-1][:200] if lines else "it ended without a word"


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """What Ray's driver gets of control's variables: what engines get, and Ray's own settings."""
    settings = {name: value for name, value in own.items() if name.startswith("RAY_")}
    return {**engine_environment(own, ()), **settings}


__all__ = ["PLACE_REQUEST_S", "REQUEST_S", "BridgeLink", "RaySettings"]
