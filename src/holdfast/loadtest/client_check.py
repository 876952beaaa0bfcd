"""Judges the client itself: a benchmark whose client was too slow measured the client.

Three things tell it. *Lateness*: how much later than asked the event loop came round, and requests
were sent; every time that the client notes is late by as much. *CPU*: a process at the end of its
core has no room for what comes in bursts. *Streams*: where the bound of answers under way was
reached, requests were not sent, and those that were had it easier.

A step that fails here is refused: no figure of it is reported.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Final

from holdfast.acceptor import raise_descriptor_limit
from holdfast.core.types import require
from holdfast.loadtest.records import BenchRecord, ClientState

TICK_S: Final = 0.002  # timers of the event loop count milliseconds; so late is on time
_SPARE_FILES: Final = 64  # that are open beside the streams
_LOOK_S: Final = 0.02  # how often the loop's lateness is looked at


@dataclass(slots=True, frozen=True)
class ClientLimits:
    """When the client counts as the bottleneck."""

    # Of one core. Beyond, a burst of a tenth more than the mean finds the client busy.
    cpu_share_max: float = 0.9
    # p99 of lateness. A hundredth of the samples shifts no reported p50 or p95.
    late_s_max: float = 0.010
    # or this share of the median first token, if that is more: slow engines forgive more
    late_share_max: float = 0.05
    streams_max: int = 4_000  # answers under way: descriptors, and memory of about 60 MB

    def __post_init__(self) -> None:
        inside = 0 < self.cpu_share_max <= 1
        require(inside, "client.cpu_share_max", f"is {self.cpu_share_max}", "use 0 to 1")
        require(self.late_s_max > 0, "client.late_s_max", f"is {self.late_s_max}", "use seconds")
        inside = 0 <= self.late_share_max < 1
        require(inside, "client.late_share_max", f"is {self.late_share_max}", "use 0 to 1")
        inside = self.streams_max >= 1
        require(inside, "client.streams_max", f"is {self.streams_max}", "use 1 or more")

    def late_max(self, first_token_s: float | None) -> float:
        """How late the client may be at its p99, beside a first token that takes so long."""
        return max(self.late_s_max, self.late_share_max * (first_token_s or 0.0))


class ClientWatch:
    """Measures this process while a step is counted."""

    def __init__(self) -> None:
        self._late: list[float] = []
        self._began = perf_counter()
        self._cpu = process_time()
        self._waited = _run_delay_s()
        self._cpu_share = 0.0
        self._waited_share: float | None = None
        self.running = True

    def stop(self) -> None:
        """The load is over: what comes after it says nothing of the client under load."""
        if not self.running:
            return
        self.running = False
        span = max(1e-6, perf_counter() - self._began)
        self._cpu_share = (process_time() - self._cpu) / span
        waited = _run_delay_s()
        if waited is not None and self._waited is not None:
            self._waited_share = (waited - self._waited) / span

    @staticmethod
    def pause() -> float:
        """How long to wait between two looks at the lateness of the loop."""
        return _LOOK_S

    def looked(self, asked_at: float) -> None:
        """Note that the loop came round, ``_LOOK_S`` after ``asked_at`` if it was in time."""
        if self.running:
            self._late.append(max(0.0, perf_counter() - asked_at - _LOOK_S - TICK_S))

    def state(
        self, records: Sequence[BenchRecord], *, streams_max: int, unsent: int
    ) -> ClientState:
        """What was measured from the beginning of this watch to its end."""
        self.stop()
        sent_late = sorted(
            record.sent_s - record.arrived_s for record in records if record.sent_s is not None
        )
        late = sorted(self._late)
        return ClientState(
            cpu_share=round(self._cpu_share, 4),
            waited_share=None if self._waited_share is None else round(self._waited_share, 4),
            late_p99_s=round(_p99(late), 6),
            late_max_s=round(late[-1], 6) if late else 0.0,
            sent_late_p99_s=round(max(0.0, _p99(sent_late)), 6),
            streams_max=streams_max,
            unsent=unsent,
        )


def why_refused(
    client: ClientState,
    limits: ClientLimits,
    records: Sequence[BenchRecord],
    load: float,
    unit: str,
) -> str:
    """Why a step is no measurement of the server; empty if it is one.

    ``load`` is what was asked of the client, in ``unit``: requests/s, or users.
    """
    firsts = sorted(record.ttft_s for record in records if record.ttft_s is not None)
    middle = firsts[len(firsts) // 2] if firsts else None
    allowed = limits.late_max(middle)
    late = max(client.late_p99_s, client.sent_late_p99_s)
    if client.unsent:
        return (
            f"{client.unsent:,} requests were not sent, because {limits.streams_max:,} answers were"
            " under way already; lower the load, or raise --streams-max"
        )
    if client.cpu_share > limits.cpu_share_max:
        carried = load * limits.cpu_share_max / client.cpu_share
        return (
            f"the client needed {client.cpu_share:.0%} of its core; it carries about "
            f"{carried:,.3g} {unit} of this kind: use less, or several clients"
        )
    if late > allowed:
        waited = client.waited_share
        others = waited is not None and waited > 0.05
        carried = load * allowed / late
        return (
            f"the client was {late * 1000:.3g} ms late at its p99, of {allowed * 1000:.3g} ms "
            "allowed; "
            + (
                f"other processes had its core {waited:.0%} of the time: give it one of its own"
                if others
                else f"it carries less than {carried:,.3g} {unit} of this kind here"
            )
        )
    return ""


def descriptors_for(streams: int) -> str:
    """Raise the limit on open files for so many streams; why not, if that cannot be done."""
    wanted = streams + _SPARE_FILES
    granted = raise_descriptor_limit(wanted)
    if granted >= wanted:
        return ""
    return (
        f"{streams:,} streams need {wanted:,} open files, and this process may open {granted:,}: "
        f"use at most {max(1, granted - _SPARE_FILES):,}, or raise the limit (ulimit -n)"
    )


def _p99(ordered: Sequence[float]) -> float:
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] if ordered else 0.0


def _run_delay_s() -> float | None:
    """How long this thread was runnable and not run, since it began; None: unknown here."""
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/schedstat").read_text(encoding="ascii")
        return int(text.split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


__all__ = ["TICK_S", "ClientLimits", "ClientWatch", "descriptors_for", "why_refused"]
