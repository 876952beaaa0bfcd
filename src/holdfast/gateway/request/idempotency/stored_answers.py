"""What the store is told of executions here: their end, answers wanted elsewhere, keys given up.

    commit      how an execution ended, with its answer where that is to be stored
    publish     further pieces of an answer that another gateway waits for
    release     a key whose execution was broken off, or never began

The store is asked in a thread (``key_thread``); it may fail, be late or be full. So each of these
is tried again until it is done: an end and pieces by ``retry``, keys by ``retry_releases``.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from holdfast.core.request.idempotency.key_policy import (
    AnswerEnd,
    AnswerPieces,
    KeyChange,
    KeyOutcome,
    KeyPolicy,
    KeyRuling,
    is_final,
)
from holdfast.core.request.idempotency.key_record import KeyName
from holdfast.core.types import SECOND, nanos
from holdfast.gateway.request.idempotency.key_thread import KeyThread
from holdfast.gateway.request.idempotency.recorded_answers import RecordedAnswers
from holdfast.gateway.request.idempotency.shared_answer import RecordedAnswer
from holdfast.gateway.telemetry.counters import Counters

_AGAIN: Final = SECOND // 4  # between two tries to note an end


class ExecutionHome(Protocol):
    """Is told of executions that the store speaks of; implemented by ``KeyedRequests``."""

    def fenced(self, answer: RecordedAnswer) -> None:
        """Break an execution off whose key another gateway took over."""


class StoredAnswers:
    """Writes the answers of one gateway's executions, and how they ended, into the key store."""

    def __init__(
        self,
        policy: KeyPolicy,
        thread: KeyThread,
        answers: RecordedAnswers,
        counters: Counters,
        home: ExecutionHome,
        *,
        now_ns: Callable[[], int],
        wall: Callable[[], float],
    ) -> None:
        self._policy = policy
        self._thread = thread
        self._answers = answers
        self._counters = counters
        self._home = home
        self._now_ns = now_ns
        self._wall = wall
        self._unreleased: list[tuple[KeyName, str]] = []  # claims that the store shall drop yet

    # --- how executions end ----------------------------------------------------------------------

    def commit(self, answer: RecordedAnswer) -> None:
        """Have the store note the end of an execution, with what is to be stored of its answer.

        Its callers see the end when the store has it; a failure they have seen before.
        """
        answer.asked_at = self._now_ns()
        if answer.publishing:
            return  # told when those pieces are there
        final = is_final(answer.status, whole=answer.whole)
        stores = answer.wanted or (self._policy.config.answers == "store" and final)
        told = _told(answer, len(answer.pieces) if stores and answer.kept else 0)
        end = AnswerEnd(len(answer.pieces) + answer.dropped, answer.whole, answer.kept)
        decide = partial(self._policy.finish, answer=told, end=end, now=self._wall())
        change = KeyChange(answer.name, decide)
        answer.publishing = self._thread.submit(change, partial(self._committed, answer))

    def _committed(self, answer: RecordedAnswer, ruling: KeyRuling | None) -> None:
        answer.publishing = False
        if ruling is None:
            return  # ``retry`` asks again
        if ruling.outcome is KeyOutcome.FENCED or ruling.record is None:
            self._home.fenced(answer)
            return
        answer.committed = True
        self._answers.ended(answer, self._now_ns())
        answer.published = ruling.record.stored
        if ruling.record.wanted:
            answer.wanted = True
            self.publish(answer)
        answer.seal()

    def retry(self, answer: RecordedAnswer, now: int) -> None:
        """Try again to note an end; ``now`` in ns. Call often.

        Callers wait for it for ``store_s``, and not for ever.
        """
        if not answer.sealed and now - answer.ended_at > nanos(self._policy.config.store_s):
            self._counters.keyed("shown_unstored")
            answer.seal()
        if not answer.publishing and now - answer.asked_at > _AGAIN:
            self.commit(answer)

    # --- answers that other gateways wait for ----------------------------------------------------

    def publish(self, answer: RecordedAnswer) -> None:
        """Store further pieces of an answer that another gateway waits for, where there are any."""
        if answer.publishing or not answer.kept or answer.published >= answer.visible:
            return
        told = _told(answer, answer.visible)
        decide = partial(self._policy.publish, answer=told, now=self._wall())
        change = KeyChange(answer.name, decide)
        answer.publishing = self._thread.submit(change, partial(self._published, answer))

    def _published(self, answer: RecordedAnswer, ruling: KeyRuling | None) -> None:
        answer.publishing = False
        if ruling is None:
            return  # published again with the next piece, or the next tick
        if ruling.outcome is KeyOutcome.FENCED or ruling.record is None:
            if not answer.sealed:
                self._home.fenced(answer)
            return
        answer.published = ruling.record.stored
        if answer.ended and not answer.committed:
            self.commit(answer)

    def is_wanted(self, keys: Sequence[tuple[KeyName, str]]) -> None:
        """Store the pieces of answers that other gateways wait for, now and as they come.

        For an answer that is no longer held here, the store is told that it is gone.
        """
        for name, execution in keys:
            answer = self._answers.find(name, execution)
            if answer is None or (answer.sealed and not answer.kept):
                forget = partial(self._policy.forget_answer, execution=execution)
                self._thread.submit(KeyChange.of_record(name, forget), _ignore)
                continue
            answer.wanted = True
            if answer.committed and not answer.publishing:
                answer.published = 0 if answer.published >= answer.visible else answer.published
                self.publish(answer)  # of which the store says what it has

    # --- keys that are given up ------------------------------------------------------------------

    def release(self, name: KeyName, execution: str) -> None:
        """Give a key up; again later, where the store does not answer now."""
        release = partial(self._policy.release, execution=execution, now=self._wall())

        def then(ruling: KeyRuling | None) -> None:
            if ruling is None and len(self._unreleased) < self._policy.config.waiting_max:
                self._unreleased.append((name, execution))

        if not self._thread.submit(KeyChange.of_record(name, release), then):
            then(None)

    def retry_releases(self) -> None:
        """Give up again what the store did not drop before."""
        unreleased, self._unreleased = self._unreleased, []
        for name, execution in unreleased:
            self.release(name, execution)


def _told(answer: RecordedAnswer, until: int) -> AnswerPieces:
    """The answer as the store is told of it, with its pieces up to one of them."""
    return AnswerPieces(
        answer.execution,
        answer.status,
        answer.head.decode("latin-1"),
        answer.streams,
        answer.published,
        tuple(answer.pieces[answer.published : until]),
    )


def _ignore(_: KeyRuling | None) -> None:
    """Nobody waits for what came of it; a later look at the record tells."""
    return


__all__ = ["ExecutionHome", "StoredAnswers"]
