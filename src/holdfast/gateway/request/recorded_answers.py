"""The answers that one gateway process holds: executions under way, and what ended lately.

Bounded by bytes: the oldest answers that ended go first, and an execution that finds no room is
served to who waits for it and not kept.
"""

from holdfast.core.request.idempotency.key_policy import IdempotencyConfig, is_final
from holdfast.core.request.idempotency.key_record import KeyName
from holdfast.core.types import nanos
from holdfast.gateway.request.shared_answer import RecordedAnswer


class RecordedAnswers:
    """Finds an answer by its key and execution."""

    def __init__(self, config: IdempotencyConfig) -> None:
        self._config = config
        self.running: dict[KeyName, RecordedAnswer] = {}  # until the store knows of their end
        self.kept: dict[KeyName, RecordedAnswer] = {}  # the oldest first
        self.size = 0  # bytes of all answers here that are to be kept

    def take(self, size: int) -> bool:
        """Count so many bytes more, and forget old answers for them; False: there is no room."""
        most = self._config.memory_bytes_max
        while self.size + size > most and self.kept:
            self.drop_kept(next(iter(self.kept)))
        if self.size + size > most:
            return False
        self.size += size
        return True

    def give_back(self, size: int) -> None:
        """Count so many bytes less."""
        self.size -= size

    @property
    def any(self) -> bool:
        """Whether there is anything that other gateways may ask for."""
        return bool(self.running or self.kept)

    def add(self, answer: RecordedAnswer) -> None:
        """Take an execution that begins; what was kept under its key is out of date."""
        self.drop_kept(answer.name)
        self.running[answer.name] = answer

    def find(self, name: KeyName, execution: str) -> RecordedAnswer | None:
        """Return the answer of this execution, if it is here."""
        for answers in (self.running, self.kept):
            answer = answers.get(name)
            if answer is not None and answer.execution == execution:
                return answer
        return None

    def ended(self, answer: RecordedAnswer, now: int) -> None:
        """Keep an answer whose end the store knows."""
        if self.running.get(answer.name) is not answer:
            return
        del self.running[answer.name]
        answer.ended_at = now
        if answer.kept:
            self.kept[answer.name] = answer

    def drop(self, answer: RecordedAnswer) -> None:
        """Let go of an execution."""
        if self.running.get(answer.name) is answer:
            del self.running[answer.name]
            if answer.kept:
                self.give_back(answer.size)

    def drop_kept(self, name: KeyName) -> None:
        """Forget an answer that ended."""
        answer = self.kept.pop(name, None)
        if answer is not None:
            self.give_back(answer.size)

    def expire(self, now: int) -> None:
        """Forget answers that are as old as they may become, the oldest first."""
        config = self._config
        while self.kept:
            name, answer = next(iter(self.kept.items()))
            final = is_final(answer.status, whole=answer.whole)
            if now - answer.ended_at <= nanos(config.ttl_s if final else config.handover_s):
                return
            self.drop_kept(name)

    def purge(self, tenants: set[str]) -> None:
        """Forget all answers of some tenants; executions under way are not kept at their end."""
        for name in [name for name in self.kept if name.tenant in tenants]:
            self.drop_kept(name)
        for name, answer in self.running.items():
            if name.tenant in tenants and answer.kept:
                answer.kept = False
                self.give_back(answer.size)


__all__ = ["RecordedAnswers"]
