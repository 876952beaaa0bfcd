"""Keeps a diagnosis' current signs by subject and its incident cases by number, within bounds.

Signs are kept for as long as a detector that still sees them would have repeated them. Cases are
kept while they are open and for as long as the same failure could reopen them; incidents stay
longer, for people, until there are too many and the oldest closed one goes.
"""

from typing import Final

from holdfast.core.diagnose.causes.rule import Proven, Rules, Scope
from holdfast.core.diagnose.evidence import INCIDENTS_MAX, About, Incident, Sign, Stage
from holdfast.core.diagnose.incident_case import IncidentCase, SeenEvidence, Subject, subject_of
from holdfast.core.types import SECOND

SUBJECTS_MAX: Final = 20_000  # things of which live signs are kept; beyond it only cases count
_SWEEP: Final = 10 * SECOND


class CaseBook:
    """The store of one ``Diagnosis``: current signs by subject, cases and incidents by id.

    A case is kept while open and for as long as it may be reopened; its ``Incident`` stays listed
    longer, up to a bound. ``refused`` counts incidents for which there was no room.
    """

    __slots__ = (
        *("_again", "_live", "_next", "_rules", "_swept_at", "_window"),
        *("cases", "incidents", "refused"),
    )

    def __init__(self, rules: Rules, *, window: int, again: int, first_id: int) -> None:
        self._rules = rules
        self._window = window  # how long a sign holds that nobody repeats
        self._again = again  # how long a closed case may be opened again
        self._next = first_id
        self._swept_at = 0
        self._live: dict[Subject, dict[tuple[Sign, str], tuple[int, SeenEvidence]]] = {}
        self.cases: dict[str, IncidentCase] = {}  # open ones, and closed ones that may come back
        self.incidents: dict[str, Incident] = {}
        self.refused = 0  # incidents for which there was no room

    def open(self) -> list[IncidentCase]:
        """Return every ``IncidentCase`` that is not closed, in the order of filing."""
        return [case for case in self.cases.values() if case.incident.stage is not Stage.CLOSED]

    def acute_at(self, subject: Subject) -> IncidentCase | None:
        """Return the first open case that has this subject at its root, or ``None``.

        Cases of standing conditions (such as version skew) do not count.
        """
        for case in self.open():
            if subject in case.roots and not self._rules[case.cause].standing:
                return case
        return None

    def note(self, subject: Subject, seen: SeenEvidence, now: int) -> None:
        """Store a sign of a subject, replacing the same sign of the same source; opens no case.

        A sign of a new subject is dropped silently once ``SUBJECTS_MAX`` subjects have signs.
        """
        if subject in self._live or len(self._live) < SUBJECTS_MAX:
            one = seen.evidence
            self._live.setdefault(subject, {})[one.sign, one.source] = now, seen

    def live_at(self, subject: Subject, now: int) -> list[SeenEvidence]:
        """Return the signs of a subject (``SeenEvidence``) noted within the window before ``now``.

        Includes signs that belong to a case already; empty if there is none.
        """
        since = now - self._window
        return [seen for at, seen in self._live.get(subject, {}).values() if at >= since]

    def explains_on(self, case: IncidentCase, now: int) -> bool:
        """Whether later evidence may still be attached to this case as its consequence.

        Always true, except for a case whose roots are all hosts: only while a sign of one of them
        is live, so that a replica that stays ill does not keep the incident of a recovered host
        open.
        """
        places = all(kind == Scope.HOST.value for kind, _ in case.roots)
        return not places or any(self.live_at(subject, now) for subject in case.roots)

    def forget(self, subject: Subject) -> None:
        """Drop all current signs of a subject that is gone or became ready; its cases stay."""
        self._live.pop(subject, None)

    def file(self, subject: Subject, about: About, root: Proven, now: int) -> IncidentCase | None:
        """Open and return a new ``IncidentCase`` under the next incident number (``inc-000001``).

        If all kept incidents are open and their number is at its bound, return ``None`` and count
        it in ``refused``; else the incident that closed first makes room. Adds no evidence.
        """
        if len(self.incidents) >= INCIDENTS_MAX and not self._make_room():
            self.refused += 1
            return None
        name = f"inc-{self._next:06d}"
        self._next += 1
        kind = self._rules[root.cause].failure_class
        incident = Incident(name, root.cause, kind, about, now, root.confidence, changed_at=now)
        case = IncidentCase(incident, roots={subject: about}, fresh_at=now)
        self.cases[name], self.incidents[name] = case, incident
        return case

    def adopt(self, incident: Incident, now: int) -> IncidentCase | None:
        """Rebuild and return the case of an incident that was stored before a restart.

        Numbering goes on after it. ``None``, counted in ``refused``, if its cause has no rule or
        there is no room.
        """
        room = len(self.incidents) < INCIDENTS_MAX or self._make_room()
        if incident.cause not in self._rules or not room:
            self.refused += 1
            return None
        case = IncidentCase(incident, fresh_at=now, proven=frozenset((incident.cause,)))
        for one in (*incident.evidence, *incident.consequences):
            seen = SeenEvidence(one)
            case.seen[seen.key] = seen
            case.subjects.setdefault(seen.key[1], one.about)
        for one in incident.evidence:
            case.roots.setdefault(subject_of(one.about), one.about)
        if not case.roots:
            case.roots[subject_of(incident.about)] = incident.about
        case.wide = len(case.root_replicas()) > 1 and not incident.about.replica
        self.cases[incident.id], self.incidents[incident.id] = case, incident
        number = incident.id.rpartition("-")[2]
        if number.isdecimal():
            self._next = max(self._next, int(number) + 1)
        return case

    def drop(self, case: IncidentCase) -> None:
        """Delete a case and its incident from the lists after it was merged into another one.

        Marks nothing as closed; raises ``KeyError`` for one that is not kept.
        """
        del self.cases[case.incident.id], self.incidents[case.incident.id]

    def _make_room(self) -> bool:
        closed = (one for one in self.incidents.values() if one.stage is Stage.CLOSED)
        oldest = min(closed, key=lambda one: one.closed_at or 0, default=None)
        if oldest is None:
            return False
        del self.incidents[oldest.id]
        self.cases.pop(oldest.id, None)
        return True

    def sweep(self, now: int) -> None:
        """Delete signs past the window, and cases closed too long ago to be reopened.

        Does so at most once in ten seconds, else nothing. Closed incidents stay listed.
        """
        if now - self._swept_at < _SWEEP:
            return
        self._swept_at = now
        for subject, book in list(self._live.items()):
            for key in [key for key, (at, _) in book.items() if at < now - self._window]:
                del book[key]
            if not book:
                del self._live[subject]
        for name, case in list(self.cases.items()):
            closed = case.incident.closed_at
            if closed is not None and closed < now - self._again:
                del self.cases[name]


__all__ = ["SUBJECTS_MAX", "CaseBook"]
