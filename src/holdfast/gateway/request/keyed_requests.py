"""Serves requests with an idempotency key: one execution, one answer for all who send the key.

    begin       the key is read, the body checked, the key claimed in the store
    _claimed    the store's ruling: execute, join an answer here or elsewhere, or refuse
    _execute    a ``ProxiedRequest`` writes into a ``RecordedAnswer`` in place of its client
    ended       the store is told of the end, then callers see it
    saw         what other gateways' executions came to; a dead one's is taken over

``core.request.idempotency`` decides; ``key_thread`` asks the store; this module carries out. All of
it runs on the event loop, and nothing here waits.

An execution goes on when its client leaves: a client that lost its connection sends the key again,
and the answer should be there. Nobody waits for it for ``abandoned_s``: then it is broken off.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from secrets import token_hex
from time import time
from typing import Final

from holdfast.core.request.idempotency.key_policy import (
    AnswerEnd,
    AnswerPieces,
    Decide,
    FollowStep,
    IdempotencyConfig,
    KeyChange,
    KeyClaim,
    KeyOutcome,
    KeyPolicy,
    KeyRuling,
    is_final,
)
from holdfast.core.request.idempotency.key_record import KeyName, KeyRecord, KeyState
from holdfast.core.request.idempotency.owner_watch import OwnerWatch
from holdfast.core.types import SECOND, nanos
from holdfast.gateway.api import idempotency as api
from holdfast.gateway.api.errors import ApiError
from holdfast.gateway.request.key_thread import KeyThread
from holdfast.gateway.request.proxied_request import ProxiedRequest, refuse
from holdfast.gateway.request.recorded_answers import RecordedAnswers
from holdfast.gateway.request.shared_answer import FollowedAnswer, KeyedCaller, RecordedAnswer
from holdfast.gateway.telemetry.counters import Counters
from holdfast.ports import KeySight, KeyStore, WatchedKey

_LOOK: Final = SECOND  # between two looks at who waits for long
_DEADLINE: Final = 600 * SECOND  # of a caller whose model has none of its own


class KeyedRequests:
    """Serves all requests with an idempotency key of one gateway process.

    The first request with a key is executed; others with the same key and body get that execution's
    answer, here or through the store from another gateway.
    """

    def __init__(
        self,
        config: IdempotencyConfig,
        store: KeyStore,
        counters: Counters,
        *,
        loop: asyncio.AbstractEventLoop,
        now_ns: Callable[[], int],
        wall: Callable[[], float] = time,
    ) -> None:
        self.config = config
        self.owner = token_hex(8)
        self._policy = KeyPolicy(config)
        self._counters = counters
        self._now_ns = now_ns
        self._wall = wall
        self._owners = OwnerWatch(nanos(config.lease_s))
        self._executions = 0
        self._claims: dict[KeyedCaller, int] = {}  # who waits for the store, and until when
        self.callers: dict[KeyedCaller, None] = {}
        self._followed: dict[KeyName, FollowedAnswer] = {}
        self.answers = RecordedAnswers(config)
        self._unreleased: list[tuple[KeyName, str]] = []  # claims that the store shall drop yet
        self._looked_at = 0
        self.thread = KeyThread(store, self.owner, config, loop, self)

    @property
    def busy(self) -> bool:
        """Whether a caller waits, or an execution runs or is not yet recorded in the store."""
        return bool(self.callers or self.answers.running)

    # --- a request comes -------------------------------------------------------------------------

    def begin(self, proxied: ProxiedRequest) -> None:
        """Check a keyed request whose body is complete, and claim its key in the store.

        The ruling comes later: execute, join an answer, or refuse. A bad key, a bad body or too
        many waiting callers are refused here.
        """
        exchange, counters = proxied.exchange, self._counters
        try:
            key = api.read_key(exchange)
            most = self.config.waiting_max
            if len(self.callers) >= most or len(self.answers.running) >= most:
                raise api.unavailable()
        except ApiError as error:
            refuse(exchange, error, proxied.request_id, counters)
            return
        if not proxied.read():
            return
        name = api.name_of(proxied.tenant.name, key)
        caller = KeyedCaller(self, proxied, name, api.fingerprint_of(exchange, key))
        now = self._now_ns()
        whole = proxied.port.settings.request_ns.get(proxied.ask.model, _DEADLINE)
        caller.until = now + whole
        caller.spoken_at = now
        self.callers[caller] = None
        self._claim(caller, now)

    def _claim(self, caller: KeyedCaller, now: int) -> None:
        caller.answer = None
        execution = self._new_execution()
        decide = partial(self._policy.claim, claim=self._claim_of(caller, execution))
        self._claims[caller] = now + nanos(self.config.store_s)
        if not self._submit(caller.name, decide, partial(self._claimed, caller, execution)):
            self._refuse(caller, api.unavailable())

    def _claim_of(self, caller: KeyedCaller, execution: str) -> KeyClaim:
        repeatable = not caller.proxied.ask.stores
        return KeyClaim(caller.fingerprint, execution, self.owner, repeatable, self._wall())

    def _new_execution(self) -> str:
        self._executions += 1
        return f"{self.owner}-{self._executions:x}"

    def _submit(self, name: KeyName, decide: Decide, then: Callable[..., None]) -> bool:
        return self.thread.submit(KeyChange(name, decide), then)

    def _claimed(self, caller: KeyedCaller, execution: str, ruling: KeyRuling | None) -> None:
        """Carry out the store's ruling on a claim."""
        waited = self._claims.pop(caller, None) is not None
        if ruling is None:
            self._release(caller.name, execution)  # it may have been made all the same
            self._refuse(caller, api.unavailable())
            return
        outcome, record = ruling.outcome, ruling.record
        if outcome is KeyOutcome.EXECUTE:
            if caller.gone or not waited or caller.executed:
                self._release(caller.name, execution)
                self._refuse(caller, api.unavailable())
            else:
                self._execute(caller, execution)
        elif caller.gone:
            return
        elif outcome is KeyOutcome.JOIN and record is not None:
            self._join(caller, record)
        else:
            self._refuse(caller, _REFUSALS[outcome]())

    def _join(self, caller: KeyedCaller, record: KeyRecord) -> None:
        """Let a caller read the answer that there is, or will be."""
        ended = record.state is not KeyState.EXECUTING
        self._count("replayed" if ended else "joined")
        here = self.answers.find(caller.name, record.execution)
        if here is not None and (here.kept or not here.dropped):
            here.join(caller)
        elif record.owner == self.owner and not record.readable:
            if not ended and here is None:  # claimed in vain, and not released yet
                self._release(caller.name, record.execution)
                self._refuse(caller, api.unavailable())
            else:
                self._refuse(caller, api.gone())  # forgotten, or too large to be kept
        else:
            self._follow(caller, record)

    # --- executions here -------------------------------------------------------------------------

    def _execute(self, caller: KeyedCaller, execution: str) -> RecordedAnswer:
        self._count("executed")
        proxied = caller.proxied
        answer = RecordedAnswer(
            caller.name,
            execution,
            self,
            self.answers,
            caller.exchange,
            self.config.answer_bytes_max,
        )
        self.answers.add(answer)
        self.thread.hold(runs=True, holds=True)
        caller.executes = caller.executed = True
        answer.join(caller)
        proxied.exchange = answer
        answer.listener = proxied
        proxied.decide()
        return answer

    def ended(self, answer: RecordedAnswer) -> None:
        """Have the store record how an execution ended.

        An answer that is kept for its key is shown to its callers only when the store has it; a
        failure is shown at once.
        """
        answer.ended_at = self._now_ns()
        if not is_final(answer.status, whole=answer.whole):
            answer.seal()
        self._commit(answer)

    def _commit(self, answer: RecordedAnswer) -> None:
        """Have the store note the end of an execution, with what is to be stored of its answer."""
        answer.asked_at = self._now_ns()
        if answer.publishing:
            return  # told when those pieces are there
        final = is_final(answer.status, whole=answer.whole)
        stores = answer.wanted or (self.config.answers == "store" and final)
        told = self._told(answer, len(answer.pieces) if stores and answer.kept else 0)
        end = AnswerEnd(len(answer.pieces) + answer.dropped, answer.whole, answer.kept)
        decide = partial(self._policy.finish, answer=told, end=end, now=self._wall())
        then = partial(self._committed, answer)
        answer.publishing = self._submit(answer.name, decide, then)

    def _told(self, answer: RecordedAnswer, until: int) -> AnswerPieces:
        """The answer as the store is told of it, with its pieces up to one of them."""
        return AnswerPieces(
            answer.execution,
            answer.status,
            answer.head.decode("latin-1"),
            answer.streams,
            answer.published,
            tuple(answer.pieces[answer.published : until]),
        )

    def _committed(self, answer: RecordedAnswer, ruling: KeyRuling | None) -> None:
        answer.publishing = False
        if ruling is None:
            return  # tried again by ``tick``
        if ruling.outcome is KeyOutcome.FENCED or ruling.record is None:
            self._fenced(answer)
            return
        answer.committed = True
        self.answers.ended(answer, self._now_ns())
        answer.published = ruling.record.stored
        if ruling.record.wanted:
            answer.wanted = True
            self._publish(answer)
        answer.seal()

    def _fenced(self, answer: RecordedAnswer) -> None:
        """Another gateway took this key over while we were thought dead; ask anew."""
        self._count("fenced")
        self.answers.drop(answer)
        if answer.listener is not None:
            listener, answer.listener = answer.listener, None
            answer.ended = True
            listener.on_client_gone()
        self._move(answer.callers)

    def _publish(self, answer: RecordedAnswer) -> None:
        """Store further pieces of an answer that another gateway waits for."""
        if answer.publishing or not answer.kept or answer.published >= answer.visible:
            return
        told = self._told(answer, answer.visible)
        decide = partial(self._policy.publish, answer=told, now=self._wall())
        then = partial(self._published, answer)
        answer.publishing = self._submit(answer.name, decide, then)

    def _published(self, answer: RecordedAnswer, ruling: KeyRuling | None) -> None:
        answer.publishing = False
        if ruling is None:
            return  # tried again by ``tick``
        if ruling.outcome is KeyOutcome.FENCED or ruling.record is None:
            if not answer.sealed:
                self._fenced(answer)
            return
        answer.published = ruling.record.stored
        if answer.ended and not answer.committed:
            self._commit(answer)

    def is_wanted(self, keys: Sequence[tuple[KeyName, str]]) -> None:
        """Store the pieces of answers that other gateways wait for, now and as they come.

        For an answer that is no longer held here, the store is told that it is gone.
        """
        for name, execution in keys:
            answer = self.answers.find(name, execution)
            if answer is None or (answer.sealed and not answer.kept):
                forget = partial(self._policy.forget_answer, execution=execution)
                self._submit(name, _without_usage(forget), _ignore)
                continue
            answer.wanted = True
            if answer.committed and not answer.publishing:
                answer.published = 0 if answer.published >= answer.visible else answer.published
                self._publish(answer)  # of which the store says what it has

    def _release(self, name: KeyName, execution: str) -> None:
        """Give a key up; again later, where the store does not answer now."""
        release = partial(self._policy.release, execution=execution, now=self._wall())

        def then(ruling: KeyRuling | None) -> None:
            if ruling is None and len(self._unreleased) < self.config.waiting_max:
                self._unreleased.append((name, execution))

        if not self._submit(name, _without_usage(release), then):
            then(None)

    def purged(self, tenants: Sequence[str]) -> None:
        """Forget the held answers of tenants whose keys were deleted.

        Executions under way go on, unkept.
        """
        self.answers.purge(set(tenants))

    # --- executions elsewhere --------------------------------------------------------------------

    def _follow(self, caller: KeyedCaller, record: KeyRecord) -> None:
        followed = self._followed.get(caller.name)
        if followed is None or followed.execution != record.execution:
            before = followed
            followed = self._followed[caller.name] = FollowedAnswer(caller.name, record.execution)
            if before is not None:
                self._move(before.callers)
        self._watch(followed)
        followed.join(caller)

    def _watch(self, followed: FollowedAnswer) -> None:
        here = len(followed.pieces)
        self.thread.watch(WatchedKey(followed.name, followed.execution, here))

    def saw(self, watched: Sequence[WatchedKey], sights: Sequence[KeySight]) -> None:
        """Take what the store shows of other gateways' executions, for the callers here.

        New pieces are passed on, the end is shown, and the execution of a dead gateway is taken
        over.
        """
        now = self._now_ns()
        owners = {sight.record.owner for sight in sights if sight.record is not None}
        self._owners.forget_others(owners)
        for key, sight in zip(watched, sights, strict=True):
            followed = self._followed.get(key.name)
            current = followed is not None and followed.execution == key.execution
            if followed is not None and current and len(followed.pieces) == key.here:
                self._step(followed, sight, now)

    def _step(self, followed: FollowedAnswer, sight: KeySight, now: int) -> None:
        record = sight.record
        dead = record is not None and self._owners.is_dead(record.owner, sight.beat, now)
        if record is not None and record.execution == followed.execution and sight.pieces:
            followed.take(record, sight.pieces)
            self._watch(followed)
        step = self._policy.follow(record, followed.execution, len(followed.pieces), dead=dead)
        if step is FollowStep.COMPLETE:
            followed.take(record, ()) if record is not None else None
            self._unfollow(followed)
            followed.seal()
        elif step is FollowStep.TAKE_OVER:
            self._take_over(followed)
        elif step is FollowStep.MOVED:
            self._unfollow(followed)
            self._move(followed.callers)
        elif step in _ENDS:
            self._unfollow(followed)
            for caller in tuple(followed.callers):
                self._refuse(caller, _ENDS[step]())

    def _unfollow(self, followed: FollowedAnswer) -> None:
        if self._followed.get(followed.name) is followed:
            del self._followed[followed.name]
            self.thread.unwatch(followed.name)

    def _move(self, callers: list[KeyedCaller]) -> None:
        """Let callers ask anew; who has seen half of an answer is told that it will not go on."""
        now = self._now_ns()
        for caller in tuple(callers):
            callers.remove(caller)
            caller.executes = False
            if caller.shown:
                self._refuse(caller, api.interrupted())
            else:
                self._claim(caller, now)

    def _take_over(self, followed: FollowedAnswer) -> None:
        """Execute in place of a dead gateway, for the first caller that has seen nothing."""
        if followed.taking_over:
            return
        followed.taking_over = True
        lost = followed.execution
        fresh = next((c for c in followed.callers if not (c.shown or c.executed)), None)
        if fresh is None:  # nobody to execute for: the next caller may
            self._release(followed.name, lost)
            followed.taking_over = False
            return
        execution = self._new_execution()
        claim = self._claim_of(fresh, execution)
        take = partial(self._policy.take_over, lost=lost, claim=claim)
        then = partial(self._taken_over, followed, fresh, execution)
        if not self._submit(followed.name, _without_usage(take), then):
            followed.taking_over = False

    def _taken_over(
        self,
        followed: FollowedAnswer,
        caller: KeyedCaller,
        execution: str,
        ruling: KeyRuling | None,
    ) -> None:
        followed.taking_over = False
        if ruling is None or ruling.outcome is not KeyOutcome.EXECUTE:
            return  # the next look at the record shows what it is now
        self._unfollow(followed)
        followed.leave(caller)
        if caller.gone:
            self._release(followed.name, execution)
        else:
            self._count("taken_over")
            caller.answer = None
            self._execute(caller, execution)
        self._move(followed.callers)

    # --- callers ---------------------------------------------------------------------------------

    def left(self, caller: KeyedCaller) -> None:
        """Forget a caller whose client closed its connection; its execution goes on."""
        self.done(caller)

    def done(self, caller: KeyedCaller) -> None:
        """Forget a caller that got its answer or an error, or whose client left.

        An execution without callers goes on until ``abandoned_s`` is over; a followed answer
        without callers is followed no more.
        """
        self.callers.pop(caller, None)
        self._claims.pop(caller, None)
        answer = caller.answer
        if answer is None:
            return
        answer.leave(caller)
        if isinstance(answer, RecordedAnswer):
            if not answer.callers:
                answer.alone_since = self._now_ns()
            answer.pace()
        elif isinstance(answer, FollowedAnswer) and not answer.callers:
            self._unfollow(answer)

    def _refuse(self, caller: KeyedCaller, error: ApiError) -> None:
        if not caller.gone:
            self._count(error.code.removeprefix("idempotency_"))
            self._counters.refused(error.status, error.code)
            caller.refuse(error)

    def _count(self, result: str) -> None:
        self._counters.keyed(result)

    # --- time ------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Refuse claims left unanswered, store wanted pieces, and repeat failed writes.

        Once a second it also ends abandoned executions and waits past their deadline, sends waiting
        comments and forgets old answers. Call often.
        """
        for caller, until in tuple(self._claims.items()):
            if until > now:
                break
            self._refuse(caller, api.unavailable())
        for answer in tuple(self.answers.running.values()):
            if answer.ended:
                self._hurry(answer, now)
            elif answer.wanted:
                self._publish(answer)
        if now - self._looked_at >= _LOOK:
            self._looked_at = now
            self._look(now)

    def _hurry(self, answer: RecordedAnswer, now: int) -> None:
        """Try again to note an end. Callers wait for it for ``store_s``, and not for ever."""
        if not answer.sealed and now - answer.ended_at > nanos(self.config.store_s):
            self._count("shown_unstored")
            answer.seal()
        if not answer.publishing and now - answer.asked_at > _LOOK // 4:
            self._commit(answer)

    def _look(self, now: int) -> None:
        """Break off what nobody waits for; speak to who waits for long; forget what is old."""
        for answer in tuple(self.answers.running.values()):
            alone = not (answer.callers or answer.ended or answer.wanted)
            if alone and now - answer.alone_since > nanos(self.config.abandoned_s):
                self._abandon(answer)
        for name, execution in self._take_unreleased():
            self._release(name, execution)
        self.answers.expire(now)
        for caller in tuple(self.callers):
            if now > caller.until and isinstance(caller.answer, FollowedAnswer):
                self._refuse(caller, api.overdue())
            elif caller.position != caller.seen:
                caller.seen, caller.spoken_at = caller.position, now
            elif isinstance(caller.answer, FollowedAnswer):
                quiet_s = caller.proxied.port.settings.stream.sign_of_life_s
                if now - caller.spoken_at > nanos(quiet_s):
                    caller.spoken_at = now
                    caller.comment()
        self.thread.hold(runs=bool(self.answers.running), holds=self.answers.any)

    def _take_unreleased(self) -> list[tuple[KeyName, str]]:
        taken, self._unreleased = self._unreleased, []
        return taken

    def _abandon(self, answer: RecordedAnswer) -> None:
        """Break an execution off that nobody waits for; its key is free again."""
        self._count("abandoned")
        self.answers.drop(answer)
        listener, answer.listener = answer.listener, None
        answer.ended = True
        if listener is not None:
            listener.on_client_gone()
        self._release(answer.name, answer.execution)

    def cut(self) -> None:
        """Refuse all callers that still wait, because the gateway stops.

        Executions were ended before.
        """
        for caller in tuple(self.callers):
            self._refuse(caller, api.unavailable())

    def retire(self) -> None:
        """Ask the store's thread to end, without waiting for it; only when not ``busy``."""
        self.thread.close(0.0)

    def close(self) -> bool:
        """Write what waits for the store and end its thread; blocks for up to 2 s.

        Return whether the thread ended in time.
        """
        return self.thread.close()

    def gauges(self) -> dict[str, int | float]:
        """Return gauges for metrics: callers waiting, answers held, their bytes, store down."""
        return {
            "idempotency_waiting": len(self.callers),
            "idempotency_answers_held": len(self.answers.kept) + len(self.answers.running),
            "idempotency_answer_bytes": self.answers.size,
            "idempotency_stores_down": int(self.thread.problem is not None),
        }


_REFUSALS: Final[dict[KeyOutcome, Callable[[], ApiError]]] = {
    KeyOutcome.MISMATCH: api.reused,
    KeyOutcome.GONE: api.gone,
    KeyOutcome.UNKNOWN: api.unknown,
    KeyOutcome.FULL: api.exhausted,
}
_ENDS: Final[dict[FollowStep, Callable[[], ApiError]]] = {
    FollowStep.GONE: api.gone,
    FollowStep.UNKNOWN: api.unknown,
}


def _without_usage(decide: Callable[[KeyRecord | None], KeyRuling]) -> Decide:
    """A change that does not depend on how much the store holds."""
    return lambda record, _: decide(record)


def _ignore(_: KeyRuling | None) -> None:
    """Nobody waits for what came of it; a later look at the record tells."""
    return


__all__ = ["KeyedRequests"]
