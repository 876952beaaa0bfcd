"""Reads the supervisor's report, and tells the investigation which processes were frozen.

    processes.json ──► ServingProcesses ─► facts, /status, /readyz, metrics
    SupervisorWatch ─┘

Each replacement is told once, also over restarts of control: the store keeps the number of the last
one. A control that was itself replaced finds the report of its predecessor's end here.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from holdfast.control.gateways.process_report import ProcessReport, ProcessRow, read_report
from holdfast.control.gateways.supervisor_watch import SupervisorWatch
from holdfast.core.diagnose.facts import Fact, ServingProcessFrozen
from holdfast.core.health.process_watch import Condition
from holdfast.ports import Store

LOOK_S: Final = 1.0  # as often as gateways tell
_TOLD: Final = "processes/told"  # a setting: whose replacements were told, and how many
_WORRYING: Final = frozenset({Condition.LATE, Condition.TRACED, Condition.STOPPED, Condition.STUCK})
_COUNTED: Final = [  # also while they are 0: an alert on an increase needs a beginning
    (kind, condition)
    for kind in ("control", "gateway")
    for condition in (Condition.STOPPED, Condition.STUCK)
]


class ServingProcesses:
    """What the supervisor reports of control and gateway processes, and how it fares itself.

    Reports frozen and replaced ones as facts.
    """

    def __init__(
        self,
        path: Path,
        store: Store,
        saw: Callable[[Fact], None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._store = store
        self._saw = saw
        self._wall = wall
        self._report: ProcessReport | None = None
        self._changed_ns = 0
        self._supervisor: SupervisorWatch | None = None
        self._supervisor_row: ProcessRow | None = None
        self._told = _told_before(store.settings().get(_TOLD))

    def watch_supervisor(self, watch: SupervisorWatch) -> None:
        """Judge the supervisor, too, at each ``look`` from now on."""
        self._supervisor = watch

    async def run(self) -> None:
        """Call ``look`` every second until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Read the supervisor's report if it changed, and report frozen processes as facts.

        Each replacement is reported once and noted as an event; a process that is late or stopped
        at each call while it is so.
        """
        if self._supervisor is not None:
            self._supervisor_row = self._supervisor.look()
        try:
            changed_ns = self._path.stat().st_mtime_ns
        except OSError:  # nobody supervises, or it has nothing to say yet
            changed_ns = self._changed_ns
        if changed_ns != self._changed_ns:
            self._changed_ns = changed_ns
            self._report = read_report(self._path) or self._report
            self._tell_replacements()
        for row, condition in self._worrying():
            for_s = self._for_s(row)
            self._saw(ServingProcessFrozen(row.name, row.pid, condition, for_s, replaced=False))

    def _tell_replacements(self) -> None:
        report = self._report
        if report is None:
            return
        supervisor, number = self._told
        if supervisor != report.supervisor:
            number = 0
        for one in report.replaced:
            condition = _condition(one.condition)
            if one.number <= number or condition is None:
                continue
            number = one.number
            self._saw(
                ServingProcessFrozen(one.name, one.pid, condition, one.lasted_s, replaced=True)
            )
            why = f"it was {one.condition} for {one.lasted_s:.1f} s (pid {one.pid})"
            self._store.add_event(one.at, "", "", f"{one.name} replaced", why)
        if (report.supervisor, number) != self._told:
            self._told = (report.supervisor, number)
            self._store.put_setting(_TOLD, list(self._told))

    def _worrying(self) -> list[tuple[ProcessRow, Condition]]:
        rows = self._processes()
        judged = [(row, _condition(row.condition)) for row in rows]
        return [(row, known) for row, known in judged if known in _WORRYING and known is not None]

    def _processes(self) -> list[ProcessRow]:
        """The processes of the report, and their supervisor before them."""
        rows = self._report.processes if self._report is not None else []
        return rows if self._supervisor_row is None else [self._supervisor_row, *rows]

    def _for_s(self, row: ProcessRow) -> float:
        return max(0.0, self._wall() - row.since)

    # --- what is shown ---------------------------------------------------------------------------

    def rows(self) -> list[Any]:
        """All processes as plain data, for ``/status``; empty where nobody supervises."""
        return [
            {
                "name": row.name,
                "pid": row.pid,
                "condition": row.condition,
                "for_s": round(self._for_s(row), 3),
            }
            for row in self._processes()
        ]

    def worries(self) -> list[str]:
        """One sentence for each process that is late, traced, stopped or stuck now."""
        return [
            f"{row.name} has been {condition.value} for {self._for_s(row):.0f} s"
            for row, condition in self._worrying()
        ]

    def metrics(self) -> tuple[dict[str, float], dict[str, float]]:
        """Prometheus counters of replacements and gauges of how late each process is.

        Counters are since the supervisor began; a process that is well has 0 seconds.
        """
        counts = self._report.counts if self._report is not None else {}
        counters = {
            f'serving_processes_replaced_total{{process="{kind}",reason="{condition.value}"}}': (
                float(counts.get(f"{kind} {condition.value}", 0))
            )
            for kind, condition in _COUNTED
        }
        gauges = {
            f'serving_process_late_seconds{{process="{row["name"]}"}}': 0.0 for row in self.rows()
        }
        for row, _ in self._worrying():
            gauges[f'serving_process_late_seconds{{process="{row.name}"}}'] = self._for_s(row)
        return counters, gauges


def _condition(text: str) -> Condition | None:
    """A condition by its name; None: a newer supervisor knows more than this control."""
    return Condition(text) if text in set(Condition) else None


def _told_before(kept: Any) -> tuple[str, int]:
    """The supervisor whose replacements were told, and the number of the last one."""
    match kept:
        case [str(supervisor), int(number)]:
            return supervisor, number
    return "", 0


__all__ = ["LOOK_S", "ServingProcesses"]
