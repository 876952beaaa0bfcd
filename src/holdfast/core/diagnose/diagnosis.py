"""Joins evidence into incidents, and tells causes from their consequences.

    evidence ─► what do the signs of its subject prove? ─► which of it follows from nothing else?
             ─► does that follow from an open incident elsewhere? attach : this subject's incident

The whole method is three questions, asked again with every piece of evidence. *What is proven?*
Rules name the signs that prove a cause. *What is the root?* Among proven causes the root is the one
that no other proven one explains. *Whose failure is it?* One replica has one failure at a time; a
failure elsewhere along ``dependency_graph`` takes it over where its cause explains this one.
Standing conditions, such as two versions side by side, have their own incident beside that.

Replicas of one model share an incident while the times overlap in which they are ill, or where
their revision is proved to be the cause. A common model is no proof: what befalls one replica after
the other has happened twice.

An incident opens as soon as its cause is more likely than not, because a replica that is taken out
within a second leaves little evidence. Better evidence refines it later and the timeline says so.
Rejected: to wait some seconds and judge once. People who are called meanwhile find nothing, and the
consequences arrive first as often as not.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import Final

from holdfast.core.diagnose.case_book import CaseBook
from holdfast.core.diagnose.causes.rule import Proven, Rules, Scope, closure
from holdfast.core.diagnose.dependency_graph import DependencyGraph
from holdfast.core.diagnose.evidence import (
    About,
    Evidence,
    Incident,
    Sign,
    Stage,
    TimelineEntry,
)
from holdfast.core.diagnose.facts import Fact, Gone, HostConditionSeen, StateChanged
from holdfast.core.diagnose.incident_case import (
    Changed,
    Closed,
    IncidentCase,
    News,
    Opened,
    SeenEvidence,
    Subject,
    prove,
    subject_of,
    unexplained,
)
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.failure import Cause
from holdfast.core.types import SECOND, HostCondition, State, nanos, require

REVISIONS_MAX: Final = 8  # named in one incident
_REPLICA: Final = Scope.REPLICA.value
_SEEN_LATE: Final = 5 * SECOND  # harm begins before its first sign: a canary takes so long to fail
_SAID_AGAIN: Final = 45 * SECOND  # a sign that holds is said every 30 s, and may be told late


@dataclass(slots=True, frozen=True)
class DiagnosisConfig:
    """Settings: thresholds and times by which evidence opens, changes and closes incidents.

    The same for all causes. Checked when built: raises ``ConfigError``.
    """

    open_at: float = 0.5  # more likely than not; a replica out of rotation leaves little evidence
    prefer_by: float = 0.1  # a rival cause has to be clearly likelier to replace the named one
    window_s: float = 120.0  # signs are repeated every 30 s: four missed ones mean it is over
    close_s: float = 120.0  # the same silence ends an incident
    again_s: float = 600.0  # the same failure within ten minutes was never mended
    lag_s: float = 600.0  # consequences may be seen this much before their cause, no more
    wide_share: float = 0.5  # of a model's replicas, with one cause at one time: the model has it

    def __post_init__(self) -> None:
        for name in ("open_at", "wide_share"):
            value = getattr(self, name)
            require(0 < value <= 1, f"diagnosis.{name}", f"is {value}", "use a share in (0, 1]")
        by = self.prefer_by
        require(0 <= by < 1, "diagnosis.prefer_by", f"is {by}", "use a share in [0, 1)")
        for name in ("window_s", "close_s", "again_s", "lag_s"):
            value = getattr(self, name)
            fits = 0 < value <= 86_400
            require(fits, f"diagnosis.{name}", f"is {value}", "use seconds up to a day")


class Diagnosis:
    """Turns the evidence of one fleet into incidents: opens, changes, merges and closes them.

    Keeps current signs, cases and incidents in memory, up to a bound; decides no remedy.
    """

    __slots__ = (
        *("_census", "_config", "_docket", "_news", "_now", "_reach", "_relevant", "_rules"),
        "relations",
    )

    def __init__(
        self, config: DiagnosisConfig, rules: Rules, census: ReplicaRegistry, *, first_id: int = 1
    ) -> None:
        self._config = config
        self._rules = rules
        self._census = census
        self._reach = closure(rules)
        self._relevant = {cause: self._signs_around(cause) for cause in rules}
        self._docket = CaseBook(
            rules,
            window=nanos(config.window_s),
            again=nanos(config.again_s),
            first_id=first_id,
        )
        self.relations = DependencyGraph(rules, census)
        self._news: dict[str, News] = {}
        self._now = 0

    @property
    def incidents(self) -> dict[str, Incident]:
        """Open incidents and closed ones still kept, by id; the live dict, to be read only."""
        return self._docket.incidents

    @property
    def refused(self) -> int:
        """How many incidents were not opened or adopted because there was no room or no rule."""
        return self._docket.refused

    def _signs_around(self, cause: Cause) -> frozenset[Sign]:
        """Signs that belong to a cause: its proofs, its consequences, and what it explains."""
        signs = set(self._rules[cause].consequences)
        for one in (cause, *self._reach[cause]):
            rule = self._rules.get(one)
            if rule is not None:
                signs.update(*(proof.signs for proof in rule.proofs), rule.consequences)
        return frozenset(signs)

    # --- in ---------------------------------------------------------------------------------------

    def saw(self, fact: Fact, now: int) -> None:
        """Take a fact as context: states, phases, chains, blame in logs; opens and closes nothing.

        A replica that is ready or gone, or a host that is ready, loses its current signs.
        """
        self._now = max(self._now, now)
        self.relations.take(fact, self._now)
        if isinstance(fact, Gone):
            self._docket.forget((_REPLICA, fact.replica))
        elif isinstance(fact, StateChanged) and fact.state is State.READY:
            # It proved itself: what follows is another failure, or the same one said anew.
            self._docket.forget((_REPLICA, fact.replica))
        elif isinstance(fact, HostConditionSeen) and fact.condition is HostCondition.READY:
            self._docket.forget((Scope.HOST.value, fact.host))

    def take(self, evidence: Evidence, now: int) -> list[News]:
        """Take one piece of evidence; return news of the incidents it opened, changed or closed.

        A list of ``Opened``, ``Changed`` and ``Closed``, at most one for each incident. Empty if
        the evidence proves nothing yet; it is then kept for a while.
        """
        self._now = max(self._now, now)
        subject = subject_of(evidence.about)
        seen = SeenEvidence(evidence, self.relations.loading(evidence.about.replica))
        self._docket.note(subject, seen, self._now)
        if not self._place(subject, seen):
            self._attach_somewhere(subject, seen)
        return self._told()

    def look(self, now: int) -> list[News]:
        """Close incidents of which nothing was seen for a while; return them as ``Closed``.

        An incident stays open while one of its root replicas is neither ready nor leaving. Also
        drops expired signs; to be called about once a second.
        """
        self._now = max(self._now, now)
        quiet = self._now - nanos(self._config.close_s)
        for case in self._docket.open():
            if case.fresh_at <= quiet and all(map(self.relations.over, case.root_replicas())):
                self._close(case, "nothing more was seen of it")
        self._docket.sweep(self._now)
        return self._told()

    def adopt(self, incident: Incident, now: int) -> None:
        """Continue an incident that was stored before a restart, with its id; it is no news.

        Ignored, and counted in ``refused``, if its cause has no rule or there is no room.
        """
        self._now = max(self._now, now)
        case = self._docket.adopt(incident, self._now)
        if case is None:
            return
        for replica in incident.replicas:
            case.subjects.setdefault((_REPLICA, replica), self._census.about(replica))

    def case(self, incident_id: str) -> IncidentCase | None:
        """Return the case behind an incident id; ``None`` if unknown, merged or closed long ago."""
        return self._docket.cases.get(incident_id)

    def open_at(self, replica: str) -> list[IncidentCase]:
        """Return the open cases that have this replica at their root; may be empty."""
        subject = (_REPLICA, replica)
        return [case for case in self._docket.open() if subject in case.roots]

    # --- whose failure is it ----------------------------------------------------------------------

    def _place(self, subject: Subject, seen: SeenEvidence) -> bool:
        """Give the evidence to the incidents of the causes that it helps to prove."""
        own, threshold = self._docket.acute_at(subject), self._config.open_at
        proven = prove(self._rules, self._docket.live_at(subject, self._now), threshold)
        if own is not None and self._is_other_news(own, subject, proven):
            self._part(own, subject)
            own = None
        if own is not None:
            known = {piece.key: piece for piece in own.seen_at(subject)}
            known.update((piece.key, piece) for piece in self._docket.live_at(subject, self._now))
            proven = prove(self._rules, known.values(), threshold)
        roots = unexplained(proven, self._reach)
        acute = [one for one in roots if not self._rules[one.cause].standing]
        standing = [one for one in roots if self._rules[one.cause].standing]
        sign, placed = seen.evidence.sign, False
        for root in (*acute[:1], *standing):
            rivals = acute[1:] if root in acute else []
            if any(sign in self._relevant[one.cause] for one in (root, *rivals)):
                self._give(subject, seen, root, proven, rivals)
                placed = True
        return placed

    def _give(
        self,
        subject: Subject,
        seen: SeenEvidence,
        root: Proven,
        proven: list[Proven],
        rivals: list[Proven],
    ) -> None:
        about = seen.evidence.about
        standing = self._rules[root.cause].standing
        own = None if standing else self._docket.acute_at(subject)
        causes = {root.cause} if standing else self._acute_causes(proven)
        above = self._above(subject, about, root.cause, causes, own)
        if above is not None:
            if own is not None:
                above = self._absorb(above, own)
            self._add(above, seen)
            return
        case = own or self._case_for(subject, about, root)
        if case is None:
            case = self._open_new(subject, about, root)
            if case is None:
                return
        self._add(case, seen)
        case.roots.setdefault(subject, about)
        case.proven |= causes
        self._judge(case, root, rivals)
        self._gather(case)

    def _acute_causes(self, proven: Iterable[Proven]) -> set[Cause]:
        return {one.cause for one in proven if not self._rules[one.cause].standing}

    def _is_other_news(self, own: IncidentCase, subject: Subject, proven: list[Proven]) -> bool:
        """Whether the replica recovered since, and what is proven now has another cause."""
        if subject[0] != _REPLICA:
            return False
        heard = own.fresh_at
        if own.wide:  # of others more may have been heard since: they have their own story
            heard = max((seen.evidence.at for seen in own.seen_at(subject)), default=heard)
        if self.relations.ready_at.get(subject[1], -1) <= heard:
            return False
        known = {own.cause, *own.proven}
        return bool(proven) and not any(self._akin(one.cause, known) for one in proven)

    def _part(self, own: IncidentCase, subject: Subject) -> None:
        """Its subject is through with it; where others have it too, it goes on without this one."""
        about = own.roots[subject]
        told = f"{about if own.wide else own.incident.about} was ready since"
        if not own.wide or len(own.roots) == 1:
            self._close(own, f"{told}, and something else began")
            return
        del own.roots[subject]
        own.tell(
            TimelineEntry(self._now, "parted", str(about), f"{told}, and has something else now")
        )
        own.write(self._rules, self._now)

    def _akin(self, cause: Cause, others: Iterable[Cause]) -> bool:
        """Whether one of them can be the same failure, seen better or worse."""
        return any(
            cause == other or cause in self._reach[other] or other in self._reach[cause]
            for other in others
        )

    def _above(
        self,
        subject: Subject,
        about: About,
        root: Cause,
        causes: set[Cause],
        own: IncidentCase | None,
    ) -> IncidentCase | None:
        """The open case elsewhere from which this follows, the likeliest one."""
        best: IncidentCase | None = None
        for case in self._docket.open():
            if case is own or not self._docket.explains_on(case, self._now):
                continue
            if not self._follows(subject, about, root, causes, case):
                continue
            if best is None or case.incident.confidence > best.incident.confidence:
                best = case
        return best

    def _follows(
        self,
        subject: Subject,
        about: About,
        root: Cause,
        causes: Iterable[Cause],
        case: IncidentCase,
    ) -> bool:
        """Whether a cause of this subject is a consequence of a case.

        A replica whose log blames another is ill of that other in all that it shows, however the
        rest of its signs would be read if it stood alone.
        """
        explained = self._reach[case.cause]
        if root in explained:
            if self._rules[root].shared and not self.relations.houses_all(about.model, case):
                return False
            return self.relations.suffers(subject, about, case, self._now)
        if subject in case.roots or self._rules[case.cause].standing:
            return False
        unlike = explained.isdisjoint(causes)  # then only a name counts, and only one way
        for one in case.root_replicas():
            back = unlike and self.relations.blames(one, about.replica, self._now)
            if not back and self.relations.blames(about.replica, one, self._now, named=unlike):
                return True
        return False

    def _case_for(self, subject: Subject, about: About, root: Proven) -> IncidentCase | None:
        """An incident that this cause of this subject belongs to: open, shared, or closed late."""
        for case in self._docket.open():
            if subject in case.roots and (
                case.cause == root.cause or case.cause in self._reach[root.cause]
            ):
                return case
        scope = self._rules[root.cause].scope
        if scope is not Scope.REPLICA:
            for case in self._docket.open():
                if case.cause == root.cause and self._shares(subject, about, case):
                    return case
        harm = self._span(subject, self._docket.live_at(subject, self._now))
        for case in self._docket.open():
            alike = case.wide and case.cause == root.cause and self._same_kin(case, about)
            if alike and self._is_one_failure(case, harm):
                return case
        return self._reopened(subject, root.cause)

    def _shares(self, subject: Subject, about: About, case: IncidentCase) -> bool:
        """Whether they have the place in common that the cause of a case sits in."""
        chained = subject[0] == Scope.MODEL.value
        return self.relations.shares(about, case) or (
            chained and self.relations.suffers(subject, about, case, self._now)
        )

    def _reopened(self, subject: Subject, cause: Cause) -> IncidentCase | None:
        since = self._now - nanos(self._config.again_s)
        for case in reversed(self._docket.cases.values()):
            incident = case.incident
            if incident.closed_at is None or incident.closed_at < since:
                continue
            if subject in case.roots and self._akin(cause, (case.cause,)):
                if cause != case.cause and self._unlike_since(case, subject):
                    continue
                incident.stage, incident.closed_at = Stage.OPEN, None
                text = "the same failure is back"
                case.tell(TimelineEntry(self._now, "reopened", str(incident.about), text))
                self._news[incident.id] = Opened(incident)
                return case
        return None

    def _unlike_since(self, case: IncidentCase, subject: Subject) -> bool:
        """Whether its subject was well in between, so that a merely similar cause is a new one."""
        return self.relations.ready_at.get(subject[1], -1) > case.fresh_at

    def _same_kin(self, case: IncidentCase, about: About) -> bool:
        shared = case.incident.about
        return bool(about.replica and about.model) and (shared.model, shared.revision) == (
            about.model,
            about.revision,
        )

    def _attach_somewhere(self, subject: Subject, seen: SeenEvidence) -> None:
        """Evidence that proves nothing alone follows from something, or waits for more."""
        sign, about = seen.evidence.sign, seen.evidence.about
        own = self._docket.acute_at(subject)
        if own is not None:
            self._add(own, seen)
            return
        best: IncidentCase | None = None
        for case in self._docket.open():
            if sign not in self._relevant[case.cause]:
                continue
            if not self._docket.explains_on(case, self._now):
                continue
            if not self.relations.suffers(subject, about, case, self._now):
                continue
            if best is None or case.incident.confidence > best.incident.confidence:
                best = case
        if best is not None:
            self._add(best, seen)

    # --- what happens to a case -------------------------------------------------------------------

    def _open_new(self, subject: Subject, about: About, root: Proven) -> IncidentCase | None:
        case = self._docket.file(subject, about, root, self._now)
        if case is not None:
            case.incident.other_revisions = self._census.other_revisions(about)[:REVISIONS_MAX]
            text = f"{_plain(root.cause)}, confidence {root.confidence:.0%}"
            case.tell(TimelineEntry(self._now, "cause", str(about), text))
            self._news[case.incident.id] = Opened(case.incident)
            speaks = {sign for one in self._rules[root.cause].proofs for sign in one.signs}
            for seen in self._docket.live_at(subject, self._now):
                if seen.evidence.sign in speaks:  # also what was taken for another's consequence
                    case.add(seen, self._now)
        return case

    def _add(self, case: IncidentCase, seen: SeenEvidence) -> None:
        case.add(seen, self._now)
        case.write(self._rules, self._now)
        self._news.setdefault(case.incident.id, Changed(case.incident))

    def _judge(self, case: IncidentCase, root: Proven, rivals: list[Proven]) -> None:
        """Name the cause: the one that explains the others, or the clearly likelier one."""
        incident = case.incident
        if root.cause == incident.cause:
            incident.confidence = max(incident.confidence, root.confidence)
            case.acts = case.acts or root.acts
        elif incident.cause not in self._reach[root.cause] and (
            root.cause in self._reach[incident.cause]
            or root.confidence < incident.confidence + self._config.prefer_by
        ):
            rivals = [root, *rivals]
        else:
            before, after = _plain(incident.cause), _plain(root.cause)
            incident.cause, incident.confidence = root.cause, root.confidence
            case.acts = root.acts
            text = f"{after}, confidence {root.confidence:.0%}; before: {before}"
            case.tell(TimelineEntry(self._now, "cause", str(incident.about), text))
        others = (one.cause for one in rivals)
        incident.other_causes = tuple(
            one for one in others if one not in (incident.cause, *self._reach[incident.cause])
        )
        case.write(self._rules, self._now)

    def _gather(self, case: IncidentCase) -> None:
        """What this case explains, or shares with its like, becomes part of it."""
        earliest = self._now - nanos(self._config.lag_s)
        for other in self._lately(case):
            if other is case or not self._stands(other) or other.incident.opened_at < earliest:
                continue
            if all(
                self._follows(subject, about, other.cause, other.proven, case)
                for subject, about in other.roots.items()
            ):
                case = self._absorb(case, other)
        case = self._widen(case)
        self._unite(case)

    def _lately(self, case: IncidentCase) -> list[IncidentCase]:
        """Cases that it may explain: open ones, and where it sits in a place, those just closed.

        What several replicas of a model have is about the model, unless all of them are on the host
        or filesystem that this case is about: that is often known a moment after they failed.
        """
        scope = self._rules[case.cause].scope
        if scope is Scope.REPLICA:
            return self._docket.open()
        placed = scope in (Scope.HOST, Scope.FILESYSTEM)
        return [
            one
            for one in self._docket.cases.values()
            if not one.wide or one is case or (placed and one.incident.stage is not Stage.CLOSED)
        ]

    def _widen(self, case: IncidentCase) -> IncidentCase:
        """Several replicas of one model with one cause at one time are one failure of the model.

        One after the other they are so only where their revision is the cause.
        """
        scope = self._rules[case.cause].scope
        if case.wide or scope is Scope.MODEL or not case.incident.about.replica:
            return case
        kin = case.incident.about.model, case.incident.about.revision
        if not kin[0]:
            return case
        since, harm = self._now - nanos(self._config.window_s), self._harm(case)
        alike = [
            other
            for other in self._docket.open()
            if other.cause == case.cause
            and (other.incident.about.model, other.incident.about.revision) == kin
            and other.root_replicas()
            and other.incident.opened_at >= since
            and self._is_one_failure(other, harm)
        ]
        ill = set(chain.from_iterable(other.root_replicas() for other in alike))
        replicas = {case.incident.about.replica, *self._census.peers(case.incident.about.replica)}
        if len(ill) < 2 or len(ill) < self._config.wide_share * len(replicas):
            return case
        case.wide = True
        for other in alike:
            if other is not case and self._stands(other):
                case.roots.update(other.roots)
                case = self._absorb(case, other)
        text = f"{len(ill)} of {len(replicas)} replicas have it: it is about {kin[0]}"
        case.tell(TimelineEntry(self._now, "cause", kin[0], text))
        case.write(self._rules, self._now)
        return case

    def _unite(self, case: IncidentCase) -> None:
        """Never two open incidents of one cause about one thing, or about one and its successor."""
        for other in self._docket.open():
            if other is not case and self._is_same(case, other) and self._stands(other):
                case.roots.update(other.roots)
                case.wide = case.wide or other.wide
                case = self._absorb(case, other)

    def _is_same(self, case: IncidentCase, other: IncidentCase) -> bool:
        """Whether another case of the same cause is about the same thing, or its predecessor."""
        about = case.incident.about
        if other.cause != case.cause:
            return False
        if self._same_kin(other, about) and self.relations.replaced(other):
            return True
        alike = other.incident.about == about
        if not other.wide:
            return alike
        return (alike or self._same_kin(other, about)) and self._is_one_failure(
            other, self._harm(case)
        )

    def _is_one_failure(self, case: IncidentCase, harm: tuple[float, float]) -> bool:
        """Whether a case's replicas were ill during ``harm``, or their revision is the cause.

        That they have a model in common proves nothing: two replicas that fail one after the other
        failed twice.
        """
        began, ended = self._harm(case)
        overlap = harm[0] - _SEEN_LATE <= ended and began - _SEEN_LATE <= harm[1]
        return overlap or self._is_of_revision(case)

    def _is_of_revision(self, case: IncidentCase) -> bool:
        """Whether only replicas of one revision have the cause, beside some of another revision."""
        first = next(iter(case.roots.values()))
        others = {
            (_REPLICA, name)
            for name in self._census.of_model(first.model)
            if self._census.replicas[name].revision not in ("", first.revision)
        }
        ill = [one for one in self._docket.open() if one.cause == case.cause]
        return bool(others) and not any(others & one.roots.keys() for one in ill)

    def _harm(self, case: IncidentCase) -> tuple[float, float]:
        """From when to when (ns) the replicas at a case's root are ill, or were last."""
        subjects = [subject for subject in case.roots if subject[0] == _REPLICA]
        spans = [self._span(subject, case.seen_at(subject)) for subject in subjects]
        began = min((span[0] for span in spans), default=-inf)
        return began, max((span[1] for span in spans), default=inf)

    def _span(self, subject: Subject, seen: Iterable[SeenEvidence]) -> tuple[float, float]:
        """From when to when (ns) a replica is ill, by these signs of it; since it was ready last.

        It ends when the replica is ready, or when a sign that holds would have been said again.
        """
        ready = self.relations.ready_at.get(subject[1], -1)
        times = sorted(one.evidence.at for one in seen)
        if not times:
            return -inf, inf
        began = next((at for at in times if at > ready), times[0])
        if not self.relations.over(subject[1]):
            return began, inf
        return began, ready if ready > times[-1] else times[-1] + _SAID_AGAIN

    def _stands(self, case: IncidentCase) -> bool:
        """Whether it is still a case of its own."""
        return self._docket.cases.get(case.incident.id) is case

    def _absorb(self, root: IncidentCase, other: IncidentCase) -> IncidentCase:
        """One incident out of two: the cause of the first, under the name of the older one."""
        keep, gone = root, other
        if (other.incident.opened_at, other.incident.id) < (
            root.incident.opened_at,
            root.incident.id,
        ):
            keep, gone = other, root
            keep.inherit(root)
        keep.take_over(gone)
        mine, theirs = keep.incident, gone.incident
        if mine.stage is Stage.CLOSED:
            mine.stage, mine.closed_at = Stage.OPEN, None
            self._news[mine.id] = Opened(mine)
        was = f"what was seen as {_plain(theirs.cause)} of {theirs.about}"
        keep.tell(TimelineEntry(self._now, "joined", str(theirs.about), f"{was} is part of this"))
        keep.write(self._rules, self._now)
        self._news.setdefault(mine.id, Changed(mine))
        self._docket.drop(gone)
        theirs.stage, theirs.closed_at, theirs.changed_at = Stage.CLOSED, self._now, self._now
        gone.tell(TimelineEntry(self._now, "joined", str(theirs.about), f"part of {mine.id}"))
        if isinstance(self._news.pop(theirs.id, None), Opened):
            return keep  # nobody has heard of it yet
        self._news[theirs.id] = Closed(theirs)
        return keep

    def _close(self, case: IncidentCase, why: str) -> None:
        case.close(why, self._now)
        self._news[case.incident.id] = Closed(case.incident)

    def _told(self) -> list[News]:
        news, self._news = list(self._news.values()), {}
        return news


def _plain(cause: Cause) -> str:
    return cause.value.replace("_", " ")


__all__ = ["Changed", "Closed", "Diagnosis", "DiagnosisConfig", "News", "Opened"]
