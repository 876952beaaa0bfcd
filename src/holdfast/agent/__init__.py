"""The agent: a small process on another host that reports the host and its logs to control.

    every few seconds:  who is where ─► logs ─► the host ─► outbox ─► control, over TLS with a token

One thread does all of it in turn. What may hang (a dead mount, a driver) is read in other threads,
so a turn is bounded by the deadline of one report. While control is unreachable the host is read as
before, reports are tried less often (with random pauses, so that a whole fleet does not come back
in one second), and events wait in the outbox. If the agent itself hangs, its reports stop, and
control shows it as silent.

Rejected: an event loop (it costs as much memory as the rest), a pull by control (hosts behind NAT
or firewalls could not be asked), and facts to ``POST /facts`` (a picture of a host is a state).
"""

import os
import random
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from holdfast import __version__
from holdfast.agent.logs import Logs, Spoken
from holdfast.agent.outbox import Outbox
from holdfast.agent.process_finder import ProcessFinder
from holdfast.agent.report_sender import DEADLINE_S, ReportAnswer, ReportSender, SendError
from holdfast.agent.settings import AgentConfig
from holdfast.agent.stop_signal import StopSignal
from holdfast.core.view.layers import Part, Reading
from holdfast.sources import agent_report
from holdfast.sources.nvml import GpuReport, Xid, XidWatch, read_gpus
from holdfast.sources.this_host import LocalHost, LocalReplica, Roots

PAUSE_S_MAX: Final = 60.0  # between tries while control is away
LAST_S: Final = 3.0  # for the last report
LAST_FAILING_S: Final = 1.0  # and where those before it found nobody
PACE_S: Final = 5.0  # between two of the same mark of one replica: an engine repeats itself
XIDS_MAX: Final = 64
_TAKEN: Final = range(200, 300)
_NEVER: Final = (400, 413, 415, 422)  # the same report would be refused again
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Agent:
    """Reads a host, follows its replicas' logs, and reports both to control."""

    def __init__(
        self,
        config: AgentConfig,
        token: str | Callable[[], str],  # it, or who knows it now
        say: Callable[[str], None],
        roots: Roots | None = None,
    ) -> None:
        self._config = config
        self._say = say
        self._life = secrets.token_hex(8)
        self._began = time.monotonic()
        self._finder = ProcessFinder(config.replicas, (roots or Roots()).proc)
        self._logs = Logs(config.logs, config.replicas)
        self._outbox = Outbox()
        self._sender = ReportSender(
            config.url, config.name, token, config.ca, config.certificate, config.key
        )
        self._xids: deque[Xid] = deque(maxlen=XIDS_MAX)
        self._watch = XidWatch()
        self._host = LocalHost(
            config.name, "agent", config.local, self._replicas, reader=self._read_gpus, roots=roots
        )
        self._found: dict[str, tuple[int | None, str]] = {}
        self._lines_at: dict[tuple[str, str], float] = {}
        self._logs_part = Part("logs")
        self._failures = 0
        self._failing_since: float | None = None
        self._due = 0.0
        self._sending = False

    def run(self, stop: StopSignal) -> None:
        """Read and report every period until ``stop`` is set; then send a last report."""
        period_s = self._config.local.period_s
        while not stop.is_set():
            reading = self.look()
            if time.monotonic() >= self._due and not stop.is_set():
                self._turn(reading)
            stop.wait(period_s * random.uniform(0.95, 1.05))
        self.leave()

    def hurry(self) -> None:
        """Abort a report that is being sent, by raising ``SendError`` (for signal handlers)."""
        if self._sending:
            self._sending = False
            raise SendError("told to end meanwhile")

    def once(self) -> str:
        """Read and report once; returns empty, or what went wrong."""
        try:
            answer = self._send(self.look(), DEADLINE_S)
        except SendError as error:
            return str(error)
        return "" if answer.status in _TAKEN else _refusal(answer)

    def leave(self) -> None:
        """Send a last report, in one short try, and close the logs."""
        deadline_s = LAST_S if self._failing_since is None else LAST_FAILING_S
        try:
            self._send(self.look(), deadline_s, leaving=True)
        except SendError as error:
            self._say(f"left without telling control: {error}")
        self._logs.close()

    # --- looking ---------------------------------------------------------------------------------

    def look(self) -> Reading:
        """Read the host and its logs now; new events go into the outbox."""
        found = self._finder.find()
        for name, (pid, _) in found.items():
            before = self._found.get(name, (None, ""))[0]
            if pid is not None and before is not None and pid != before:
                self._logs.began(name)
        self._found = found
        self._hear()
        reading = self._host.look()
        for xid in _taken(self._xids):
            self._blame(xid)
        if not self._config.logs:
            return reading
        if self._logs.problem:
            since = self._logs_part.failing_since or reading.at
            told = {"error": self._logs.problem[:250], "failing_since": since}
            self._logs_part = replace(self._logs_part, **told)  # type: ignore[arg-type]
        else:
            self._logs_part = Part("logs", at=reading.at)
        return replace(reading, parts=(*reading.parts, self._logs_part))

    def _hear(self) -> None:
        now = time.monotonic()
        news = self._logs.look()
        for replica, phase in news.phases:
            told: agent_report.PhaseName = phase  # type: ignore[assignment]
            self._outbox.put(
                agent_report.ReportedPhase(self._outbox.next_number(), 0, replica, told), now
            )
        for replica, mark, peer in news.marks:
            last = self._lines_at.get((replica, mark))
            if last is None or now - last >= PACE_S:
                self._lines_at[replica, mark] = now
                number = self._outbox.next_number()
                self._outbox.put(
                    agent_report.ReportedLine(number, 0, replica, mark, peer[:200]), now
                )

    def _replicas(self) -> dict[str, LocalReplica]:
        found: dict[str, LocalReplica] = {}
        for rule in self._config.replicas:
            pid, missing = self._found.get(rule.id, (None, ""))
            spoken = self._logs.spoken.get(rule.id, Spoken())
            found[rule.id] = LocalReplica(
                rule.model,
                pid,
                log_stream=spoken.path,
                phase=spoken.phase,
                spoke_at=spoken.spoke_at,
                missing=missing,
            )
        return found

    def _read_gpus(self) -> GpuReport:
        """Read the GPUs and collect new Xid faults (runs in a thread of its own)."""
        if not self._watch.listening:
            self._watch.start()
        self._xids.extend(self._watch.poll())
        return read_gpus(None, self._watch)

    def _blame(self, xid: Xid) -> None:
        """Put a GPU fault into the outbox for each replica on that GPU."""
        gpus = self._host.gpus.gpus if self._host.gpus is not None else ()
        pids = {pid for gpu in gpus if gpu.uuid == xid.uuid for pid, _ in gpu.processes}
        for replica, usage in self._host.usages.items():
            if pids & set(usage.pids):
                number = self._outbox.next_number()
                told = (number, 0, replica, xid.code, xid.needs_reset, xid.meaning)
                self._outbox.put(agent_report.ReportedGpuFault(*told), time.monotonic())

    # --- reporting -------------------------------------------------------------------------------

    def _turn(self, reading: Reading) -> None:
        try:
            self._try(reading, DEADLINE_S)
        except SendError as error:  # a signal came just when the report had failed by itself
            self._failed(str(error))

    def _try(self, reading: Reading, deadline_s: float) -> None:
        try:
            self._sending = True
            answer = self._send(reading, deadline_s)
            self._sending = False
        except SendError as error:
            self._sending = False
            self._failed(str(error))
            return
        if answer.status not in _TAKEN:
            self._failed(_refusal(answer), answer.wait_s)
        elif self._failing_since is not None:
            away_s = time.monotonic() - self._failing_since
            self._say(f"control answers again after {away_s:.0f} s; dropped {self._outbox.dropped}")
            self._failing_since, self._failures, self._due = None, 0, 0.0

    def _failed(self, why: str, wait_s: float | None = None) -> None:
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
            self._say(f"{why}; trying again, at least every {PAUSE_S_MAX:.0f} s")
        self._failures += 1
        grown = self._config.local.period_s * 2 ** min(self._failures - 1, 10)
        pause_s = min(PAUSE_S_MAX, grown) * random.uniform(0.5, 1.0)
        self._due = now + max(pause_s, wait_s or 0.0)

    def _send(self, reading: Reading, deadline_s: float, *, leaving: bool = False) -> ReportAnswer:
        things = self._outbox.waiting(time.monotonic())
        body = self._body(reading, things, leaving=leaving)
        while len(body) > agent_report.REPORT_BYTES_MAX and things:
            things = things[: len(things) // 2]
            body = self._body(reading, things, leaving=leaving)
        answer = self._sender.send(body, deadline_s)
        if answer.status in _TAKEN:
            self._outbox.told(things)
        elif answer.status in _NEVER:
            self._outbox.refused(things)
        return answer

    def _body(
        self, reading: Reading, things: list[agent_report.ReportedEvent], *, leaving: bool
    ) -> bytes:
        alive_s = max(1e-3, time.monotonic() - self._began)
        own = agent_report.AgentStatus(
            version=__version__,
            rss_bytes=_rss(),
            cpu_share=round(time.process_time() / alive_s, 5),
            dropped=self._outbox.dropped,
            skipped_bytes=self._logs.skipped_bytes,
        )
        return agent_report.encode(
            agent_report.AgentReport(
                life=self._life,
                at=time.time(),
                period_s=self._config.local.period_s,
                reading=reading,
                lines=tuple(one for one in things if isinstance(one, agent_report.ReportedLine)),
                phases=tuple(one for one in things if isinstance(one, agent_report.ReportedPhase)),
                faults=tuple(
                    one for one in things if isinstance(one, agent_report.ReportedGpuFault)
                ),
                own=own,
                leaving=leaving,
            )
        )


def _taken(xids: deque[Xid]) -> list[Xid]:
    taken = []
    while xids:  # a look may add to it meanwhile, in its thread
        taken.append(xids.popleft())
    return taken


def _refusal(answer: ReportAnswer) -> str:
    if answer.status == 401:
        return "control refuses the token (401)"
    return f"control refuses the report ({answer.status}): {answer.told}"


def _rss() -> int | None:
    try:
        with open("/proc/self/statm", encoding="ascii") as opened:  # noqa: PTH123 every report
            return int(opened.read().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):  # not Linux: unknown
        return None


__all__ = ["Agent", "AgentConfig"]
