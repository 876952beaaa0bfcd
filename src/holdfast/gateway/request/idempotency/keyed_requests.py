"""Serves requests with an idempotency key: one execution, one answer for all who send the key.

    begin       the key is read, the body checked, the key claimed in the store
    _claimed    the store's ruling: execute, join an answer here or elsewhere, or refuse
    _execute    a ``ProxiedRequest`` writes into a ``RecordedAnswer`` in place of its client
    ended       the store is told of the end, then callers see it
    saw         what other gateways' executions came to; a dead one's is taken over

``core.request.idempotency`` decides, ``key_thread`` asks the store. This module serves callers;
what the store is told of executions here is ``stored_answers``, what it shows of those elsewhere
``followed_answers``. All of it runs on the event loop, and nothing here waits.

An execution goes on when its client leaves: a client that lost its connection sends the key again,
and the answer should be there. Nobody waits for it for ``abandoned_s``: then it is broken off.

Each caller has one of ``waiting_max`` places, and its body is counted for its tenant, until it has
its answer; where its execution goes on without it, until that ends. Where no place is free, the
tenant that has most gives one up: an execution that nobody waits for, else its youngest caller.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from secrets import token_hex
from time import time
from typing import Final

from holdfast.core.intake.fair_share import FairShare
from holdfast.core.request.idempotency.key_policy import (
    IdempotencyConfig,
    KeyChange,
    KeyClaim,
    KeyOutcome,
    KeyPolicy,
    KeyRuling,
    is_final,
)
from holdfast.core.request.idempotency.key_record import KeyName, KeyRecord, KeyState
from holdfast.core.types import SECOND, nanos
from holdfast.gateway.api import idempotency as api
from holdfast.gateway.api.errors import ApiError
from holdfast.gateway.request.idempotency.followed_answers import FollowedAnswers
from holdfast.gateway.request.idempotency.key_thread import KeyThread
from holdfast.gateway.request.idempotency.recorded_answers import RecordedAnswers
from holdfast.gateway.request.idempotency.shared_answer import (
    FollowedAnswer,
    KeyedCaller,
    RecordedAnswer,
    SharedAnswer,
)
from holdfast.gateway.request.idempotency.stored_answers import StoredAnswers
from holdfast.gateway.request.proxied_request import ProxiedRequest, refuse
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
        self._executions = 0
        # Who waits for the store, and until when. Its thread has the name of the execution alone:
        # a caller that leaves takes its body along.
        self._claims: dict[str, tuple[KeyedCaller, int]] = {}
        self._places = FairShare(config.waiting_max)
        self.callers: dict[KeyedCaller, None] = {}
        self.answers = RecordedAnswers(config)
        self._looked_at = 0
        self.thread = thread = KeyThread(store, self.owner, config, loop, self)
        self._followed = FollowedAnswers(self._policy, thread, self.answers, self)
        self._stored = StoredAnswers(
            self._policy, thread, self.answers, counters, self, now_ns=now_ns, wall=wall
        )

    @property
    def busy(self) -> bool:
        """Whether a caller waits, or an execution runs or is not yet recorded in the store."""
        return bool(self.callers or self.answers.running)

    # --- a request comes -------------------------------------------------------------------------

    def begin(self, proxied: ProxiedRequest) -> None:
        """Check a keyed request whose body is complete, and claim its key in the store.

        The ruling comes later: execute, join an answer, or refuse. A bad key, a bad body or a
        caller without a place are refused here.
        """
        exchange, counters = proxied.exchange, self._counters
        tenant = proxied.tenant.name
        try:
            key = api.read_key(exchange)
            if not self._has_place(tenant):
                raise api.unavailable()
        except ApiError as error:
            refuse(exchange, error, proxied.request_id, counters)
            return
        if not proxied.read():
            return
        name = api.name_of(tenant, key)
        caller = KeyedCaller(self, proxied, name, api.fingerprint_of(exchange, key))
        caller.held = exchange.pass_body_on()
        self._places.take(tenant)
        now = self._now_ns()
        whole = proxied.port.settings.request_ns.get(proxied.ask.model, _DEADLINE)
        caller.until = now + whole
        caller.spoken_at = now
        self.callers[caller] = None
        self._claim(caller, now)

    def _claim(self, caller: KeyedCaller, now: int) -> None:
        caller.answer = None
        caller.claim = execution = self._new_execution()
        decide = partial(self._policy.claim, claim=self._claim_of(caller, execution))
        self._claims[execution] = (caller, now + nanos(self.config.store_s))
        then = partial(self._claimed, caller.name, execution)
        if not self.thread.submit(KeyChange(caller.name, decide), then):
            self.refuse(caller, api.unavailable())

    def _claim_of(self, caller: KeyedCaller, execution: str) -> KeyClaim:
        repeatable = not caller.proxied.ask.stores
        return KeyClaim(caller.fingerprint, execution, self.owner, repeatable, self._wall())

    def _new_execution(self) -> str:
        self._executions += 1
        return f"{self.owner}-{self._executions:x}"

    def _claimed(self, name: KeyName, execution: str, ruling: KeyRuling | None) -> None:
        """Carry out the store's ruling on a claim, unless its caller left or was refused."""
        caller, _ = self._claims.pop(execution, (None, 0))
        if caller is not None:
            caller.claim = ""
        executes = ruling is None or ruling.outcome is KeyOutcome.EXECUTE
        if ruling is None or caller is None or (executes and caller.executed):
            if executes:
                self._stored.release(name, execution)  # without a ruling it may have been made, too
            if caller is not None:
                self.refuse(caller, api.unavailable())
            return
        outcome, record = ruling.outcome, ruling.record
        if executes:
            self._execute(caller, execution)
        elif outcome is KeyOutcome.JOIN and record is not None:
            self._join(caller, record)
        else:
            self.refuse(caller, _REFUSALS[outcome]())

    def _join(self, caller: KeyedCaller, record: KeyRecord) -> None:
        """Let a caller read the answer that there is, or will be."""
        ended = record.state is not KeyState.EXECUTING
        self._count("replayed" if ended else "joined")
        here = self.answers.find(caller.name, record.execution)
        if here is not None and (here.kept or not here.dropped):
            here.join(caller)
        elif record.owner == self.owner and not record.readable:
            if not ended and here is None:  # claimed in vain, and not released yet
                self._stored.release(caller.name, record.execution)
                self.refuse(caller, api.unavailable())
            else:
                self.refuse(caller, api.gone())  # forgotten, or too large to be kept
        else:
            self._followed.join(caller, record)

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
        self._let_go(answer)
        answer.ended_at = self._now_ns()
        if not is_final(answer.status, whole=answer.whole):
            answer.seal()
        self._stored.commit(answer)

    def fenced(self, answer: RecordedAnswer) -> None:
        """Break an execution off whose key another gateway took over, as we were thought dead.

        Its callers ask anew.
        """
        self._count("fenced")
        self._break_off(answer, left=False)
        self.move(answer)

    def is_wanted(self, keys: Sequence[tuple[KeyName, str]]) -> None:
        """Store the pieces of answers that other gateways wait for, now and as they come.

        For an answer that is no longer held here, the store is told that it is gone.
        """
        self._stored.is_wanted(keys)

    def purged(self, tenants: Sequence[str]) -> None:
        """Forget the held answers of tenants whose keys were deleted.

        Executions under way go on, unkept.
        """
        self.answers.purge(set(tenants))

    # --- executions elsewhere --------------------------------------------------------------------

    def saw(self, watched: Sequence[WatchedKey], sights: Sequence[KeySight]) -> None:
        """Take what the store shows of other gateways' executions, for the callers here.

        New pieces are passed on, the end is shown, and the execution of a dead gateway is taken
        over.
        """
        self._followed.saw(watched, sights, self._now_ns())

    def move(self, answer: SharedAnswer) -> None:
        """Let callers ask anew; who has seen half of an answer is told that it will not go on."""
        now = self._now_ns()
        for caller in tuple(answer.callers):
            answer.leave(caller)
            caller.executes = False
            if caller.shown:
                self.refuse(caller, api.interrupted())
            else:
                self._claim(caller, now)

    def take_over(self, followed: FollowedAnswer) -> None:
        """Execute in place of a dead gateway, for the first caller that has seen nothing."""
        if followed.taking_over:
            return
        followed.taking_over = True
        lost, fresh = followed.execution, followed.fresh
        if fresh is None:  # nobody to execute for: the next caller may
            self._stored.release(followed.name, lost)
            followed.taking_over = False
            return
        execution = self._new_execution()
        claim = self._claim_of(fresh, execution)
        take = partial(self._policy.take_over, lost=lost, claim=claim)
        then = partial(self._taken_over, followed, execution)
        if not self.thread.submit(KeyChange.of_record(followed.name, take), then):
            followed.taking_over = False

    def _taken_over(
        self, followed: FollowedAnswer, execution: str, ruling: KeyRuling | None
    ) -> None:
        followed.taking_over = False
        if ruling is None or ruling.outcome is not KeyOutcome.EXECUTE:
            return  # the next look at the record shows what it is now
        self._followed.drop(followed)
        caller = followed.fresh
        if caller is None:  # it left meanwhile
            self._stored.release(followed.name, execution)
        else:
            followed.leave(caller)
            self._count("taken_over")
            caller.answer = None
            self._execute(caller, execution)
        self.move(followed)

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
        self._claims.pop(caller.claim, None)
        answer = caller.answer
        if caller.executes and isinstance(answer, RecordedAnswer) and not answer.ended:
            answer.held, caller.held = caller.held, None  # it goes on, and needs the body
        self._let_go(caller)
        if answer is None:
            return
        answer.leave(caller)
        if isinstance(answer, RecordedAnswer):
            if not answer.callers:
                answer.alone_since = self._now_ns()
            answer.pace()
        elif isinstance(answer, FollowedAnswer) and not answer.callers:
            self._followed.drop(answer)

    def refuse(self, caller: KeyedCaller, error: ApiError) -> None:
        """End a caller with an error, and count it; nothing if its client is gone."""
        if not caller.gone:
            self._count(error.code.removeprefix("idempotency_"))
            self._counters.refused(error.status, error.code)
            caller.refuse(error)

    # --- places ----------------------------------------------------------------------------------

    def _has_place(self, tenant: str) -> bool:
        """Whether one more caller of this tenant may come; others give places up for it."""
        places = self._places
        while not places.fits():
            loser = places.loser(tenant)
            if loser == tenant or not self._give_way(loser):
                return False
        return True

    def _give_way(self, tenant: str) -> bool:
        """Break off what a tenant's clients left, else end its youngest caller; False: it has none.

        The place of a caller stays taken while others wait for its execution.
        """
        for answer in self.answers.running.values():
            if answer.name.tenant == tenant and _is_alone(answer):
                self._abandon(answer)
                return True
        caller = next((c for c in reversed(self.callers) if c.name.tenant == tenant), None)
        if caller is None:
            return False
        own = caller.answer
        self.refuse(caller, api.unavailable())
        if isinstance(own, RecordedAnswer) and _is_alone(own):
            self._abandon(own, left=False)
        return True

    def _let_go(self, holder: KeyedCaller | RecordedAnswer) -> None:
        """Give back the place of a caller or an execution, and what counts its body."""
        held, holder.held = holder.held, None
        if held is not None:
            held.end()
            self._places.give_back(holder.name.tenant)

    def _break_off(self, answer: RecordedAnswer, *, left: bool) -> None:
        """End an execution without an answer; its callers are not told."""
        self.answers.drop(answer)
        answer.break_off(left=left)
        self._let_go(answer)

    def _count(self, result: str) -> None:
        self._counters.keyed(result)

    # --- time ------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Refuse claims left unanswered, store wanted pieces, and repeat failed writes.

        Once a second it also ends abandoned executions and waits past their deadline, sends waiting
        comments and forgets old answers. Call often.
        """
        for caller, until in tuple(self._claims.values()):
            if until > now:
                break
            self.refuse(caller, api.unavailable())
        for answer in tuple(self.answers.running.values()):
            if answer.ended:
                self._stored.retry(answer, now)
            elif answer.wanted:
                self._stored.publish(answer)
        if now - self._looked_at >= _LOOK:
            self._looked_at = now
            self._look(now)

    def _look(self, now: int) -> None:
        """Break off what nobody waits for; speak to who waits for long; forget what is old."""
        for answer in tuple(self.answers.running.values()):
            alone = not (answer.callers or answer.ended or answer.wanted)
            if alone and now - answer.alone_since > nanos(self.config.abandoned_s):
                self._abandon(answer)
        self._stored.retry_releases()
        self.answers.expire(now)
        for caller in tuple(self.callers):
            if now > caller.until and isinstance(caller.answer, FollowedAnswer):
                self.refuse(caller, api.overdue())
            elif caller.position != caller.seen:
                caller.seen, caller.spoken_at = caller.position, now
            elif isinstance(caller.answer, FollowedAnswer):
                quiet_s = caller.proxied.port.settings.stream.sign_of_life_s
                if now - caller.spoken_at > nanos(quiet_s):
                    caller.spoken_at = now
                    caller.comment()
        self.thread.hold(runs=bool(self.answers.running), holds=self.answers.any)

    def _abandon(self, answer: RecordedAnswer, *, left: bool = True) -> None:
        """Break an execution off that nobody waits for; its key is free again.

        ``left``: its clients left; else its last one was ended here.
        """
        self._count("abandoned")
        self._break_off(answer, left=left)
        self._stored.release(answer.name, answer.execution)

    def cut(self) -> None:
        """Refuse all callers that still wait, because the gateway stops.

        Executions were ended before.
        """
        for caller in tuple(self.callers):
            self.refuse(caller, api.unavailable())

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


def _is_alone(answer: RecordedAnswer) -> bool:
    """Whether an execution goes on though nobody waits for it, here or elsewhere."""
    return answer.held is not None and not (answer.callers or answer.wanted)


_REFUSALS: Final[dict[KeyOutcome, Callable[[], ApiError]]] = {
    KeyOutcome.MISMATCH: api.reused,
    KeyOutcome.GONE: api.gone,
    KeyOutcome.UNKNOWN: api.unknown,
    KeyOutcome.FULL: api.exhausted,
}
__all__ = ["KeyedRequests"]
