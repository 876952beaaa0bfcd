"""The requests that wait to be sent away from a replica that will not answer them.

A replica is found dead, frozen or stalled, and requests are caught there. Those of which the client
has seen nothing can go elsewhere without anybody noticing, so none must wait until its own deadline
finds out what is known already. Each such move is an attempt more, and five hundred at once would
fell the next replica: moves come out of the retry budget, the oldest request first, and while the
budget is spent the others stay where they are. They lose nothing by that: the replica may still
answer, and whoever answers first is believed.

Where the finding is a fact (the process is gone or stopped) all move. Where it is a conclusion (a
canary got no answer while no token came) a request moves once it has waited longer than its own
prompt can explain: a prompt of 100,000 tokens makes an engine look stalled, and would do
the same to the next.

Never moved: a request that stores something (it would be stored twice) and one whose hedge runs on
a replica that is well.
"""

from collections.abc import Iterable
from typing import Final

from holdfast.core.failure import Kind
from holdfast.core.request.active_request import ActiveRequest, Attempt, RequestPhase
from holdfast.core.request.deadlines import stuck
from holdfast.core.request.lane import Lane
from holdfast.core.types import MILLISECOND, Halt

_LOOK_EVERY: Final = 50 * MILLISECOND  # while some wait; found and moved within 100 ms


class MoveQueue:
    """The requests of one gateway caught at replicas that will not answer, the oldest first.

    It only lists them; ``RequestMover`` starts the new attempts. Each request is in it once at
    most.
    """

    __slots__ = ("_waiting", "look_at")

    def __init__(self) -> None:
        self._waiting: dict[ActiveRequest, None] = {}
        self.look_at = 1 << 62  # when to look next; never while nobody waits

    def __len__(self) -> int:
        return len(self._waiting)

    def mark(
        self, requests: Iterable[ActiveRequest], model: str, replica_id: str, halt: Halt, now: int
    ) -> None:
        """Add those of ``requests`` that wait at this replica without any content, and why.

        Requests that store something, were shown content or are of another model are left out.
        """
        for active in requests:
            if active.model != model or active.request.stores or active.shown_tokens:
                continue
            for attempt in active.live:
                if attempt.candidate.id == replica_id and not attempt.first_at:
                    attempt.halt = halt
                    self._waiting[active] = None
                    self.look_at = now

    def clear(self, model: str, replica_id: str) -> None:
        """Unmark the attempts at a replica that is well again: they stay there."""
        for active in list(self._waiting):
            if active.model == model:
                for attempt in active.live:
                    if attempt.candidate.id == replica_id:
                        attempt.halt = None

    def due(self, now: int) -> list[tuple[ActiveRequest, Attempt]]:
        """The (request, attempt) pairs that may be moved now, the oldest request first.

        Requests whose hedge runs at a replica that is well are left out; requests that are over or
        got content are forgotten. Sets ``look_at``.
        """
        due: list[tuple[ActiveRequest, Attempt]] = []
        for active in list(self._waiting):
            caught = [a for a in active.live if a.halt is not None and not a.first_at]
            if active.phase is not RequestPhase.RUNNING or not caught:
                del self._waiting[active]
            elif len(caught) == len(active.live):
                due.append((active, caught[0]))
        self.look_at = now + _LOOK_EVERY if self._waiting else 1 << 62
        return due

    def leave(self, active: ActiveRequest) -> None:
        """Forget a request: it was moved, or may not be."""
        self._waiting.pop(active, None)


def kind_when_halted(active: ActiveRequest, attempt: Attempt, lane: Lane, now: int) -> Kind | None:
    """The kind of failure with which an attempt without content leaves its halted replica.

    ``None``: it stays for now, as its own prompt may explain the wait; only a stalled replica is
    given that time.
    """
    if attempt.halt is not Halt.STALLED:
        return Kind.DRAINED
    request, waited = active.request, now - attempt.started
    waits, usual = lane.waits(request), 0
    if request.whole:  # its silence is natural for as long as such answers take
        usual = waits.first_token_typical(request.size) or 0
    norm = waits.first_token_norm(request.size)
    return stuck(waited, request.prompt_tokens, begun=False, usual=usual, norm=norm)


__all__ = ["MoveQueue", "kind_when_halted"]
