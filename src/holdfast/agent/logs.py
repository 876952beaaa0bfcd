"""Follows replicas' log files for known marks and phases; the lines themselves are not sent.

    pattern ─► files ─► new lines ─► mark_of, phase_of ─► numbered things for control
                    └─► time of the last change ─► spoke_at

When a replica last wrote is the time at which its file last changed: the kernel records it to the
second, even when the agent looks late. Lines that were there before the agent started show the
phase and nothing else, since their age is unknown. A file that was renamed by a rotation is
recognised by its inode and not read a second time.
"""

import glob
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast.agent.settings import LogRule, ReplicaRule
from holdfast.core.diagnose.facts import Mark
from holdfast.engines import dialect
from holdfast.engines.log_marks import mark_of
from holdfast.engines.startup_log import phase_of
from holdfast.launchers.log_tail import LogTail

FILES_MAX: Final = 64
SCAN_EVERY_S: Final = 10.0
_READS_MAX: Final = 4  # of a quarter megabyte, at one look at one file
_INODES_KEPT: Final = 1_024
_PLACE: Final = "{replica}"


@dataclass(slots=True)
class Spoken:
    """The last phase that a replica's logs showed, and when they last changed."""

    phase: str = ""
    spoke_at: float | None = None  # seconds since 1970
    path: str = ""


@dataclass(slots=True)
class News:
    """The marks and phases that one read of the logs found."""

    marks: list[tuple[str, Mark, str]] = field(default_factory=list)  # replica, mark, peer
    phases: list[tuple[str, str]] = field(default_factory=list)  # replica, phase


@dataclass(slots=True)
class _File:
    replica: str
    tail: LogTail
    fresh: bool  # it appeared after us: all its lines are new
    size: int = 0  # at the last look


class Logs:
    """Follows the log files that match some patterns."""

    def __init__(
        self,
        rules: Sequence[LogRule],
        replicas: Sequence[ReplicaRule],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules = rules
        self._clock = clock
        self._engines = {rule.id: dialect(rule.engine) for rule in replicas}
        self._files: dict[str, _File] = {}
        self._inodes: dict[tuple[int, int], None] = {}  # of files that were read, oldest first
        self._scanned_at: float | None = None
        self.spoken: dict[str, Spoken] = {rule.id: Spoken() for rule in replicas}
        self.skipped_bytes = 0
        self._lacking: list[str] = []
        self.problem = ""

    def look(self) -> News:
        """Read what was appended to all log files, and return the marks and phases in it."""
        now = self._clock()
        if self._scanned_at is None or now - self._scanned_at >= SCAN_EVERY_S:
            self._scan(first=self._scanned_at is None)
            self._scanned_at = now
        news = News()
        denied: list[str] = []
        for path, file in self._files.items():
            try:
                self._read(path, file, news)
            except OSError as error:
                denied.append(f"{path} cannot be read: {error.strerror or error}")
        self.problem = "; ".join([*self._lacking, *denied][:3])
        self.skipped_bytes = sum(file.tail.skipped_bytes for file in self._files.values())
        return news

    def began(self, replica: str) -> None:
        """Forget a replica's phase: it has a new process."""
        spoken = self.spoken.get(replica)
        if spoken is not None:
            spoken.phase = ""

    def close(self) -> None:
        """Close all log files."""
        for file in self._files.values():
            file.tail.close()
        self._files.clear()

    # --- files -----------------------------------------------------------------------------------

    def _scan(self, *, first: bool) -> None:
        wanted: dict[str, str] = {}
        problems: list[str] = []
        for rule in self._rules:
            paths = sorted(glob.glob(rule.pattern.replace(_PLACE, "*")))  # noqa: PTH207 absolute
            if not paths:
                problems.append(f"no file is {rule.pattern}")
            for path in paths:
                owner = self._owner(rule, path)
                if owner:
                    wanted.setdefault(path, owner)
                else:
                    problems.append(f"nobody knows whose log {path} is; use --log ID={path}")
        newest = sorted(wanted, key=_changed_at, reverse=True)
        if len(newest) > FILES_MAX:
            problems.append(f"{len(newest)} files fit; the newest {FILES_MAX} are read")
        for path in newest[:FILES_MAX]:
            if path not in self._files:
                self._follow(path, wanted[path], fresh=not first)
        for path in [path for path in self._files if path not in newest[:FILES_MAX]]:
            self._files.pop(path).tail.close()
        self._lacking = problems[:3]

    def _follow(self, path: str, replica: str, *, fresh: bool) -> None:
        there = _stat(path)
        if there is None or (there.st_dev, there.st_ino) in self._inodes:
            return  # gone again, or a file that was read under another name
        self._remember(there)
        self._files[path] = _File(replica, LogTail(Path(path)), fresh)

    def _remember(self, there: os.stat_result) -> None:
        self._inodes[there.st_dev, there.st_ino] = None
        while len(self._inodes) > _INODES_KEPT:
            del self._inodes[next(iter(self._inodes))]

    def _owner(self, rule: LogRule, path: str) -> str:
        if rule.replica:
            return rule.replica
        if _PLACE in rule.pattern:
            before, _, after = rule.pattern.partition(_PLACE)
            expression = f"{_any(before)}(?P<id>[^/]+?){_any(after)}"
            told = re.fullmatch(expression, path)
            return told["id"] if told is not None and told["id"] in self._engines else ""
        if len(self._engines) == 1:
            return next(iter(self._engines))
        name = Path(path).name
        held = [one for one in self._engines if re.search(rf"(?<!\w){re.escape(one)}(?!\w)", name)]
        return max(held, key=len, default="")

    # --- lines -----------------------------------------------------------------------------------

    def _read(self, path: str, file: _File, news: News) -> None:
        spoken = self.spoken[file.replica]
        there = _stat(path)
        if there is not None:
            if there.st_size < file.size:  # emptied in place, as some rotations do: begin anew
                file.tail.close()
                file.tail = LogTail(Path(path))
            file.size = there.st_size
            self._remember(there)  # a rotation may have put another file here
            if there.st_size and there.st_mtime > (spoken.spoke_at or 0.0):
                spoken.spoke_at = round(there.st_mtime, 3)
                spoken.path = path
        engine = self._engines[file.replica]
        for _ in range(_READS_MAX):
            lines = file.tail.lines()
            for line in lines:
                phase = phase_of(engine, line)
                if phase is not None and phase.name != spoken.phase:
                    spoken.phase = phase.name
                    news.phases.append((file.replica, phase.name))
                meant = mark_of(engine, line) if file.fresh else None
                if meant is not None:
                    news.marks.append((file.replica, *meant))
            if not lines:
                break
        file.fresh = True  # what comes from now on is new


def _any(pattern: str) -> str:
    """Convert a piece of a shell pattern to a regular expression."""
    words: Mapping[str, str] = {"*": "[^/]*", "?": "[^/]"}
    return "".join(words.get(letter) or re.escape(letter) for letter in pattern)


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 for each file at each look
    except OSError:  # rotated away this moment
        return None


def _changed_at(path: str) -> float:
    there = _stat(path)
    return 0.0 if there is None else there.st_mtime


__all__ = ["FILES_MAX", "SCAN_EVERY_S", "Logs", "News", "Spoken"]
