"""An incident under investigation, with all its evidence by subject and its root replicas.

An ``Incident`` is what people read. An ``IncidentCase`` is the same incident with the records that
only the diagnosis needs: every piece of evidence by its subject, which subjects are at the root,
and which only suffer. The incident's lists are rebuilt from these records whenever something
changes, so that a cause that is refined takes its evidence with it.

Rejected: to keep only the incident and to move pieces between its two lists. When a cause changes
twice, pieces that were moved once are in the wrong list and it is not known whose they were.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

from holdfast.core.diagnose.causes.rule import During, Proof, Proven, Rules, Scope, fill
from holdfast.core.diagnose.evidence import (
    EVIDENCE_MAX,
    TIMELINE_MAX,
    About,
    Evidence,
    Incident,
    Sign,
    Stage,
    TimelineEntry,
)
from holdfast.core.failure import Cause

Subject = tuple[str, str]  # what kind of thing, and its name
SEEN_MAX: Final = 2 * EVIDENCE_MAX  # pieces kept for one case; a flood only counts
_TIMELINE_HEAD: Final = TIMELINE_MAX // 2  # how it began is kept, whatever comes later


def subject_of(about: About) -> Subject:
    """Return the most specific thing that an ``About`` names, as (kind, name).

    The first that is set of replica, filesystem, host, model; ``("fleet", "")`` if none is.
    """
    for kind in (Scope.REPLICA, Scope.FILESYSTEM, Scope.HOST, Scope.MODEL):
        name: str = getattr(about, kind.value)
        if name:
            return kind.value, name
    return "fleet", ""


@dataclass(slots=True)
class SeenEvidence:
    """A piece of evidence, and whether its replica was loading when the diagnosis took it."""

    evidence: Evidence
    loading: bool = False

    @property
    def key(self) -> tuple[Sign, Subject, str]:
        """(sign, subject, source); a later piece with an equal key replaces this one."""
        one = self.evidence
        return one.sign, subject_of(one.about), one.source


@dataclass(slots=True)
class IncidentCase:
    """The diagnosis' working record of one incident: all its evidence by sign, subject and source.

    ``roots`` are the subjects that have the cause themselves, ``subjects`` all that are concerned.
    ``write`` copies what people read into ``incident``.
    """

    incident: Incident
    roots: dict[Subject, About] = field(default_factory=dict)  # whom the cause is about
    subjects: dict[Subject, About] = field(default_factory=dict)  # whom anything is about
    seen: dict[tuple[Sign, Subject, str], SeenEvidence] = field(default_factory=dict)
    proven: frozenset[Cause] = frozenset()  # every cause that its roots' signs prove
    fresh_at: int = 0  # when something was last heard of it
    more: int = 0  # pieces that found no room
    wide: bool = False  # many replicas of one model have it: it is about the model
    acts: bool = False  # a proof of its cause may be acted on

    @property
    def cause(self) -> Cause:
        """The cause that the incident names now; it may change as evidence comes."""
        return self.incident.cause

    def add(self, seen: SeenEvidence, now: int) -> bool:
        """Add evidence, with a timeline entry if it is new; return whether it was new and taken.

        A repetition (equal key) replaces the earlier piece and returns false, as does a new one for
        a full case, which is only counted in ``more``. The incident's lists change only with
        ``write``.
        """
        evidence, key = seen.evidence, seen.key
        self.fresh_at = max(self.fresh_at, now)
        news = key not in self.seen
        if news and len(self.seen) >= SEEN_MAX:
            self.more += 1
            return False
        self.seen[key] = seen
        self.subjects.setdefault(key[1], evidence.about)
        if news:
            said = TimelineEntry(
                evidence.at, evidence.sign, str(evidence.about), evidence.text, evidence.source
            )
            self.tell(said)
        return news

    def tell(self, entry: TimelineEntry) -> None:
        """Append a line to the timeline; when it is full, a line from its middle is dropped."""
        line = self.incident.timeline
        if len(line) >= TIMELINE_MAX:
            del line[_TIMELINE_HEAD]
        line.append(entry)

    def seen_at(self, subject: Subject) -> list[SeenEvidence]:
        """Return this case's evidence about one subject, as ``SeenEvidence``; may be empty."""
        return [seen for key, seen in self.seen.items() if key[1] == subject]

    def root_replicas(self) -> list[str]:
        """Return ids of the replicas that have the cause themselves, not only its consequences.

        Empty where the cause is of a model, host or filesystem.
        """
        return [name for kind, name in self.roots if kind == Scope.REPLICA.value]

    def take_over(self, other: "IncidentCase") -> None:
        """Merge another case's evidence, subjects and timeline into this one.

        Cause and roots stay. The earlier opening time and, if this has none, the other's action are
        taken. Leaves the other case as it is.
        """
        for key, seen in other.seen.items():
            if key in self.seen or len(self.seen) < SEEN_MAX:
                self.seen.setdefault(key, seen)
            else:
                self.more += 1
        for subject, about in other.subjects.items():
            self.subjects.setdefault(subject, about)
        self.fresh_at = max(self.fresh_at, other.fresh_at)
        self.more += other.more
        mine = self.incident
        told = {*mine.timeline}
        both = [*mine.timeline, *(one for one in other.incident.timeline if one not in told)]
        mine.timeline[:] = sorted(both, key=lambda entry: entry.at)[-TIMELINE_MAX:]
        mine.opened_at = min(mine.opened_at, other.incident.opened_at)
        mine.action = mine.action or other.incident.action

    def inherit(self, root: "IncidentCase") -> None:
        """Take over another case's cause, confidence and roots; the evidence stays its own."""
        self.roots, self.wide, self.acts = dict(root.roots), root.wide, root.acts
        self.proven |= root.proven
        mine, theirs = self.incident, root.incident
        mine.cause, mine.confidence = theirs.cause, theirs.confidence
        mine.other_causes = theirs.other_causes

    def close(self, why: str, now: int) -> None:
        """Mark the incident as closed now, with the reason in its timeline; deletes nothing."""
        incident = self.incident
        incident.stage = Stage.CLOSED
        incident.closed_at = incident.changed_at = now
        self.tell(TimelineEntry(now, "closed", str(incident.about), why))

    def write(self, rules: Rules, now: int) -> None:
        """Rebuild the incident's evidence, consequences, subject, remedy and advice from it.

        Call it after changes. Cause, confidence, stage and timeline stay as they are.
        """
        incident, rule = self.incident, rules[self.cause]
        speaks = {sign for one in rule.proofs for sign in one.signs}
        events = {  # the observations that prove it: what else they showed did not follow from it
            (subject, seen.evidence.source, seen.evidence.at)
            for (sign, subject, _), seen in self.seen.items()
            if sign in speaks and subject in self.roots
        }
        evidence: list[Evidence] = []
        consequences: list[Evidence] = []
        numbers: dict[str, float] = {}
        for (_, subject, _), seen in self.seen.items():
            proves = (subject, seen.evidence.source, seen.evidence.at) in events
            (evidence if proves else consequences).append(seen.evidence)
            if subject in self.roots:
                numbers |= seen.evidence.numbers
        if not evidence:  # its root has moved since: what proved it then still does
            evidence = incident.evidence
        for one in evidence:  # what speaks for the cause has the last word on its numbers
            numbers |= one.numbers
        incident.evidence = evidence[-EVIDENCE_MAX:]
        incident.consequences = consequences[-EVIDENCE_MAX:]
        incident.failure_class = rule.failure_class
        incident.about = common(list(self.roots.values()), wide=self.wide, scope=rule.scope)
        incident.replicas = tuple(
            name for kind, name in self.subjects if kind == Scope.REPLICA.value
        )
        incident.remedy = rule.remedy
        incident.fix = fill(rule.fix, numbers)
        incident.changed_at = now


@dataclass(slots=True, frozen=True)
class Opened:
    """News for readers of the diagnosis: this incident was opened or reopened."""

    incident: Incident


@dataclass(slots=True, frozen=True)
class Changed:
    """News: this incident was rewritten: its cause, evidence, subjects or action.

    Also sent when evidence that is known already was repeated.
    """

    incident: Incident


@dataclass(slots=True, frozen=True)
class Closed:
    """News: this incident is over, or was merged into another one and is listed no more."""

    incident: Incident


News = Opened | Changed | Closed


def common(abouts: list[About], *, wide: bool, scope: Scope) -> About:
    """Return the ``About`` that an incident with these roots shows.

    One root that is not ``wide`` is returned as it is; else model, revision and, by ``scope``, host
    or filesystem where all agree, without a replica. The first root if they share nothing.
    """
    if len(abouts) == 1 and not wide:
        return abouts[0]
    first = abouts[0]

    def shared(name: str) -> str:
        value: str = getattr(first, name)
        return value if all(getattr(about, name) == value for about in abouts) else ""

    place = {scope.value: shared(scope.value)} if scope in (Scope.HOST, Scope.FILESYSTEM) else {}
    found = About(model=shared("model"), revision=shared("revision"), **place)
    return found if found != About() else first


# --- what signs prove -----------------------------------------------------------------------------


def _confidence(satisfied: Iterable[tuple[Proof, set[str]]]) -> float:
    """Noisy-or: each proof may err on its own. The same source twice errs the same way twice."""
    miss, used = 1.0, set[str]()
    for one, sources in sorted(satisfied, key=lambda pair: -pair[0].confidence):
        if sources <= used:
            continue
        miss *= 1.0 - one.confidence
        used |= sources
    return 1.0 - miss


class _Pieces:
    """Pieces of evidence by the phase in which they were found and by their sign."""

    __slots__ = ("_by",)

    def __init__(self, pieces: Iterable[SeenEvidence]) -> None:
        self._by: dict[During, dict[Sign, list[Evidence]]] = {phase: {} for phase in During}
        for piece in pieces:
            phase = During.LOADING if piece.loading else During.SERVING
            for known in (During.ANY, phase):
                self._by[known].setdefault(piece.evidence.sign, []).append(piece.evidence)

    def sources(self, one: Proof) -> set[str] | None:
        """Who says it, where a proof is satisfied; else None."""
        known = self._by[one.phase]
        if not one.signs <= known.keys() or not one.without.isdisjoint(self._by[During.ANY]):
            return None
        told = [piece for sign in one.signs for piece in known[sign]]
        numbers: dict[str, float] = {}
        for piece in told:
            for name, value in piece.numbers.items():
                numbers[name] = max(value, numbers.get(name, value))
        if any(numbers.get(name, -inf) < least for name, least in one.least.items()):
            return None
        if any(numbers.get(name, -inf) > most for name, most in one.most.items()):
            return None
        return {piece.source for piece in told}


def prove(rules: Rules, pieces: Iterable[SeenEvidence], threshold: float) -> list[Proven]:
    """Return the causes whose proofs this evidence satisfies with at least ``threshold``.

    A list of ``Proven``, the likeliest first, maybe empty. Confidences of several satisfied proofs
    add up only where they come from different sources.
    """
    known = _Pieces(pieces)
    found: list[Proven] = []
    for cause, rule in rules.items():
        satisfied = [
            (one, sources) for one in rule.proofs if (sources := known.sources(one)) is not None
        ]
        confidence = _confidence(satisfied)
        if satisfied and confidence >= threshold:
            signs = frozenset(sign for one, _ in satisfied for sign in one.signs)
            acts = any(one.acts for one, _ in satisfied)
            found.append(Proven(cause, confidence, acts, signs))
    return sorted(found, key=lambda one: (-one.confidence, -len(one.signs)))


def unexplained(proven: list[Proven], reach: Mapping[Cause, frozenset[Cause]]) -> list[Proven]:
    """Return those of the proven causes that none of the others explains: the roots.

    ``reach`` is what ``closure`` returned.
    """
    return [
        one
        for one in proven
        if not any(one.cause in reach[other.cause] for other in proven if other is not one)
    ]


__all__ = [
    "SEEN_MAX",
    "Changed",
    "Closed",
    "IncidentCase",
    "News",
    "Opened",
    "SeenEvidence",
    "Subject",
    "common",
    "prove",
    "subject_of",
    "unexplained",
]
