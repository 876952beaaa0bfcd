"""Decides what becomes of an idempotency key: pure changes of one record, for any store to apply.

Each method of ``KeyPolicy`` takes the record as it stands (None: there is none) and returns a
``KeyRuling``: the record as it shall stand, and the outcome for the gateway that asked. A store
applies it within one transaction, so that two gateways never decide from the same state.

Whether an answer is final. A complete answer with 2xx is, and so is a refusal that the same request
will always get (400, 404, 413, 415, 422). A limit that was reached, an overload, a time-out, an
engine's failure and a stream that ended with an error event are not: duplicates that wait get that
answer too, and the next caller executes again.

When the gateway that executes dies, nobody knows how far it came. An execution that leaves nothing
behind may be repeated: a caller that waits takes over, and the answer of the repetition is the
terminal one. Where engines keep what they answer (``repeatable`` is false), a repetition would keep
it twice: the key is LOST, and its callers are told that the outcome is unknown.

Rejected: never repeating anything. Clients send a key so that a retry is safe, and just when a
gateway was lost they retry. Rejected: forgetting the oldest keys where there are too many; their
retries would execute twice, and nobody would notice. New keys are refused instead.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Literal, Self

from holdfast.core.request.idempotency.key_record import (
    KeyName,
    KeyRecord,
    KeyState,
    KeyUsage,
    check_transition,
)
from holdfast.core.types import require

_EXECUTION_S_MAX: Final = 86_400.0  # no request lasts a day: its gateway died, and nobody asked
_FINAL_REFUSALS: Final = frozenset({400, 404, 405, 413, 415, 422})  # the same request gets it again


@dataclass(slots=True, frozen=True)
class IdempotencyConfig:
    """How long idempotency keys and answers are kept, how many, and how long anybody waits.

    Checked when built: raises ``ConfigError``.
    """

    answers: Literal["memory", "store"] = "memory"  # store: at rest, readable after a restart
    ttl_s: float = 86_400.0  # a day, as clients know it from payment services
    handover_s: float = 60.0  # an answer passed through the store leaves it so long after its end
    lease_s: float = 5.0  # a gateway whose beat stands still so long is dead; a slow disk is not
    beat_s: float = 1.0  # between two beats: five may be lost
    poll_s: float = 0.05  # how often answers of other gateways are looked for: a blink for a reader
    store_s: float = 2.0  # a keyed request waits so long for the store, then 503
    abandoned_s: float = 30.0  # an execution nobody waits for goes on: a retry comes within 8 s
    keys_max: int = 1_000_000  # in the store; 500 bytes each
    tenant_keys_max: int = 100_000  # more than one key a second all day long; then 429
    bytes_max: int = 1 << 30  # of answers in the store; beyond it they are not kept
    tenant_bytes_max: int = 256 << 20  # the same, of one tenant
    answer_bytes_max: int = 4 << 20  # of one answer: 1 M tokens of text; larger ones are not kept
    memory_bytes_max: int = 64 << 20  # of answers in one process; who holds most loses first
    waiting_max: int = 4_096  # callers and executions they left, in one process; tenants share
    repeat_lost: bool = True  # what a dead gateway executed is executed again, where that is safe

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if name not in {"answers", "repeat_lost"}:
                where = f"idempotency.{name}"
                require(value > 0, where, f"is {value}", "use more than 0")
        fix = f"use at least 3 × idempotency.beat_s, {3 * self.beat_s:g}"
        held = self.lease_s >= 3 * self.beat_s
        require(held, "idempotency.lease_s", f"is {self.lease_s:g}", fix)
        for name in ("keys_max", "bytes_max"):
            value, most = getattr(self, f"tenant_{name}"), getattr(self, name)
            fix = f"use at most idempotency.{name}, {most}"
            require(value <= most, f"idempotency.tenant_{name}", f"is {value}", fix)
        fix = f"use at most idempotency.memory_bytes_max, {self.memory_bytes_max}"
        fits = self.answer_bytes_max <= self.memory_bytes_max
        require(fits, "idempotency.answer_bytes_max", f"is {self.answer_bytes_max}", fix)


class KeyOutcome(StrEnum):
    """What a gateway is told about its change of an idempotency key."""

    EXECUTE = "execute"  # the key is yours: execute
    JOIN = "join"  # there is an answer, or there will be one
    MISMATCH = "mismatch"  # the key stands for another request
    GONE = "gone"  # it was executed, and its answer cannot be had again
    UNKNOWN = "unknown"  # its gateway died: nobody knows what it did
    FULL = "full"  # no room for another key
    DONE = "done"  # the change was made
    FENCED = "fenced"  # the record is another execution's by now


class FollowStep(StrEnum):
    """What a gateway that waits for another gateway's answer does next."""

    WAIT = "wait"
    COMPLETE = "complete"  # all of the answer is here
    TAKE_OVER = "take_over"  # its gateway is dead: execute in its place, or mark it as lost
    MOVED = "moved"  # the record is another execution's, or gone: who has seen nothing asks anew
    GONE = "gone"  # it ended, and its answer cannot be had
    UNKNOWN = "unknown"


@dataclass(slots=True, frozen=True)
class KeyRuling:
    """A decision on one record, for a store to apply: the new record, and the outcome.

    ``record`` None: there shall be none. ``changed`` False: nothing is to be written.
    """

    outcome: KeyOutcome
    record: KeyRecord | None
    changed: bool = True
    pieces: tuple[bytes, ...] = ()  # of the answer, to be stored behind those that are


Decide = Callable[[KeyRecord | None, KeyUsage], KeyRuling]


@dataclass(slots=True, frozen=True)
class KeyChange:
    """A change of one key's record that a store makes in one transaction, by calling ``decide``.

    ``decide`` gets the present record (or None) and the usage, and returns a ``KeyRuling``.
    """

    name: KeyName
    decide: Decide

    @classmethod
    def of_record(cls, name: KeyName, decide: Callable[[KeyRecord | None], KeyRuling]) -> Self:
        """A change that depends on the record alone, and not on how much the store holds."""
        return cls(name, lambda record, _: decide(record))


@dataclass(slots=True, frozen=True)
class KeyClaim:
    """A caller's claim to a key: which request it is for, and who would execute it."""

    fingerprint: str
    execution: str
    owner: str
    repeatable: bool
    now: float  # seconds since the epoch: only what expires after hours is measured by it


@dataclass(slots=True, frozen=True)
class AnswerPieces:
    """Status, header lines and pieces (bytes) of one execution's answer that are to be stored."""

    execution: str
    status: int
    head: str  # header lines
    streams: bool
    first: int = 0  # how many pieces are stored before these
    pieces: tuple[bytes, ...] = ()


@dataclass(slots=True, frozen=True)
class AnswerEnd:
    """How an execution ended: pieces, whether in good order, whether the gateway keeps all."""

    pieces: int  # of the whole answer
    whole: bool  # it ended as it should: no error event, no broken connection
    kept: bool  # the gateway still holds all of it


def is_final(status: int, *, whole: bool) -> bool:
    """Whether an answer is kept for its key: complete, and 2xx or a refusal that would repeat.

    Such refusals are 400, 404, 405, 413, 415 and 422. After any other answer the next caller
    executes again.
    """
    return whole and (200 <= status < 300 or status in _FINAL_REFUSALS)


class KeyPolicy:
    """Decides each change of an idempotency key's record; pure: a store applies the rulings."""

    def __init__(self, config: IdempotencyConfig) -> None:
        self.config = config

    # --- callers ---------------------------------------------------------------------------------

    def claim(self, record: KeyRecord | None, usage: KeyUsage, claim: KeyClaim) -> KeyRuling:
        """Give the key to this caller, or join it to the execution or the answer that there is.

        Outcomes: EXECUTE, JOIN, MISMATCH (another request under this key), GONE, UNKNOWN (lost) or
        FULL.
        """
        if record is None or record.expires_at <= claim.now:
            if record is not None and record.state is KeyState.EXECUTING:
                return self._joined(record, claim)  # however old: only a dead owner ends it
            return self._claimed(record, usage, claim)
        if record.fingerprint != claim.fingerprint:
            return _ruled(record, record, KeyOutcome.MISMATCH)
        if record.state is KeyState.FAILED:
            return self._claimed(record, usage, claim)
        if record.state is KeyState.LOST:
            return _ruled(record, record, KeyOutcome.UNKNOWN)
        return self._joined(record, claim)

    def _claimed(self, before: KeyRecord | None, usage: KeyUsage, claim: KeyClaim) -> KeyRuling:
        config = self.config
        full = usage.keys >= config.tenant_keys_max or usage.all_keys >= config.keys_max
        if before is None and full:
            return _ruled(None, None, KeyOutcome.FULL)
        after = KeyRecord(
            KeyState.EXECUTING,
            claim.fingerprint,
            claim.execution,
            claim.owner,
            claim.now + _EXECUTION_S_MAX,
            claim.repeatable,
        )
        return _ruled(before, after, KeyOutcome.EXECUTE)

    def _joined(self, record: KeyRecord, claim: KeyClaim) -> KeyRuling:
        if record.fingerprint != claim.fingerprint:
            return _ruled(record, record, KeyOutcome.MISMATCH)
        mine = (
            record.owner == claim.owner
        )  # this gateway executed it, and may have the answer in memory
        if record.unkept and record.state is KeyState.FINISHED and not mine:
            return _ruled(record, record, KeyOutcome.GONE)
        after = record
        if not mine and not record.readable:
            after = replace(record, wanted=True)
        return _ruled(record, after, KeyOutcome.JOIN)

    def take_over(self, record: KeyRecord | None, lost: str, claim: KeyClaim) -> KeyRuling:
        """Execute in place of a gateway that died while it executed ``lost``, where that is safe.

        EXECUTE: the record belongs to the claim's execution. UNKNOWN: it may not be repeated and is
        now LOST. FENCED: the record has moved on.
        """
        if record is None or record.execution != lost or record.state is not KeyState.EXECUTING:
            return _ruled(record, record, KeyOutcome.FENCED)
        if not (record.repeatable and self.config.repeat_lost):
            after = replace(
                _without_pieces(record),
                state=KeyState.LOST,
                expires_at=claim.now + self.config.ttl_s,
            )
            return _ruled(record, after, KeyOutcome.UNKNOWN)
        return self._claimed(record, KeyUsage(), claim)

    # --- the gateway that executes ---------------------------------------------------------------

    def publish(
        self,
        record: KeyRecord | None,
        usage: KeyUsage,
        answer: AnswerPieces,
        now: float,
    ) -> KeyRuling:
        """Store further pieces of an answer under way, if they are the next ones.

        Others are ignored with DONE; the record's ``stored`` tells how many are there. Without room
        nothing is stored, and the answer is then not kept at all. FENCED: the key is another
        execution's, or lost.
        """
        if record is None or record.execution != answer.execution:
            return _ruled(record, record, KeyOutcome.FENCED)
        if record.state is KeyState.LOST:
            return _ruled(record, record, KeyOutcome.FENCED)
        if record.unkept or record.stored != answer.first:
            return _ruled(record, record, KeyOutcome.DONE)
        return self._with_pieces(record, usage, answer, now)

    def _with_pieces(
        self,
        record: KeyRecord,
        usage: KeyUsage,
        answer: AnswerPieces,
        now: float,
    ) -> KeyRuling:
        config, pieces = self.config, answer.pieces
        size = sum(map(len, pieces))
        fits = (
            record.bytes + size <= config.answer_bytes_max
            and usage.bytes + size <= config.tenant_bytes_max
            and usage.all_bytes + size <= config.bytes_max
        )
        if not fits:
            return _ruled(record, replace(_without_pieces(record), unkept=True), KeyOutcome.DONE)
        at_rest = config.answers == "store" and record.state is not KeyState.FAILED
        stored = record.stored + len(pieces)
        until = record.expires_at if at_rest else now + config.handover_s
        after = replace(
            record,
            status=answer.status,
            head=answer.head,
            streams=answer.streams,
            stored=stored,
            bytes=record.bytes + size,
            stored_until=until if stored else 0.0,
            wanted=record.wanted and stored != record.pieces,
        )
        return _ruled(record, after, KeyOutcome.DONE, pieces)

    def finish(
        self,
        record: KeyRecord | None,
        usage: KeyUsage,
        answer: AnswerPieces,
        end: AnswerEnd,
        now: float,
    ) -> KeyRuling:
        """Record how an execution ended: FINISHED for a final answer, else FAILED.

        Stores the given pieces if they are the next. Only after this may a caller see the end of a
        final answer; made twice it is the same.
        """
        if record is None or record.execution != answer.execution:
            return _ruled(record, record, KeyOutcome.FENCED)
        if record.state is not KeyState.EXECUTING:
            lost = record.state is KeyState.LOST
            return _ruled(record, record, KeyOutcome.FENCED if lost else KeyOutcome.DONE)
        final = is_final(answer.status, whole=end.whole)
        config = self.config
        ended = replace(
            record,
            state=KeyState.FINISHED if final else KeyState.FAILED,
            status=answer.status,
            head=answer.head,
            streams=answer.streams,
            pieces=end.pieces,
            unkept=record.unkept or not end.kept,
            expires_at=now + (config.ttl_s if final else config.handover_s),
        )
        if ended.unkept:
            return _ruled(record, _without_pieces(ended), KeyOutcome.DONE)
        if record.stored != answer.first:
            answer = replace(answer, pieces=())
        return replace(self._with_pieces(ended, usage, answer, now), changed=True)

    def release(self, record: KeyRecord | None, execution: str, now: float) -> KeyRuling:
        """Give up a key whose execution was broken off: without record, the next caller executes.

        Where it may not be repeated, the key becomes LOST instead.
        """
        if record is None or record.execution != execution:
            return _ruled(record, record, KeyOutcome.FENCED)
        if record.state is not KeyState.EXECUTING:
            return _ruled(record, record, KeyOutcome.FENCED)
        if record.repeatable:
            return _ruled(record, None, KeyOutcome.DONE)
        until = now + self.config.ttl_s
        after = replace(_without_pieces(record), state=KeyState.LOST, expires_at=until)
        return _ruled(record, after, KeyOutcome.DONE)

    def forget_answer(self, record: KeyRecord | None, execution: str) -> KeyRuling:
        """Note that the gateway does not hold an ended answer any more.

        If the store does not have all of it either, the record says that it cannot be had again
        (``unkept``); the key itself stays.
        """
        ended = {KeyState.FINISHED, KeyState.FAILED}
        if record is None or record.execution != execution or record.state not in ended:
            return _ruled(record, record, KeyOutcome.FENCED)
        if record.readable:
            return _ruled(record, replace(record, wanted=False), KeyOutcome.DONE)
        after = replace(_without_pieces(record), unkept=True, wanted=False)
        return _ruled(record, after, KeyOutcome.DONE)

    # --- time ------------------------------------------------------------------------------------

    def expire(self, record: KeyRecord | None, now: float) -> KeyRuling:
        """Drop a record that expired, or an answer's stored pieces when their time is over.

        Otherwise the ruling changes nothing. An execution under way keeps its pieces.
        """
        if record is None:
            return _ruled(None, None, KeyOutcome.DONE)
        if record.expires_at <= now:
            return _ruled(record, None, KeyOutcome.DONE)
        if record.stored and record.stored_until <= now:
            if record.state is KeyState.EXECUTING:  # a stream longer than that: still being read
                later = replace(record, stored_until=now + self.config.handover_s)
                return _ruled(record, later, KeyOutcome.DONE)
            return _ruled(record, _without_pieces(record), KeyOutcome.DONE)
        return _ruled(record, record, KeyOutcome.DONE)

    # --- who waits for another gateway -----------------------------------------------------------

    def follow(
        self, record: KeyRecord | None, execution: str, here: int, *, dead: bool
    ) -> FollowStep:
        """What a gateway does next that waits for another's answer; ``here`` pieces arrived.

        ``dead``: the gateway that owns the record beats no more. Changes nothing.
        """
        if record is None or record.execution != execution:
            return FollowStep.MOVED
        if record.state is KeyState.LOST:
            return FollowStep.UNKNOWN
        if record.state is KeyState.EXECUTING:
            return FollowStep.TAKE_OVER if dead else FollowStep.WAIT
        if record.pieces and here >= record.pieces:
            return FollowStep.COMPLETE
        if not record.readable and (record.unkept or dead):
            return FollowStep.MOVED if record.state is KeyState.FAILED else FollowStep.GONE
        return FollowStep.WAIT


def due_at(record: KeyRecord) -> float:
    """When (seconds since the epoch) ``expire`` has to look at a record next."""
    return min(record.expires_at, record.stored_until) if record.stored else record.expires_at


def _ruled(
    before: KeyRecord | None,
    after: KeyRecord | None,
    outcome: KeyOutcome,
    pieces: tuple[bytes, ...] = (),
) -> KeyRuling:
    changed = before != after
    if changed:
        check_transition(before, after)
    return KeyRuling(outcome, after, changed, pieces)


def _without_pieces(record: KeyRecord) -> KeyRecord:
    return replace(record, stored=0, bytes=0, stored_until=0.0, wanted=False)


__all__ = [
    "AnswerEnd",
    "AnswerPieces",
    "Decide",
    "FollowStep",
    "IdempotencyConfig",
    "KeyChange",
    "KeyClaim",
    "KeyOutcome",
    "KeyPolicy",
    "KeyRuling",
    "due_at",
    "is_final",
]
