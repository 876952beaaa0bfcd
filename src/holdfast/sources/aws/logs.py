"""Reads CloudWatch Logs: when each replica last logged something, and what.

The times that a list of streams gives are up to an hour old, so they are not used: only events
count. A hundred streams are searched at once, newest first, from a little before the last search;
the overlap catches lines that arrive late. A stream that stays silent is asked for its last lines
by itself before its silence is believed, a few streams in each refresh: an account may make only
five searches a second.

What a replica wrote at noon may be readable a minute later. That delay belongs to the pipe and not
to the replica, so it is measured, as the median over a group's streams, and added to the times: a
slow pipe must not look like a dead replica. The delay is bounded, or a single old line that was
written late would excuse any silence.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

import orjson

from holdfast.sources.aws.calls import AwsCaller, batches
from holdfast.sources.aws.config import AwsConfig
from holdfast.sources.aws.errors import CallError, CallFailure

LINES_AT_ONCE: Final = 1_000  # events in one page of a search
TAIL_LINES: Final = 20  # the last ones; the newest need not be one that tells the phase
SPLITS_MAX: Final = 16  # further searches in a refresh, to find the stream that does not exist
LINE_BYTES_MAX: Final = 65_536  # a longer line is no status line
PHASE_CHARS_MAX: Final = 32
_SERVING: Final = {"heartbeat": "serving"}  # whoever still loads says "loading"


@dataclass(slots=True, frozen=True)
class LogStream:
    """The log group and stream that one task logs to."""

    group: str
    name: str
    ended: bool = False  # its task stopped: what it said last will not change


@dataclass(slots=True, frozen=True)
class LastLogLine:
    """The last line of a stream: when it was written, and the status that it reported."""

    at: float  # when it was written
    spoke_at: float = 0.0  # the same, with the delay of the pipe taken out
    delay_s: float = 0.0  # until it could be read
    phase: str = ""
    used_bytes: int | None = None
    read_bytes: int | None = None


@dataclass(slots=True)
class _Followed:
    """What is remembered of a stream."""

    words: LastLogLine | None = None
    searched: bool = False
    tailed_at: float = float("-inf")  # when it was asked by itself
    absent_at: float = float("-inf")  # when it was found not to exist
    final: bool = False


Heard = dict[LogStream, LastLogLine]


class LogFollower:
    """Follows the log streams of tasks and keeps the last line of each."""

    def __init__(self, config: AwsConfig, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock  # seconds since 1970, as events have them
        self._followed: dict[LogStream, _Followed] = {}
        self._searched_at: dict[str, float] = {}  # by group
        self._delay_s: dict[str, float] = {}  # by group
        self._splits = 0

    def read(self, caller: AwsCaller, wanted: Iterable[LogStream]) -> Heard:
        """Search the wanted streams; returns the last line of each that ever had one."""
        now = self._clock()
        self._follow(wanted)
        self._splits = SPLITS_MAX
        groups: dict[str, list[LogStream]] = {}
        for stream in self._followed:
            groups.setdefault(stream.group, []).append(stream)
        for group, streams in groups.items():
            alive = [one for one in streams if not one.ended and self._exists(one, now)]
            self._search_group(caller, group, alive, now)
        for stream in self._unsure(now)[: self._config.log_tails_each]:
            self._tail(caller, stream, now)
        for group, streams in groups.items():
            self._measure(group, streams)
        for forgotten in self._searched_at.keys() - groups.keys():
            del self._searched_at[forgotten]
            self._delay_s.pop(forgotten, None)
        return {
            stream: self._timed(stream, followed.words, now)
            for stream, followed in self._followed.items()
            if followed.words is not None
        }

    def _follow(self, wanted: Iterable[LogStream]) -> None:
        """Forget streams of tasks that are gone; one that ended keeps what it had said."""
        before = self._followed
        self._followed = {}
        for stream in wanted:
            known = before.get(stream)
            if known is None:
                alive = before.get(replace(stream, ended=False)) if stream.ended else None
                known = _Followed(words=alive.words if alive is not None else None)
            self._followed[stream] = known

    def _exists(self, stream: LogStream, now: float) -> bool:
        return now - self._followed[stream].absent_at >= self._config.log_confirm_s

    def _search_group(
        self, caller: AwsCaller, group: str, streams: list[LogStream], now: float
    ) -> None:
        """New streams apart from known ones: only they need a look back."""
        began = self._searched_at.get(group, now)
        known = [one for one in streams if self._followed[one].searched]
        fresh = [one for one in streams if not self._followed[one].searched]
        for batch in batches(known):
            self._search(caller, group, batch, began - self._config.log_overlap_s)
        for batch in batches(fresh):
            self._search(caller, group, batch, now - self._config.log_lookback_s)
        self._searched_at[group] = now

    def _search(
        self, caller: AwsCaller, group: str, streams: Sequence[LogStream], since: float
    ) -> None:
        by_name = {stream.name: stream for stream in streams}
        arguments: dict[str, Any] = {
            "logGroupName": group,
            "logStreamNames": list(by_name),
            "startTime": max(0, int(since * 1_000)),
            "startFromHead": False,
            "limit": LINES_AT_ONCE,
        }
        lines: dict[str, list[dict[str, Any]]] = {}
        try:
            for _ in range(self._config.log_pages_max):
                page = caller.ask("filter_log_events", **arguments)
                for event in page.get("events", ()):
                    lines.setdefault(event["logStreamName"], []).append(event)
                token = page.get("nextToken")
                if not token or len(lines) == len(by_name):
                    break
                arguments["nextToken"] = token
        except CallError as failed:
            if failed.why is not CallFailure.MISSING:
                raise
            self._narrow(caller, group, streams, since, failed)
            return
        for stream in streams:
            self._followed[stream].searched = True
            self._hear(stream, lines.get(stream.name, ()))

    def _narrow(
        self,
        caller: AwsCaller,
        group: str,
        streams: Sequence[LogStream],
        since: float,
        failed: CallError,
    ) -> None:
        """One missing stream makes the search of all fail: halve until it is found."""
        if len(streams) == 1 or failed.log_group_missing:
            for stream in streams:
                self._followed[stream].absent_at = self._clock()
            caller.note(f"logs: {group}: {failed}")
            return
        if self._splits < 2:
            caller.note(f"logs: {group}: several streams are missing; more are found next time")
            return
        self._splits -= 2
        middle = len(streams) // 2
        self._search(caller, group, streams[:middle], since)
        self._search(caller, group, streams[middle:], since)

    def _unsure(self, now: float) -> list[LogStream]:
        """Streams to be asked by themselves, those first that were asked longest ago."""
        patience_s = self._config.log_confirm_s
        found: list[LogStream] = []
        for stream, followed in self._followed.items():
            if stream.ended:
                if not followed.final:
                    found.append(stream)
            elif self._exists(stream, now) and now - followed.tailed_at >= patience_s:
                silent = followed.words is None or now - followed.words.at >= patience_s
                if silent:
                    found.append(stream)
        return sorted(found, key=lambda one: self._followed[one].tailed_at)

    def _tail(self, caller: AwsCaller, stream: LogStream, now: float) -> None:
        followed = self._followed[stream]
        followed.tailed_at = now
        try:
            page = caller.ask(
                "get_log_events",
                logGroupName=stream.group,
                logStreamName=stream.name,
                limit=TAIL_LINES,
                startFromHead=False,
            )
        except CallError as failed:
            if failed.why is not CallFailure.MISSING:
                raise
            followed.absent_at = now
        else:
            self._hear(stream, page.get("events", ()))
        followed.final = stream.ended

    def _hear(self, stream: LogStream, events: Sequence[dict[str, Any]]) -> None:
        """Take what is new; nothing new leaves what was known."""
        followed = self._followed[stream]
        newest_first = sorted(events, key=_written, reverse=True)
        known = followed.words
        if not newest_first or (known is not None and _written(newest_first[0]) < known.at * 1_000):
            return
        newest = newest_first[0]
        at_ms = _written(newest)
        words = LastLogLine(
            at=at_ms / 1_000,
            delay_s=max(0, newest.get("ingestionTime", at_ms) - at_ms) / 1_000,
            phase=known.phase if known is not None else "",
            used_bytes=known.used_bytes if known is not None else None,
            read_bytes=known.read_bytes if known is not None else None,
        )
        for event in newest_first[:TAIL_LINES]:
            told = self._told(event.get("message", ""))
            if told:
                words = replace(words, **told)
                break
        followed.words = words

    def _told(self, message: str) -> dict[str, Any]:
        """What a status line says; nothing of any other line."""
        if not message.startswith("{") or len(message) > LINE_BYTES_MAX:
            return {}
        try:
            line = orjson.loads(message)
        except orjson.JSONDecodeError:
            return {}
        phase = line.get(self._config.phase_key)
        if not isinstance(phase, str) or len(phase) > PHASE_CHARS_MAX:
            return {}
        told: dict[str, Any] = {"phase": _SERVING.get(phase, phase)}
        for key, name, unit in _NUMBERS:
            value = line.get(key)
            if isinstance(value, int | float) and 0 <= value < 1 << 50:
                told[name] = int(value * unit)
        return told

    def _measure(self, group: str, streams: Iterable[LogStream]) -> None:
        words = (self._followed[one].words for one in streams if not one.ended)
        delays = [one.delay_s for one in words if one is not None]
        if delays:
            self._delay_s[group] = min(median(delays), self._config.log_delay_max_s)

    def _timed(self, stream: LogStream, words: LastLogLine, now: float) -> LastLogLine:
        delay_s = self._delay_s.get(stream.group, 0.0)
        return replace(words, spoke_at=min(now, words.at + delay_s))


_NUMBERS: Final = (
    ("rss_bytes", "used_bytes", 1),
    ("rss_mb", "used_bytes", 1 << 20),
    ("read_bytes", "read_bytes", 1),
)


def _written(event: dict[str, Any]) -> int:
    return int(event.get("timestamp", 0))


__all__ = ["Heard", "LastLogLine", "LogFollower", "LogStream"]
