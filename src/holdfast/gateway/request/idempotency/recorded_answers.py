"""The answers that one gateway process holds: executions under way, and what ended lately.

Bounded by bytes, which tenants share: whoever holds most loses first, and of its answers the oldest
that ended goes first. An execution that finds no room is served to who waits for it and not kept.
An answer is counted until its last reader has left, so a client that does not read holds bytes of
its own tenant; where another one needs them and nothing else can go, it is told and let go.
"""

from collections.abc import Callable

from holdfast.core.intake.fair_share import FairShare
from holdfast.core.request.idempotency.key_policy import IdempotencyConfig, is_final
from holdfast.core.request.idempotency.key_record import KeyName
from holdfast.core.types import nanos
from holdfast.gateway.api import idempotency as api
from holdfast.gateway.request.idempotency.shared_answer import RecordedAnswer, SharedAnswer


class RecordedAnswers:
    """The answers to idempotency keys that one gateway holds in memory, within a limit of bytes.

    ``running``: executions until the store knows their end; ``kept``: ended ones, oldest first.
    """

    def __init__(self, config: IdempotencyConfig) -> None:
        self._config = config
        self.running: dict[KeyName, RecordedAnswer] = {}  # until the store knows of their end
        self.kept: dict[KeyName, RecordedAnswer] = {}  # the oldest first
        self._share = FairShare(config.memory_bytes_max)
        # By tenant, the bytes that are counted of each answer; those that ended, the oldest first.
        self._held: dict[str, dict[SharedAnswer, int]] = {}

    @property
    def size(self) -> int:
        """Bytes of all answers that are held here."""
        return self._share.total

    def take(self, answer: SharedAnswer, size: int) -> bool:
        """Count so many bytes more for an answer; whoever holds most gives up some to make room.

        Return False, counting nothing, if they do not fit even then.
        """
        tenant, share = answer.name.tenant, self._share
        while not share.fits(size):
            loser = share.loser(tenant, size)
            ways: tuple[Callable[[SharedAnswer], bool], ...] = (self._drop_oldest,)
            if loser != tenant:
                ways = (self._drop_oldest, self._keep_no_more, self._cut_readers)
            held = self._held.get(loser, {})
            if not any(gives_way(each) for gives_way in ways for each in held):
                return False
        share.take(tenant, size)
        held = self._held.setdefault(tenant, {})
        held[answer] = held.get(answer, 0) + size
        return True

    def give_back(self, answer: SharedAnswer, size: int | None = None) -> None:
        """Count so many bytes less of an answer, or none of it any more.

        No more than were counted: the last pieces of an answer that is not kept are not.
        """
        tenant = answer.name.tenant
        held = self._held.get(tenant, {})
        counted = held.pop(answer, 0)
        over = counted if size is None else min(counted, size)
        self._share.give_back(tenant, over)
        if counted > over:
            held[answer] = counted - over
        elif not held:
            self._held.pop(tenant, None)

    def _drop_oldest(self, answer: SharedAnswer) -> bool:
        """Drop an ended answer that nobody reads, here or on its way to the store."""
        kept = self.kept.get(answer.name)
        if kept is not answer or kept.callers or kept.publishing:
            return False
        self.drop_kept(answer.name)
        return True

    def _keep_no_more(self, answer: SharedAnswer) -> bool:
        """Have an execution under way be kept for nobody who comes later."""
        running = self.running.get(answer.name)
        if running is not answer or not running.kept:
            return False
        running.forgo()
        return True

    def _cut_readers(self, answer: SharedAnswer) -> bool:
        """End the callers that do not read what is held for them."""
        slow = [caller for caller in answer.callers if caller.slow]
        for caller in slow:
            caller.home.refuse(caller, api.gone())
        return bool(slow)

    @property
    def any(self) -> bool:
        """Whether an answer is held, running or ended, that other gateways may ask for."""
        return bool(self.running or self.kept)

    def add(self, answer: RecordedAnswer) -> None:
        """Add an execution that begins, and drop an ended answer with the same key."""
        self.drop_kept(answer.name)
        self.running[answer.name] = answer

    def find(self, name: KeyName, execution: str) -> RecordedAnswer | None:
        """Return the answer of this key and execution, running or ended.

        None if it is not held here.
        """
        for answers in (self.running, self.kept):
            answer = answers.get(name)
            if answer is not None and answer.execution == execution:
                return answer
        return None

    def ended(self, answer: RecordedAnswer, now: int) -> None:
        """Move an answer from ``running`` to ``kept``, once the store knows its end; ``now`` in ns.

        One that is not to be kept is only removed. Nothing if it is not running.
        """
        if self.running.get(answer.name) is not answer:
            return
        del self.running[answer.name]
        answer.ended_at = now
        if answer.kept:
            self.kept[answer.name] = answer
            held = self._held.get(answer.name.tenant, {})
            if answer in held:
                held[answer] = held.pop(answer)  # it is the youngest of those that ended
        else:
            answer.unlist()

    def drop(self, answer: RecordedAnswer) -> None:
        """Remove a running execution, and its bytes when its callers have left: they are not told.

        Nothing if not running.
        """
        if self.running.get(answer.name) is answer:
            del self.running[answer.name]
            answer.unlist()

    def drop_kept(self, name: KeyName) -> None:
        """Remove the ended answer of a key; its bytes go with its last reader. Nothing if none."""
        answer = self.kept.pop(name, None)
        if answer is not None:
            answer.unlist()

    def expire(self, now: int) -> None:
        """Drop ended answers past their lifetime: ``ttl_s``, or ``handover_s`` for failures.

        It looks from the oldest on and stops at the first that stays.
        """
        config = self._config
        while self.kept:
            name, answer = next(iter(self.kept.items()))
            final = is_final(answer.status, whole=answer.whole)
            if now - answer.ended_at <= nanos(config.ttl_s if final else config.handover_s):
                return
            self.drop_kept(name)

    def purge(self, tenants: set[str]) -> None:
        """Drop all ended answers of these tenants.

        Their executions under way are not kept at their end.
        """
        for name in [name for name in self.kept if name.tenant in tenants]:
            self.drop_kept(name)
        for name, answer in self.running.items():
            if name.tenant in tenants:
                answer.forgo()


__all__ = ["RecordedAnswers"]
