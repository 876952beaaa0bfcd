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
    """Stores the current signs of each subject and all open or recently closed cases."""

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
        """Every case that is not closed, the oldest first."""
        return [case for case in self.cases.values() if case.incident.stage is not Stage.CLOSED]

    def acute_at(self, subject: Subject) -> IncidentCase | None:
        """The open case of an event at a subject, or ``None``; standing conditions do not count."""
        for case in self.open():
            if subject in case.roots and not self._rules[case.cause].standing:
                return case
        return None

    def note(self, subject: Subject, seen: SeenEvidence, now: int) -> None:
        """Store a sign of a subject, replacing the same sign of the same source; opens no case.

        Ignored for a new subject when there are too many.
        """
        if subject in self._live or len(self._live) < SUBJECTS_MAX:
            one = seen.evidence
            self._live.setdefault(subject, {})[one.sign, one.source] = now, seen

    def live_at(self, subject: Subject, now: int) -> list[SeenEvidence]:
        """The evidence of a subject that was seen or repeated within the window."""
        since = now - self._window
        return [seen for at, seen in self._live.get(subject, {}).values() if at >= since]

    def explains_on(self, case: IncidentCase, now: int) -> bool:
        """Whether a case still explains what comes: one about hosts only while its signs last.

        Else a replica that stays ill would keep the incident of a host open that is well again.
        """
        places = all(kind == Scope.HOST.value for kind, _ in case.roots)
        return not places or any(self.live_at(subject, now) for subject in case.roots)

    def forget(self, subject: Subject) -> None:
        """Drop all current signs of a subject that is gone or became ready."""
        self._live.pop(subject, None)

    def file(self, subject: Subject, about: About, root: Proven, now: int) -> IncidentCase | None:
        """Open a new case under the next incident number; ``None`` (and counted) without room."""
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
        """Rebuild the case of an incident stored before a restart, and go on numbering after it.

        ``None`` if its cause is unknown or there is no room.
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
        """Delete a case and its incident after it was merged into another one."""
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
        """Delete expired signs, and cases closed too long ago to be reopened.

        Incidents stay listed.
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
