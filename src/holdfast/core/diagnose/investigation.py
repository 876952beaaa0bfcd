"""Runs the whole pipeline from facts to incidents and remedies behind one method, ``take``.

    Fact ─► registry, dependencies ─► detectors ─► Evidence ─► Diagnosis ─► RemedyPolicy

A live fleet, the simulator, a history and an exported incident all call ``take(fact, now)`` and
read what comes back. Nothing here waits, asks or stores: the same facts give the same findings.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from holdfast.core.diagnose.causes.rule import Rules
from holdfast.core.diagnose.causes.table import CAUSES
from holdfast.core.diagnose.detect.attempts import AttemptsConfig, AttemptsDetector
from holdfast.core.diagnose.detect.canary.config import ProbingConfig
from holdfast.core.diagnose.detect.canary.failures import ProbingDetector
from holdfast.core.diagnose.detect.comparison import ComparisonConfig, PeerComparison
from holdfast.core.diagnose.detect.contention import ContentionConfig, ContentionDetector
from holdfast.core.diagnose.detect.detector import NOTHING, Detector, Pace
from holdfast.core.diagnose.detect.drift.detector import (
    DriftConfig,
    DriftFigures,
    OutputDriftDetector,
)
from holdfast.core.diagnose.detect.finish_reasons import FinishReasonConfig, FinishReasonDetector
from holdfast.core.diagnose.detect.hosts.host_conditions import (
    HostConditionConfig,
    HostConditionDetector,
)
from holdfast.core.diagnose.detect.inference.failures import (
    InferenceConfig,
    InferenceFailureDetector,
)
from holdfast.core.diagnose.detect.latency import CanaryDriftConfig, CanaryDriftDetector
from holdfast.core.diagnose.detect.leak import LeakConfig, LeakDetector
from holdfast.core.diagnose.detect.log_lines import LogLineConfig, LogLineDetector
from holdfast.core.diagnose.detect.memory_limits import MemoryLimitConfig, MemoryLimitDetector
from holdfast.core.diagnose.detect.own_processes.control_lateness import (
    ControlLatenessConfig,
    ControlLatenessDetector,
)
from holdfast.core.diagnose.detect.own_processes.own_shortage import (
    OwnShortageConfig,
    OwnShortageDetector,
)
from holdfast.core.diagnose.detect.own_processes.serving_processes import (
    ServingProcessConfig,
    ServingProcessDetector,
)
from holdfast.core.diagnose.detect.placement import PlacementConfig, PlacementDetector
from holdfast.core.diagnose.detect.platform import PlatformConfig, PlatformDetector
from holdfast.core.diagnose.detect.poison import PoisonConfig, PoisonDetector
from holdfast.core.diagnose.detect.process_ends import ProcessEndConfig, ProcessEndDetector
from holdfast.core.diagnose.detect.queues import QueuesConfig, QueuesDetector
from holdfast.core.diagnose.detect.resources.gpu_health import GpuHealthConfig, GpuHealthDetector
from holdfast.core.diagnose.detect.resources.gpu_idle import GpuIdleConfig, GpuIdleDetector
from holdfast.core.diagnose.detect.resources.latency_tail import (
    LatencyTailConfig,
    LatencyTailDetector,
)
from holdfast.core.diagnose.detect.resources.stranded_gpus import (
    StrandedGpusConfig,
    StrandedGpusDetector,
)
from holdfast.core.diagnose.detect.skew import SkewConfig, SkewDetector
from holdfast.core.diagnose.detect.slowness import SlownessConfig, SlownessDetector
from holdfast.core.diagnose.detect.stall import StallConfig, StallDetector
from holdfast.core.diagnose.diagnosis import (
    Changed,
    Closed,
    Diagnosis,
    DiagnosisConfig,
    News,
    Opened,
)
from holdfast.core.diagnose.evidence import Evidence, Incident, Sign
from holdfast.core.diagnose.facts import FACT_NAMES, Compared, Fact, Gone, Looked, StateChanged
from holdfast.core.diagnose.incident_case import IncidentCase
from holdfast.core.diagnose.remedy_policy import Act, RemedyConfig, RemedyPolicy
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.diagnose.version_bill import VersionLine, bill_of_versions


@dataclass(slots=True, frozen=True)
class InvestigationConfig:
    """Settings of all detectors, the diagnosis and the remedies; every one has a default."""

    drift: DriftConfig = field(default_factory=DriftConfig)
    finishes: FinishReasonConfig = field(default_factory=FinishReasonConfig)
    latency: CanaryDriftConfig = field(default_factory=CanaryDriftConfig)
    leak: LeakConfig = field(default_factory=LeakConfig)
    ends: ProcessEndConfig = field(default_factory=ProcessEndConfig)
    lines: LogLineConfig = field(default_factory=LogLineConfig)
    attempts: AttemptsConfig = field(default_factory=AttemptsConfig)
    inferences: InferenceConfig = field(default_factory=InferenceConfig)
    probing: ProbingConfig = field(default_factory=ProbingConfig)
    stall: StallConfig = field(default_factory=StallConfig)
    slowness: SlownessConfig = field(default_factory=SlownessConfig)
    comparison: ComparisonConfig = field(default_factory=ComparisonConfig)
    poison: PoisonConfig = field(default_factory=PoisonConfig)
    skew: SkewConfig = field(default_factory=SkewConfig)
    sizing: MemoryLimitConfig = field(default_factory=MemoryLimitConfig)
    contention: ContentionConfig = field(default_factory=ContentionConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    queues: QueuesConfig = field(default_factory=QueuesConfig)
    control_lateness: ControlLatenessConfig = field(default_factory=ControlLatenessConfig)
    serving_processes: ServingProcessConfig = field(default_factory=ServingProcessConfig)
    platform: PlatformConfig = field(default_factory=PlatformConfig)
    hosts: HostConditionConfig = field(default_factory=HostConditionConfig)
    own_shortage: OwnShortageConfig = field(default_factory=OwnShortageConfig)
    gpu_health: GpuHealthConfig = field(default_factory=GpuHealthConfig)
    gpu_idle: GpuIdleConfig = field(default_factory=GpuIdleConfig)
    stranded_gpus: StrandedGpusConfig = field(default_factory=StrandedGpusConfig)
    tail: LatencyTailConfig = field(default_factory=LatencyTailConfig)
    diagnosis: DiagnosisConfig = field(default_factory=DiagnosisConfig)
    acting: RemedyConfig = field(default_factory=RemedyConfig)


@dataclass(slots=True, frozen=True)
class CallCanaries:
    """A finding: canaries should be sent to these replicas at once; the caller has to send them.

    One of them may answer wrongly, or only a report from outside accuses it.
    """

    replicas: tuple[str, ...]
    reason: str


Finding = Opened | Changed | Closed | Act | CallCanaries

_DISAGREE: Final = "answered a live request differently"
# Of somebody who was there once, these say that it went away.
_NOT_THERE: Final = (Sign.REFUSES, Sign.UNREACHABLE, Sign.LOAD_STUCK, Sign.SILENT_LOADING)
_NEVER: Final = "never seen: nothing at its address has accepted a connection since control began"


class Investigation:
    """All detectors, the diagnosis and the remedy policy of one fleet, fed with facts by ``take``.

    Keeps everything in memory and does nothing itself: it returns findings for the caller to carry
    out.
    """

    def __init__(
        self,
        config: InvestigationConfig | None = None,
        *,
        first_id: int = 1,
        baselines: Mapping[str, Any] | None = None,
        rules: Rules = CAUSES,
    ) -> None:
        config = config or InvestigationConfig()
        self.config = config
        self.census = ReplicaRegistry()
        self._drift = OutputDriftDetector(config.drift, self.census)
        self._poison = PoisonDetector(config.poison, self.census)
        self.detectors: tuple[Detector, ...] = (
            ProcessEndDetector(config.ends, self.census),
            LogLineDetector(config.lines, self.census),
            MemoryLimitDetector(config.sizing, self.census),
            LeakDetector(config.leak, self.census),
            StallDetector(config.stall, self.census),
            SlownessDetector(config.slowness, self.census),
            AttemptsDetector(config.attempts, self.census),
            InferenceFailureDetector(config.inferences, self.census),
            ProbingDetector(config.probing, self.census),
            self._poison,
            PeerComparison(config.comparison, self.census),
            self._drift,
            FinishReasonDetector(config.finishes, self.census),
            CanaryDriftDetector(config.latency, self.census),
            SkewDetector(config.skew, self.census),
            PlacementDetector(config.placement, self.census),
            ContentionDetector(config.contention, self.census),
            QueuesDetector(config.queues, self.census),
            ControlLatenessDetector(config.control_lateness),
            ServingProcessDetector(config.serving_processes),
            PlatformDetector(config.platform),
            HostConditionDetector(config.hosts, self.census),
            OwnShortageDetector(config.own_shortage),
            GpuHealthDetector(config.gpu_health, self.census),
            GpuIdleDetector(config.gpu_idle, self.census),
            StrandedGpusDetector(config.stranded_gpus, self.census),
            LatencyTailDetector(config.tail, self.census),
        )
        self._readers: dict[type, list[Detector]] = {
            kind: [one for one in self.detectors if kind in one.reads] for kind in FACT_NAMES
        }
        self.diagnosis = Diagnosis(config.diagnosis, rules, self.census, first_id=first_id)
        self.acting = RemedyPolicy(config.acting, self.census, self.diagnosis.relations)
        self.evidence_seen: Counter[Sign] = Counter()
        self._disagreed = Pace()
        if baselines:
            self._drift.restore(dict(baselines))

    # --- in and out -------------------------------------------------------------------------------

    def take(self, fact: Fact, now: int) -> list[Finding]:
        """Take one fact, in order of time; return the findings it leads to, maybe none.

        A list of incidents opened, changed or closed, of ``Act`` to carry out, and of
        ``CallCanaries``. Incidents close and held-back acts come only with ticks (``Looked``).
        """
        self.census.take(fact)
        self.diagnosis.saw(fact, now)
        self.acting.saw(fact)
        findings: list[Finding] = []
        for detector in self._readers.get(type(fact), ()):
            for found in detector.take(fact, now) or NOTHING:
                evidence = self._unless_never_seen(found)
                self.evidence_seen[evidence.sign] += 1
                if evidence.sign is Sign.OUTPUT_SUSPECTED:
                    findings.append(CallCanaries((evidence.about.replica,), evidence.text))
                findings += self._react(self.diagnosis.take(evidence, now), now)
        if isinstance(fact, Looked):
            findings += self._react(self.diagnosis.look(now), now)
            for name in self.acting.settled(now):
                case = self.diagnosis.case(name)
                findings += self._decide(case, now) if case is not None else ()
        elif isinstance(fact, Gone):
            self._forget(fact.replica)
        elif isinstance(fact, StateChanged):
            cases = self.diagnosis.open_at(fact.replica)
            findings += map(Changed, self.acting.moved(fact, cases, now))
        elif isinstance(fact, Compared) and not fact.agreed:
            findings += self._compared(fact, now)
        return findings

    def _unless_never_seen(self, evidence: Evidence) -> Evidence:
        """The evidence; or, of an endpoint that was never there, that it was never seen.

        Whoever was never there has not crashed. It may not run yet, or have another address.
        """
        if evidence.sign not in _NOT_THERE or not self.census.never_seen(evidence.about.replica):
            return evidence
        return replace(evidence, sign=Sign.NEVER_SEEN, source="canary", text=_NEVER)

    def _compared(self, fact: Compared, now: int) -> list[Finding]:
        """A disagreement accuses nobody yet: both are asked what they are known to answer."""
        pair = (fact.replica, fact.peer)
        known = [one for one in pair if one in self.census.replicas]
        if not [one for one in known if self._disagreed.due(one, now)]:
            return []
        return [CallCanaries(pair, f"{pair[0]} and {pair[1]} {_DISAGREE}")]

    def _react(self, news: list[News], now: int) -> list[Finding]:
        findings: list[Finding] = []
        for one in news:
            findings.append(one)
            if isinstance(one, Closed):
                joined = one.incident.id not in self.incidents
                self.acting.closed(one.incident, joined=joined)
                continue
            case = self.diagnosis.case(one.incident.id)
            if case is not None:
                findings += self._decide(case, now)
        return findings

    def _decide(self, case: IncidentCase, now: int) -> list[Finding]:
        """The acts on a case, and the canaries that are to be asked before more is done."""
        acts: list[Finding] = [*self.acting.decide(case, now)]
        asked = self.acting.take_doubted().items()
        return acts + [CallCanaries((replica,), why) for replica, why in asked]

    def _forget(self, replica: str) -> None:
        for detector in self.detectors:
            detector.forget(replica)
        self.acting.forget(replica)
        self._disagreed.over(replica)

    # --- asked from outside -----------------------------------------------------------------------

    @property
    def incidents(self) -> dict[str, Incident]:
        """Open incidents and closed ones still kept, by id; the live dict, to be read only."""
        return self.diagnosis.incidents

    @property
    def blocked(self) -> dict[str, int]:
        """Fingerprints of requests to refuse, and until when (core time, ns); a new dict.

        They were running when several replicas died. Refusing them is left to gateways.
        """
        return self._poison.blocked

    def baselines(self) -> dict[str, Any]:
        """Return all models' frozen drift baselines as JSON-ready data, for ``baselines=``."""
        return self._drift.baselines()

    def describe_baselines(self, model: str) -> list[dict[str, Any]]:
        """Return a dict for each baseline of a model, frozen or being learned; may be empty.

        Sorted by revision and statistic, with the figures of its latest answers beside it.
        """
        return self._drift.describe(model)

    def accept_baselines(self, model: str) -> tuple[int, str]:
        """Make statistics of a model's latest answers to users its frozen drift baselines.

        Canaries' answers do not count. A baseline (one per revision and statistic) with too few
        answers since it was frozen stays. Return (how many were replaced, a text about it).
        """
        return self._drift.accept(model)

    def reset_baselines(self, model: str) -> tuple[int, str]:
        """Drop a model's drift baselines, frozen or being learned, to learn them anew.

        Return (how many were dropped, a text about it).
        """
        return self._drift.reset(model)

    def versions(self) -> list[VersionLine]:
        """Return a ``VersionLine`` for each declared replica: versions, differences, warnings."""
        return bill_of_versions(self.census.replicas.values(), self.census.versions)

    def drift_figures(self) -> dict[str, DriftFigures]:
        """Return, by model, the statistic of its answers that moved furthest from its baseline.

        For charts; a model without a frozen baseline, or without answers since, is missing.
        """
        return self._drift.figures()

    def adopt(self, incident: Incident, now: int) -> None:
        """Continue an incident stored before a restart of control, under its old id.

        Ignored, and counted as refused, if its cause has no rule or there is no room.
        """
        self.diagnosis.adopt(incident, now)

    def done(self, incident_id: str, text: str, now: int) -> bool:
        """Write the outcome of an executed act into its incident, and end its restarts' waiting.

        Return false, and do nothing, if no case of this id is kept.
        """
        case = self.diagnosis.case(incident_id)
        if case is None:
            return False
        self.acting.done(case, text, now)
        return True


__all__ = ["CallCanaries", "Finding", "Investigation", "InvestigationConfig"]
