"""When items that were on a lost replica run again: one at a time, with no other item beside them.

    an item is lost with its replica   ─► suspect: so were all others on that replica
    a suspect is lost once more        ─► poison: nothing else of the model's batch work ran

While suspects wait, no new items begin; once the last one under way has ended, suspects run one
after the other. After ``alone_s`` of that the others have as long a time to themselves, so that a
full replica that was lost for another reason, such as a spot notice, costs half the pace at most.

Rejected: trying suspects together, in halves. It finds the one faster, and each half that holds it
costs one more replica. Rejected: trying them beside new items. Whoever else is lost with a suspect
leaves it open which of them did it, and asking once more costs a third replica.
"""

from dataclasses import dataclass

from holdfast.core.types import nanos, require


@dataclass(slots=True, frozen=True)
class SuspectConfig:
    """How long suspects may keep the other items of their model waiting."""

    alone_s: float = 30.0  # several answers long: emptying the slots before costs about one

    def __post_init__(self) -> None:
        given = self.alone_s
        require(given > 0, "suspects.alone_s", f"is {given}", "use more than 0 seconds")


class SuspectTurns:
    """Says which items of one model may begin: new ones, or a suspect on its own.

    Counts what waits and runs, of all who send items of the model: they share one object.
    """

    __slots__ = ("_alone", "_alone_since", "_open_until", "running", "suspect_runs", "waiting")

    def __init__(self, config: SuspectConfig | None = None) -> None:
        self._alone = nanos((config or SuspectConfig()).alone_s)
        self.waiting = 0  # suspects
        self.running = 0  # items, a suspect included
        self.suspect_runs = False
        self._alone_since: int | None = None  # when the first of these suspects began
        self._open_until = 0

    def may_begin(self, now: int, *, suspect: bool) -> bool:
        """Whether a suspect, or an item that is none, may begin now. Claims nothing."""
        if self.suspect_runs:
            return False
        if not self.waiting:
            return not suspect
        turn = now >= self._open_until
        return turn and not self.running if suspect else not turn

    def begin(self, now: int, *, suspect: bool) -> None:
        """Count an item that begins; a suspect waits no longer."""
        self.running += 1
        if suspect:
            self.waiting -= 1
            self.suspect_runs = True
            if self._alone_since is None:
                self._alone_since = now

    def end(self, now: int, *, suspect: bool) -> None:
        """Count the end of an item that began."""
        self.running -= 1
        if suspect:
            self.suspect_runs = False
            if not self.waiting:
                self._alone_since = None
            elif self._alone_since is not None and now - self._alone_since >= self._alone:
                self._alone_since = None
                self._open_until = now + self._alone


__all__ = ["SuspectConfig", "SuspectTurns"]
