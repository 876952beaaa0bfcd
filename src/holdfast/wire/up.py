"""``holdfast up``: runs a fleet with a state directory, and shows how its replicas start.

It is ``serve`` with a state directory, logs in a file instead of on the screen, and a task beside
the supervisor that polls the admin port and shows how the start goes and what changes later. The
task only reads: if the display fails, the fleet runs on.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from holdfast.config.fleet_file import FleetFile, ModelSection
from holdfast.control.access.trust import trusting
from holdfast.control.fetch import FetchError, fetch
from holdfast.ui.terminal.fleet import Row
from holdfast.ui.terminal.startup_screen import StartupScreen, UsageGuide
from holdfast.wire.own_token import read_token
from holdfast.wire.serve import ServedFleet, ServeOptions, serve
from holdfast.wire.state_dir import (
    LOG_FILE,
    default_state_dir,
    make,
)

STARTED_WITHIN_S: Final = 120.0  # then it is told what is missing, and the fleet goes on
LOG_BYTES_MAX: Final = 16 << 20  # one such file, and the one before it
BUILT_IN: Final = "default_fleet.yaml"
_LOOK_S: Final = 0.25  # while it starts
_WATCH_S: Final = 1.0  # afterwards
_ASK_S: Final = 2.0
_NAMES_SHOWN: Final = 6  # of models, in one line


@dataclass(slots=True, frozen=True)
class UpOptions:
    """Options of ``holdfast up``: which fleet to run, and how it is shown."""

    config: Path | None  # None: the built-in fleet
    state_dir: Path | None  # None: the usual one of that file
    token: str | None  # for the admin port, where the file asks for one
    at_terminal: bool  # its end is the fleet's end
    within_s: float = STARTED_WITHIN_S


def up(wish: UpOptions, screen: StartupScreen, command: Sequence[str] = ()) -> None:
    """Run a fleet until a signal; raises before starting anything if it cannot work."""
    state_dir = wish.state_dir or default_state_dir(wish.config, os.environ)
    make(state_dir)
    path = wish.config or _written(state_dir)
    log_path = state_dir / LOG_FILE
    _keep_small(log_path)
    with log_path.open("a", encoding="utf-8") as log:
        host = ServeOptions(
            state_dir=state_dir,
            log=log,
            fetching=screen.fetching,
            beside=lambda served: _Beside(wish, served, screen, log_path).run(),
            tells_end=True,
            hangup_stops=wish.at_terminal,
        )
        try:
            serve(path, takeover=False, say=screen.say, command=command, host=host)
        finally:
            screen.close()
    screen.say("stopped")


def _written(state_dir: Path) -> Path:
    """Write the built-in fleet file into the state directory; returns its path."""
    path = state_dir / "fleet.yaml"
    path.write_text(built_in_text(), encoding="utf-8")
    return path


def built_in_text() -> str:
    """The text of the built-in fleet file, for an ``up`` without a config."""
    return files("holdfast.wire").joinpath(BUILT_IN).read_text(encoding="utf-8")


def _keep_small(log_path: Path) -> None:
    """Copy a log that is full to ``NAME.1`` and empty it; its writers append and go on."""
    try:
        if log_path.stat().st_size <= LOG_BYTES_MAX:
            return
        shutil.copyfile(log_path, log_path.with_name(f"{log_path.name}.1"))
        os.truncate(log_path, 0)
    except FileNotFoundError:
        return  # the first run


# --- beside the supervisor ------------------------------------------------------------------------


class _LockedError(Exception):
    """The admin port requires a token, and none was given."""


class _Beside:
    """Polls the admin port and shows the state of the replicas."""

    def __init__(
        self, wish: UpOptions, served: ServedFleet, screen: StartupScreen, log_path: Path
    ) -> None:
        self._wish = wish
        self._served = served
        self._screen = screen
        self._log_path = log_path
        self._answers = True  # control does, as far as was told
        self._states: dict[str, str] = {}
        tls = served.file.admin.tls
        self._tls = trusting(served.admin, certificate=tls.certificate) if tls else None
        own = read_token(served.state_dir) if served.state_dir is not None else None
        self._token = own or wish.token

    async def run(self) -> None:
        """Show the start of the fleet and then its changes, until cancelled."""
        screen = self._screen
        counts = [f"{one.name} ({_wanted(one, {})})" for one in self._served.file.models]
        shown = ", ".join(counts[:_NAMES_SHOWN]) + (", …" if len(counts) > _NAMES_SHOWN else "")
        screen.say(f"starting replicas: {shown}")
        try:
            rows = await self._start()
            screen.started(self._guide(rows, await self._link()))
            while True:
                await asyncio.sleep(_WATCH_S)
                _keep_small(self._log_path)
                self._compare(await self._status())
        except _LockedError:
            screen.started(self._guide([], ""))
            screen.say("the admin port asks for its token: set HOLDFAST_ADMIN_TOKEN to see more")
        finally:
            screen.close()

    async def _start(self) -> list[Row]:
        """Show replicas until all are ready or the time is over; returns their rows."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wish.within_s
        status: Mapping[str, Any] | None = None
        while loop.time() < deadline:
            status = await self._status() or status
            if status is not None:
                self._screen.starting(_rows(status))
                if _complete(self._served.file, status):
                    return self._noted(status)
            await asyncio.sleep(_LOOK_S)
        within = f"after {self._wish.within_s:g} s"
        if status is None:
            self._screen.say(f"control does not answer {within}; see {self._log_path}")
            return []
        missing = _missing(self._served.file, status)
        self._screen.say(f"{within} {missing}; 'holdfast status' tells why")
        return self._noted(status)

    async def _status(self) -> Mapping[str, Any] | None:
        """The admin port's ``/status``; None while control does not answer."""
        try:
            answer = await fetch(
                self._served.admin, "/status", _ASK_S, bearer=self._token, tls=self._tls
            )
        except FetchError:
            return None
        if answer.status == 401:
            raise _LockedError
        if answer.status != 200:
            return None
        try:
            status = json.loads(answer.body)
        except ValueError:
            return None
        return status if isinstance(status, dict) else None

    async def _link(self) -> str:
        """A link that signs one browser in; none where the output may be kept in a log."""
        if not self._wish.at_terminal:
            return ""
        try:
            answer = await fetch(
                self._served.admin,
                "/ui/link",
                _ASK_S,
                bearer=self._token,
                method="POST",
                tls=self._tls,
            )
            told = json.loads(answer.body)
        except (FetchError, ValueError):
            return ""
        path = told.get("path") if answer.status == 201 else None
        return f"{self._served.admin}{path}  # once, within 10 min" if path else ""

    def _noted(self, status: Mapping[str, Any]) -> list[Row]:
        rows = _rows(status)
        self._states = {row["id"]: str(row.get("state")) for row in rows}
        return rows

    def _compare(self, status: Mapping[str, Any] | None) -> None:
        """Show what changed since the last poll."""
        if (status is not None) != self._answers:
            self._answers = status is not None
            told = "answers again" if self._answers else "does not answer; gateways go on alone"
            self._screen.say(f"control {told}")
        if status is None:
            return
        before = self._states
        rows = self._noted(status)
        for row in rows:
            if before.get(row["id"]) != row.get("state"):
                self._screen.changed(row)
        for gone in before.keys() - self._states.keys():
            self._screen.changed({"id": gone, "state": "gone"})

    def _guide(self, rows: Sequence[Row], sign_in: str) -> UsageGuide:
        file, wish = self._served.file, self._wish
        model = next((one for one in file.models if _chats(one)), file.models[0])
        pids = [row["pid"] for row in rows if row.get("state") == "ready" and row.get("pid")]
        which = ""
        if wish.state_dir is not None:
            which = f"--state-dir {wish.state_dir}"
        elif wish.config is not None:
            which = f"-c {wish.config}"
        return UsageGuide(
            data=self._served.data,
            admin=self._served.admin,
            model=model.name,
            chats=_chats(model),
            needs_key=bool(file.tenants),
            log=str(self._log_path),
            pid=pids[0] if pids else None,
            which=which,
            sign_in=sign_in,
        )


def _rows(status: Mapping[str, Any]) -> list[Row]:
    return [row for row in status.get("replicas") or [] if isinstance(row, dict) and "id" in row]


def _chats(model: ModelSection) -> bool:
    return model.engine != "triton"


def _wanted(model: ModelSection, status: Mapping[str, Any]) -> int:
    """The number of replicas that a model should have, by control's status or the file."""
    said = (status.get("models") or {}).get(model.name)
    if isinstance(said, dict) and isinstance(said.get("wished"), int):
        return int(said["wished"])
    return model.launch.replicas if model.launch is not None else len(model.endpoints)


def _ready(model: ModelSection, status: Mapping[str, Any]) -> int:
    rows = [row for row in _rows(status) if row.get("model") == model.name]
    return sum(row.get("state") == "ready" for row in rows)


def _complete(file: FleetFile, status: Mapping[str, Any]) -> bool:
    served = any(gateway.get("ready") for gateway in status.get("gateways") or [])
    return served and all(_ready(one, status) >= _wanted(one, status) for one in file.models)


def _missing(file: FleetFile, status: Mapping[str, Any]) -> str:
    counts = [(one.name, _ready(one, status), _wanted(one, status)) for one in file.models]
    short = [f"{name}: {ready} of {wanted}" for name, ready, wanted in counts if ready < wanted]
    if not short:
        return "no gateway is ready"
    return f"too few replicas are ready ({', '.join(short[:_NAMES_SHOWN])})"


__all__ = [
    "BUILT_IN",
    "STARTED_WITHIN_S",
    "UpOptions",
    "built_in_text",
    "up",
]
