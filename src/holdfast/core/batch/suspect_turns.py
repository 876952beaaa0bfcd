"""When items that were on a lost replica run again: one at a time, with no other item beside them.

    an item is lost with its replica   ─► suspect: so were all others on that replica
    a suspect is lost once more        ─► poison: nothing else of the model's batch work ran

While suspects wait, no new items begin; once the last one under way has ended, suspects run one
after the other. After ``alone_s`` of that the others have as long a time to themselves, so that a
full replica that was lost for another reason, such as a spot notice, costs half the pace at most.

A replica that is ending still takes requests for some milliseconds, and loses them. A suspect that
is sent there then would pass for poison, so none begins within ``settle_s`` of the last loss.

Rejected: trying suspects together, in halves. It finds the one faster, and each half that holds it
costs one more replica. Rejected: trying them beside new items. Whoever else is lost with a suspect
leaves it open which of them did it, and asking once more costs a third replica.
"""

from dataclasses import dataclass

from holdfast.core.types import nanos, require


@dataclass(slots=True, frozen=True)
class SuspectConfig:
    """How long suspects hold up other items, and how long they wait once a replica was lost."""

    alone_s: float = 30.0  # several answers long: emptying the slots before costs about one
    settle_s: float = 1.0  # a process that ends has closed its port by then, even on a busy host

    def __post_init__(self) -> None:
        fix = "use more than 0 seconds"
        require(self.alone_s > 0, "suspects.alone_s", f"is {self.alone_s}", fix)
        require(self.settle_s > 0, "suspects.settle_s", f"is {self.settle_s}", fix)


class SuspectTurns:
    """Says which items of one model may begin: new ones, or a suspect on its own.

    Counts what waits and runs, of all who send items of the model: they share one object.
    """

    __slots__ = (
        "_alone",
        "_alone_since",
        "_open_until",
        "_settle",
        "_settled_at",
        "running",
        "suspect_runs",
        "waiting",
    )

    def __init__(self, config: SuspectConfig | None = None) -> None:
        config = config or SuspectConfig()
        self._alone = nanos(config.alone_s)
        self._settle = nanos(config.settle_s)
        self.waiting = 0  # suspects
        self.running = 0  # items, a suspect included
        self.suspect_runs = False
        self._alone_since: int | None = None  # when the first of these suspects began
        self._open_until = 0
        self._settled_at = 0  # no suspect begins before

    def may_begin(self, now: int, *, suspect: bool) -> bool:
        """Whether a suspect, or an item that is none, may begin now. Claims nothing."""
        if self.suspect_runs:
            return False
        if not self.waiting:
            return not suspect
        turn = now >= self._open_until
        if not suspect:
            return not turn
        return turn and now >= self._settled_at and not self.running

    def begin(self, now: int, *, suspect: bool) -> None:
        """Count an item that begins; a suspect waits no longer."""
        self.running += 1
        if suspect:
            self.waiting -= 1
            self.suspect_runs = True
            if self._alone_since is None:
                self._alone_since = now

    def replica_lost(self, now: int) -> None:
        """Let suspects wait: a replica was lost with an item, whose ``end`` is called next."""
        self._settled_at = now + self._settle

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
