"""The answers that one gateway process holds: executions under way, and what ended lately.

Bounded by bytes: the oldest answers that ended go first, and an execution that finds no room is
served to who waits for it and not kept.
"""

from holdfast.core.request.idempotency.key_policy import IdempotencyConfig, is_final
from holdfast.core.request.idempotency.key_record import KeyName
from holdfast.core.types import nanos
from holdfast.gateway.request.idempotency.shared_answer import RecordedAnswer


class RecordedAnswers:
    """The answers to idempotency keys that one gateway holds in memory, within a limit of bytes.

    ``running``: executions until the store knows their end; ``kept``: ended ones, oldest first.
    """

    def __init__(self, config: IdempotencyConfig) -> None:
        self._config = config
        self.running: dict[KeyName, RecordedAnswer] = {}  # until the store knows of their end
        self.kept: dict[KeyName, RecordedAnswer] = {}  # the oldest first
        self.size = 0  # bytes of all answers here that are to be kept

    def take(self, size: int) -> bool:
        """Count so many bytes more, dropping the oldest ended answers to make room.

        Return False, counting nothing, if they do not fit even then.
        """
        most = self._config.memory_bytes_max
        while self.size + size > most and self.kept:
            self.drop_kept(next(iter(self.kept)))
        if self.size + size > most:
            return False
        self.size += size
        return True

    def give_back(self, size: int) -> None:
        """Count so many bytes less, of an answer that is no longer kept."""
        self.size -= size

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

    def drop(self, answer: RecordedAnswer) -> None:
        """Remove a running execution and its bytes; its callers are not told.

        Nothing if not running.
        """
        if self.running.get(answer.name) is answer:
            del self.running[answer.name]
            if answer.kept:
                self.give_back(answer.size)

    def drop_kept(self, name: KeyName) -> None:
        """Remove the ended answer of a key and its bytes; nothing if there is none."""
        answer = self.kept.pop(name, None)
        if answer is not None:
            self.give_back(answer.size)

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
            if name.tenant in tenants and answer.kept:
                answer.kept = False
                self.give_back(answer.size)


__all__ = ["RecordedAnswers"]
