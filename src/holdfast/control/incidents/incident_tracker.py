"""Runs the investigation in a live control: judges facts, stores incidents, carries out acts.

    facts ─► queue ─► Investigation.take ─► opened, changed, closed ─► store, hooks, events
                                        └─► acts ─► hands: restart, take out, stop a rollout, page

It owns no policy: what is a failure and what may be done about it is decided in the core. It must
never block or end the loop that watches replicas. So facts wait in a bounded queue and are judged a
few milliseconds at a time, and an error in a detector costs that one fact: it is logged once for
each kind and counted, and all other facts are judged as usual.

An incident outlives its control: the next control adopts open ones and converts them to its own
core time.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final, Protocol

import orjson
import structlog

from holdfast.control.detached_call import detached
from holdfast.control.incidents import incident_records
from holdfast.control.incidents.incident_json import (
    export_head,
    incident_from_plain,
    incident_to_plain,
    unpack_lines,
)
from holdfast.control.incidents.notifier import HookMessage, Notifier
from holdfast.core.diagnose.diagnosis import Changed, Closed, Opened
from holdfast.core.diagnose.evidence import Incident, Remedy, Stage, TimelineEntry
from holdfast.core.diagnose.fact_log import FactLog
from holdfast.core.diagnose.facts import FACT_NAMES, Fact, Looked
from holdfast.core.diagnose.investigation import CallCanaries, Investigation, InvestigationConfig
from holdfast.core.diagnose.remedy_execution import RemedyExecution, RemedyHands
from holdfast.core.diagnose.remedy_policy import Act
from holdfast.core.diagnose.version_bill import VersionLine
from holdfast.core.messages import Notice
from holdfast.core.types import MILLISECOND, SECOND
from holdfast.ports import Store, StoreError

QUEUE_MAX: Final = 20_000  # facts; a minute of a fleet of a hundred
TURN: Final = 4 * MILLISECOND  # of judging at a time: below what makes the loop late
KEEP_BASELINES: Final = 600 * SECOND
SETTLE: Final = 10 * SECOND  # between looks for incidents that became part of others
ADOPTED_MAX: Final = 1_000
_CHECK_EVERY: Final = 8  # facts, before the time is looked at
_SETTING: Final = "incidents/baselines"

_log = structlog.get_logger("holdfast.control.incidents.incident_tracker")


class Hands(RemedyHands, Protocol):
    """Carries out what incidents call for; ``IncidentWatch`` implements it."""

    def put_back(self, replica: str, reason: str) -> None:
        """End a take-out: from now on the replica's canaries decide again whether it serves."""

    def ladder_of(self, model: str) -> str:
        """The virtual model whose ladder steps down from this model to another; empty: none."""

    def ask_canaries(self, replicas: tuple[str, ...]) -> None:
        """Ask for canaries to these replicas now; does not wait for their results."""

    def block(self, fingerprints: Mapping[str, int]) -> None:
        """Make gateways refuse requests with these fingerprints until the given core time (ns).

        The mapping replaces the previous one; an empty one unblocks all.
        """

    def note(self, notice: Notice) -> None:
        """Record a notice in the events that operators read."""


class IncidentTracker:
    """Feeds facts to the investigation; stores, reports and acts on the incidents it opens.

    An error in a detector is counted and logged, and never reaches the caller.
    """

    def __init__(
        self,
        config: InvestigationConfig,
        store: Store,
        notifier: Notifier,
        hands: Hands,
        declared: Callable[[], Iterable[Fact]] = tuple,
    ) -> None:
        self._store = store
        self._notifier = notifier
        self._hands = hands
        self._declared = declared  # what a new investigation must be told first
        self._queue: deque[tuple[Fact, int]] = deque()
        self._turning: asyncio.Handle | None = None
        self._facts = FactLog()
        self._packer = incident_records.Packer(store, self._facts)
        self._told: dict[str, str] = {}  # the cause that was last told, of those not closed
        self._paged: set[str] = set()  # of those not closed
        self._remedies = RemedyExecution(hands, self._page)
        self._blocked: dict[str, int] = {}
        self._logged: set[tuple[str, str]] = set()
        self._swept_at = self._baselines_at = time.monotonic_ns()
        self.facts_seen = self.facts_dropped = self.errors = 0
        self.opened: Counter[tuple[str, str]] = Counter()  # class and cause
        self._earlier_evidence: Counter[str] = Counter()
        self._config = config
        self._investigation = self._begin()

    def _begin(self) -> Investigation:
        """Start an investigation with the stored baselines and open incidents."""
        kept = self._store.incidents(ADOPTED_MAX)
        numbers = [incident_records.number(one["incident"]["id"]) for one in kept]
        baselines = self._store.settings().get(_SETTING)
        config, first = self._config, max(numbers, default=0) + 1
        try:
            found = Investigation(config, first_id=first, baselines=baselines)
        except Exception:  # noqa: BLE001 what was kept must not keep us from looking
            _log.exception("kept baselines not understood; they are learned anew")
            found = Investigation(config, first_id=first)
        now = time.monotonic_ns()
        for fact in self._declared():
            found.take(fact, now)
        for one in self._store.incidents(ADOPTED_MAX, "open")[::-1]:
            try:
                incident = incident_from_plain(
                    incident_records.moved(one["incident"], one["clock"] - incident_records.clock())
                )
                found.adopt(incident, now)
            except Exception:  # noqa: BLE001 as above
                _log.exception("kept incident not understood")
                continue
            self._told[incident.id] = incident.cause.value
        return found

    def follow(self, config: InvestigationConfig) -> None:
        """Apply new settings: start a new investigation that keeps baselines and open incidents.

        Does nothing if the settings are the same.
        """
        if config == self._config:
            return
        self.keep_baselines()
        for sign, count in self._investigation.evidence_seen.items():
            self._earlier_evidence[str(sign)] += count
        for incident in self._investigation.incidents.values():
            incident_records.put(self._store, incident)
        self._config = config
        self._investigation = self._begin()

    # --- facts -----------------------------------------------------------------------------------

    def take(self, fact: Fact) -> None:
        """Queue a fact to be judged soon, in order of arrival.

        If 20,000 facts wait, it is dropped and counted.
        """
        if len(self._queue) >= QUEUE_MAX:
            self.facts_dropped += 1
            return
        self._queue.append((fact, time.monotonic_ns()))
        if self._turning is None:
            self._turning = asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Judge queued facts for a few milliseconds, then yield to the event loop."""
        self._turning = None
        until = time.monotonic_ns() + TURN
        while self._queue:
            for _ in range(min(_CHECK_EVERY, len(self._queue))):
                self._judge(*self._queue.popleft())
            if time.monotonic_ns() >= until and self._queue:
                # After a pause, not at once: a loop whose queue never empties starves its timers.
                loop = asyncio.get_running_loop()
                self._turning = loop.call_later(0.001, self._turn)
                return

    def drain(self) -> None:
        """Judge all queued facts now and carry out the findings: remedies, canaries, messages."""
        while self._queue:
            self._judge(*self._queue.popleft())

    def _judge(self, fact: Fact, at: int) -> None:
        self.facts_seen += 1
        try:
            self._facts.add(fact, at)
            findings = self._investigation.take(fact, at)
        except Exception as error:  # noqa: BLE001 it must not end the loop that watches replicas
            self._failed(FACT_NAMES[type(fact)], error)
            return
        for finding in findings:
            try:
                self._do(finding, at)
            except Exception as error:  # noqa: BLE001 as above
                self._failed(f"a finding after {FACT_NAMES[type(fact)]}", error)
        try:
            if isinstance(fact, Looked):
                self._look(at)
        except Exception as error:  # noqa: BLE001 as above
            self._failed("look", error)

    def _failed(self, what: str, error: Exception) -> None:
        self.errors += 1
        kind = (what, type(error).__name__)
        if kind not in self._logged and len(self._logged) < 1_000:
            self._logged.add(kind)
            _log.error("investigation failed", what=what, exc_info=error)

    def _look(self, now: int) -> None:
        blocked = dict(self._investigation.blocked)
        if blocked != self._blocked:
            self._blocked = blocked
            self._hands.block(blocked)
        if now - self._swept_at >= SETTLE:
            self._swept_at = now
            self._sweep()
        if now - self._baselines_at >= KEEP_BASELINES:
            self.keep_baselines()

    def _sweep(self) -> None:
        """Close stored incidents that were merged into another one."""
        for name in [name for name in self._told if name not in self._investigation.incidents]:
            kept, _ = self._store.incident(name)
            self._forget(name)
            if kept is not None and kept["incident"]["stage"] != Stage.CLOSED:
                plain = kept["incident"]
                plain |= {"stage": Stage.CLOSED.value, "action": "became part of another incident"}
                plain["closed_at"] = time.monotonic_ns()
                self._store.put_incident(name, incident_records.opened(kept), Stage.CLOSED, kept)

    # --- findings --------------------------------------------------------------------------------

    def _do(self, finding: Any, now: int) -> None:
        if isinstance(finding, Act):
            self._act(finding, now)
        elif isinstance(finding, CallCanaries):
            self._hands.ask_canaries(finding.replicas)
        elif isinstance(finding, Opened):
            incident = finding.incident
            self.opened[incident.failure_class.value, incident.cause.value] += 1
            self._news("opened", incident)
        elif isinstance(finding, Closed):
            self._news("closed", finding.incident)
            self._forget(finding.incident.id)
        elif isinstance(finding, Changed):
            incident = finding.incident
            known = self._told.get(incident.id)
            self._news("" if known == incident.cause.value else "changed", incident)

    def _news(self, event: str, incident: Incident) -> None:
        """Store an incident; if ``event`` is not empty, note it and notify the hooks."""
        name = incident.id
        if event in ("opened", "changed"):
            self._told[name] = incident.cause.value
        incident_records.put(self._store, incident)
        if event:
            first = self._head(incident_to_plain(incident))
            self._packer.want(incident, first)
            about = incident.about
            told = f"{name}: {incident.title}"
            what = f"incident {event}"
            kind = incident.failure_class
            self._hands.note(Notice(0, about.model, about.replica, what, told, kind))
            self._tell(event, incident, page=name in self._paged)

    def _tell(self, event: str, incident: Incident, *, page: bool) -> None:
        plain = incident_records.for_people(incident_to_plain(incident), incident_records.clock())
        self._notifier.tell(HookMessage(event, plain, page))

    def _forget(self, name: str) -> None:
        self._told.pop(name, None)
        self._paged.discard(name)
        self._remedies.closed(name)

    # --- acts ------------------------------------------------------------------------------------

    def _act(self, act: Act, now: int) -> None:
        incident = self._investigation.incidents.get(act.incident_id)
        if incident is None:
            return
        told = self._remedies.carry_out(act, incident)
        if told:
            self._investigation.done(act.incident_id, told, now)
        incident_records.put(self._store, incident)

    def _page(self, act: Act, incident: Incident) -> str:
        """Notify a person about an act that control cannot carry out; returns what to record."""
        self._paged.add(incident.id)
        self._tell("page", incident, page=True)
        told = "a person is asked to look"
        if act.remedy is Remedy.RELOCATE:
            told = "moving it to another host is the platform's; a person is asked to"
        elif act.remedy is Remedy.DEGRADE:
            ladder = self._hands.ladder_of(act.model)
            told = (
                f"{ladder} falls to its next model by itself while this one is slow; "
                if ladder
                else ""
            )
            told += "a person is asked to look"
        if not self._notifier.pages:
            told += " (nobody is configured to be told: incidents.notify)"
        return told

    # --- what operators ask ----------------------------------------------------------------------

    def listing(self, limit: int, stage: str | None = None) -> list[dict[str, Any]]:
        """The latest stored incidents, newest last, with counts in place of their long parts.

        ``stage``: ``open`` is all that are not closed, ``mending`` those of the latest that mend,
        ``closed``, or None for all.
        """
        column = None if stage is None else Stage.CLOSED if stage == Stage.CLOSED else Stage.OPEN
        found = []
        for kept in self._store.incidents(limit, column):
            plain = incident_records.for_people(kept["incident"], kept["clock"])
            if stage != Stage.MENDING or plain["stage"] == stage:
                for long in ("evidence", "consequences", "timeline"):
                    plain[f"{long}_count"] = len(plain.pop(long))
                found.append(plain)
        return found[::-1]

    def get(self, name: str) -> dict[str, Any] | None:
        """One incident with all its parts, times in seconds since 1970; None: no such incident."""
        incident = self._investigation.incidents.get(name)
        if incident is not None:
            return incident_records.for_people(
                incident_to_plain(incident), incident_records.clock()
            )
        kept, _ = self._store.incident(name)
        return (
            incident_records.for_people(kept["incident"], kept["clock"])
            if kept is not None
            else None
        )

    async def export(self, name: str) -> list[bytes] | None:
        """One incident and its facts as lines of JSON, for a replay; None: no such incident.

        Only the first line where its facts were not stored.
        """
        incident = self._investigation.incidents.get(name)
        if incident is not None:
            first = self._head(incident_to_plain(incident))
            return await detached(self._packer.lines, incident, first)
        kept, packed = self._store.incident(name)
        if packed is not None:
            return await detached(unpack_lines, packed)
        return None if kept is None else [orjson.dumps(self._head(kept["incident"]))]

    def _head(self, plain: Mapping[str, Any]) -> dict[str, Any]:
        return export_head(plain, self._investigation.baselines(), asdict(self._config))

    def close(self, name: str) -> tuple[bool, str]:
        """Close an incident on an operator's order, and put back replicas it had taken out.

        Stores and announces it as any other closing. Returns (False, why) if it is not open.
        """
        incident = self._investigation.incidents.get(name)
        if incident is None or incident.stage is Stage.CLOSED:
            return False, "it is not open"
        now = time.monotonic_ns()
        incident.stage, incident.closed_at, incident.changed_at = Stage.CLOSED, now, now
        told = TimelineEntry(now, "closed", str(incident.about), "closed by an operator")
        incident.timeline.append(told)
        self._investigation.acting.closed(incident)
        for replica in self._remedies.closed(name):
            self._hands.put_back(replica, f"{name} was closed by an operator")
        self._do(Closed(incident), now)
        return True, f"{name} is closed"

    def versions(self) -> list[VersionLine]:
        """One line per replica: what it runs on, how it differs from its peers, and warnings."""
        return self._investigation.versions()

    # --- baselines of healthy answers -------------------------------------------------------------

    def baselines_of(self, model: str) -> list[dict[str, Any]]:
        """Each answer baseline of a model, learned or being learned, with its latest answers."""
        return self._investigation.describe_baselines(model)

    def accept_baselines(self, model: str, why: str) -> tuple[bool, str]:
        """Make the latest answers of a model its baselines, as an operator orders.

        Returns whether any was replaced, and a sentence. If so, stores the baselines and notes an
        event with ``why``.
        """
        return self._replaced(model, "baseline accepted", why, self._investigation.accept_baselines)

    def reset_baselines(self, model: str, why: str) -> tuple[bool, str]:
        """Drop the answer baselines of a model, to be learned anew, as an operator orders.

        Returns whether any was dropped, and a sentence. If so, stores the baselines and notes an
        event with ``why``.
        """
        return self._replaced(model, "baseline reset", why, self._investigation.reset_baselines)

    def _replaced(
        self, model: str, what: str, why: str, order: Callable[[str], tuple[int, str]]
    ) -> tuple[bool, str]:
        self.drain()  # what was seen before the order is judged before it
        count, told = order(model)
        if count:
            self.keep_baselines()
            now = time.monotonic_ns()
            self._hands.note(Notice(now, model, "", what, f"{told}; because: {why}"))
        return bool(count), told

    # --- the end, and figures --------------------------------------------------------------------

    def keep_baselines(self) -> None:
        """Store the learned answer baselines; a failure is only logged."""
        self._baselines_at = time.monotonic_ns()
        try:
            self._store.put_setting(_SETTING, self._investigation.baselines())
        except (StoreError, TypeError) as error:
            _log.error("baselines not kept", reason=str(error))

    async def stop(self) -> None:
        """Judge the queued facts, store baselines and facts, and stop; incidents stay open."""
        if self._turning is not None:
            self._turning.cancel()
        self.drain()
        self.keep_baselines()
        await self._packer.close()

    @property
    def open_count(self) -> int:
        """The number of incidents in memory that are not closed, mending ones included."""
        return sum(1 for _ in self._unclosed())

    def drift_series(self) -> dict[str, float]:
        """How far each model's answers drifted: ``model/NAME/drift``, ``baseline`` and ``cusum``.

        Names and values for the history; only models with figures are in it.
        """
        found: dict[str, float] = {}
        for model, told in self._investigation.drift_figures().items():
            found[f"model/{model}/drift"] = told.now
            found[f"model/{model}/baseline"] = told.before
            found[f"model/{model}/cusum"] = told.cusum
        return found

    def unclosed(self) -> list[Incident]:
        """The incidents that are not closed, as live objects; callers must not change them."""
        return list(self._unclosed())

    def _unclosed(self) -> Iterable[Incident]:
        found = self._investigation.incidents.values()
        return (incident for incident in found if incident.stage is not Stage.CLOSED)

    def gauges(self) -> dict[str, float]:
        """The gauge ``incidents_open`` by class and cause; a pair without open ones is left out."""
        now = Counter((one.failure_class.value, one.cause.value) for one in self._unclosed())
        return {_series("incidents_open", *key): count for key, count in now.items()}

    def counters(self) -> dict[str, float]:
        """Prometheus counters: incidents opened by class and cause, evidence by sign, facts.

        Also dropped facts, errors of the investigation, and notifications. A labelled series
        appears with its first count.
        """
        found: dict[str, float] = {
            _series("incidents_total", *key): count for key, count in self.opened.items()
        }
        seen = Counter(self._earlier_evidence)
        seen.update({str(sign): n for sign, n in self._investigation.evidence_seen.items()})
        found |= {f'evidence_total{{sign="{sign}"}}': count for sign, count in seen.items()}
        found["facts_total"] = self.facts_seen
        found["facts_dropped_total"] = self.facts_dropped
        found["investigation_errors_total"] = self.errors
        return found | self._notifier.counters()


def _series(name: str, kind: str, cause: str) -> str:
    return f'{name}{{class="{kind}",cause="{cause}"}}'


__all__ = ["Hands", "IncidentTracker"]
