"""The policy of idempotency keys: every outcome once, and random histories of several gateways."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.core.request.idempotency.key_policy import (
    AnswerEnd,
    AnswerPieces,
    FollowStep,
    IdempotencyConfig,
    KeyClaim,
    KeyOutcome,
    KeyPolicy,
    due_at,
    is_final,
)
from holdfast.core.request.idempotency.key_record import (
    TRANSITIONS,
    KeyRecord,
    KeyState,
    KeyTransitionError,
    KeyUsage,
    check_transition,
)
from holdfast.core.types import ConfigError

NOW = 1_000.0
NONE = KeyUsage()
POLICY = KeyPolicy(IdempotencyConfig())
STORES = KeyPolicy(IdempotencyConfig(answers="store"))


def claim(execution="e1", owner="g1", fingerprint="f", now=NOW, *, repeatable=True):
    return KeyClaim(fingerprint, execution, owner, repeatable, now)


def executing(policy=POLICY, **more):
    ruling = policy.claim(None, NONE, claim(**more))
    assert ruling.outcome is KeyOutcome.EXECUTE
    assert ruling.record is not None
    return ruling.record


def finished(policy=POLICY, *, record=None, status=200, pieces=(b"ab",), whole=True, kept=True):
    record = record or executing(policy)
    stores = policy.config.answers == "store"
    told = AnswerPieces(record.execution, status, "h", False, 0, pieces if stores else ())
    ruling = policy.finish(record, NONE, told, AnswerEnd(len(pieces), whole, kept), NOW)
    assert ruling.outcome is KeyOutcome.DONE
    assert ruling.record is not None
    return ruling.record


# --- config ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("ttl_s", 0.0, "more than 0"),
        ("poll_s", -1.0, "more than 0"),
        ("lease_s", 2.0, "at least 3"),
        ("tenant_keys_max", 2_000_000, "at most idempotency.keys_max"),
        ("tenant_bytes_max", 2 << 30, "at most idempotency.bytes_max"),
        ("answer_bytes_max", 65 << 20, "at most idempotency.memory_bytes_max"),
        ("waiting_max", 0, "more than 0"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(field, value, word):
    with pytest.raises(ConfigError, match=word) as caught:
        IdempotencyConfig(**{field: value})
    assert f"idempotency.{field}" in str(caught.value)


# --- claims ---------------------------------------------------------------------------------------


def test_the_first_claim_executes_and_a_second_joins():
    record = executing()
    same = POLICY.claim(record, NONE, claim("e2", "g1"))
    assert (same.outcome, same.changed) == (KeyOutcome.JOIN, False)
    other = POLICY.claim(record, NONE, claim("e2", "g2"))
    assert other.outcome is KeyOutcome.JOIN
    assert other.record == replace(record, wanted=True)


def test_another_request_under_the_key_is_refused_in_every_state():
    for record in (executing(), finished(), finished(status=503), lost()):
        ruling = POLICY.claim(record, NONE, claim("e2", fingerprint="other"))
        assert (ruling.outcome, ruling.changed) == (KeyOutcome.MISMATCH, False)


def lost():
    record = executing(repeatable=False)
    ruling = POLICY.take_over(record, "e1", claim("e2", "g2"))
    assert ruling.outcome is KeyOutcome.UNKNOWN
    assert ruling.record is not None
    return ruling.record


def test_a_final_answer_is_joined_and_a_failure_is_executed_again():
    assert POLICY.claim(finished(), NONE, claim("e2")).outcome is KeyOutcome.JOIN
    again = POLICY.claim(finished(status=503), NONE, claim("e2", "g2"))
    assert again.outcome is KeyOutcome.EXECUTE
    assert again.record is not None
    assert (again.record.execution, again.record.owner) == ("e2", "g2")


def test_an_answer_that_cannot_be_had_is_gone_for_others_and_not_executed_again():
    record = finished(kept=False)
    assert record.unkept
    assert POLICY.claim(record, NONE, claim("e2", "g2")).outcome is KeyOutcome.GONE
    assert POLICY.claim(record, NONE, claim("e2", "g1")).outcome is KeyOutcome.JOIN


def test_what_expired_is_free_except_for_an_execution_under_way():
    late = NOW + 200_000
    assert POLICY.claim(finished(), NONE, claim("e2", now=late)).outcome is KeyOutcome.EXECUTE
    assert POLICY.claim(lost(), NONE, claim("e2", now=late)).outcome is KeyOutcome.EXECUTE
    assert POLICY.claim(executing(), NONE, claim("e2", now=late)).outcome is KeyOutcome.JOIN


def test_full_stores_refuse_new_keys_and_no_known_one():
    config = IdempotencyConfig(keys_max=10, tenant_keys_max=5)
    policy = KeyPolicy(config)
    for usage in (KeyUsage(keys=5, all_keys=5), KeyUsage(keys=0, all_keys=10)):
        assert policy.claim(None, usage, claim()).outcome is KeyOutcome.FULL
        assert policy.claim(executing(), usage, claim("e2")).outcome is KeyOutcome.JOIN
        failed = finished(status=500)
        assert policy.claim(failed, usage, claim("e2")).outcome is KeyOutcome.EXECUTE


# --- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "whole", "final"),
    [
        (200, True, True),
        (201, True, True),
        (200, False, False),  # a stream that ended with an error event
        (400, True, True),
        (404, True, True),
        (413, True, True),
        (422, True, True),
        (401, True, False),
        (408, True, False),
        (409, True, False),
        (429, True, False),
        (499, True, False),
        (500, True, False),
        (502, True, False),
        (503, True, False),
        (504, True, False),
        (0, True, False),
    ],
)
def test_which_answers_are_final(status, whole, final):
    assert is_final(status, whole=whole) is final
    state = finished(status=status, whole=whole).state
    assert state is (KeyState.FINISHED if final else KeyState.FAILED)


def test_an_end_told_twice_is_the_same_and_another_executions_is_refused():
    record = finished()
    told = AnswerPieces("e1", 200, "h", False)
    again = POLICY.finish(record, NONE, told, AnswerEnd(1, whole=True, kept=True), NOW)
    assert (again.outcome, again.record, again.changed) == (KeyOutcome.DONE, record, False)
    other = AnswerPieces("e2", 200, "h", False)
    for before in (record, executing(), None):
        ruling = POLICY.finish(before, NONE, other, AnswerEnd(1, whole=True, kept=True), NOW)
        assert (ruling.outcome, ruling.changed) == (KeyOutcome.FENCED, False)
    ruling = POLICY.finish(lost(), NONE, told, AnswerEnd(1, whole=True, kept=True), NOW)
    assert ruling.outcome is KeyOutcome.FENCED


def test_answers_are_stored_for_as_long_as_they_may():
    at_rest = finished(STORES)
    assert at_rest.readable
    assert at_rest.stored_until == at_rest.expires_at == NOW + 86_400
    in_memory = finished()
    assert not in_memory.readable
    handed = POLICY.publish(in_memory, NONE, AnswerPieces("e1", 200, "h", False, 0, (b"ab",)), NOW)
    assert handed.record is not None
    assert handed.record.readable
    assert handed.record.stored_until == NOW + 60
    assert due_at(handed.record) == NOW + 60


def test_only_the_next_pieces_are_stored():
    record = executing()
    first = POLICY.publish(record, NONE, AnswerPieces("e1", 200, "h", True, 0, (b"a", b"b")), NOW)
    assert first.record is not None
    assert (first.record.stored, first.record.bytes, first.pieces) == (2, 2, (b"a", b"b"))
    for start in (0, 1, 3):
        told = AnswerPieces("e1", 200, "h", True, start, (b"x",))
        again = POLICY.publish(first.record, NONE, told, NOW)
        assert (again.changed, again.pieces, again.outcome) == (False, (), KeyOutcome.DONE)
    for before in (None, lost(), executing(execution="e9")):
        told = AnswerPieces("e1", 200, "h", True, 0, (b"x",))
        assert POLICY.publish(before, NONE, told, NOW).outcome is KeyOutcome.FENCED


@pytest.mark.parametrize(
    "usage", [KeyUsage(bytes=256 << 20), KeyUsage(all_bytes=1 << 30)], ids=["tenant", "all"]
)
def test_what_finds_no_room_is_not_kept_and_the_key_still_counts(usage):
    told = AnswerPieces("e1", 200, "h", False, 0, (b"ab",))
    ruling = STORES.finish(executing(STORES), usage, told, AnswerEnd(1, True, True), NOW)
    assert ruling.record is not None
    assert (ruling.record.unkept, ruling.record.stored, ruling.pieces) == (True, 0, ())
    assert ruling.record.state is KeyState.FINISHED
    ruling = STORES.publish(executing(STORES), usage, told, NOW)
    assert ruling.record is not None
    assert ruling.record.unkept
    assert not STORES.publish(ruling.record, NONE, told, NOW).changed


def test_what_was_broken_off_is_free_or_lost():
    assert POLICY.release(executing(), "e1", NOW).record is None
    kept = POLICY.release(executing(repeatable=False), "e1", NOW).record
    assert kept is not None
    assert kept.state is KeyState.LOST
    for before in (None, finished(), executing(execution="e9")):
        ruling = POLICY.release(before, "e1", NOW)
        assert (ruling.outcome, ruling.changed) == (KeyOutcome.FENCED, False)


def test_an_answer_that_was_forgotten_is_marked():
    ruling = POLICY.forget_answer(replace(finished(), wanted=True), "e1")
    assert ruling.record is not None
    assert (ruling.record.unkept, ruling.record.wanted) == (True, False)
    stored = finished(STORES)
    assert POLICY.forget_answer(replace(stored, wanted=True), "e1").record == stored
    assert POLICY.forget_answer(executing(), "e1").outcome is KeyOutcome.FENCED


# --- the owner's death ----------------------------------------------------------------------------


def test_what_may_be_repeated_is_taken_over_once():
    record = executing()
    first = POLICY.take_over(record, "e1", claim("e2", "g2"))
    assert first.outcome is KeyOutcome.EXECUTE
    assert first.record is not None
    second = POLICY.take_over(first.record, "e1", claim("e3", "g3"))
    assert (second.outcome, second.changed) == (KeyOutcome.FENCED, False)
    for before in (None, finished(), finished(status=503)):
        assert POLICY.take_over(before, "e1", claim("e2")).outcome is KeyOutcome.FENCED


def test_what_may_not_be_repeated_is_lost_and_stays_so():
    record = lost()
    assert record.state is KeyState.LOST
    assert POLICY.claim(record, NONE, claim("e3")).outcome is KeyOutcome.UNKNOWN
    never = KeyPolicy(IdempotencyConfig(repeat_lost=False))
    ruling = never.take_over(executing(), "e1", claim("e2"))
    assert ruling.outcome is KeyOutcome.UNKNOWN


# --- who waits ------------------------------------------------------------------------------------


def test_what_a_follower_does():
    follow = POLICY.follow
    assert follow(None, "e1", 0, dead=False) is FollowStep.MOVED
    assert follow(executing(execution="e2"), "e1", 0, dead=False) is FollowStep.MOVED
    assert follow(lost(), "e1", 0, dead=True) is FollowStep.UNKNOWN
    assert follow(executing(), "e1", 0, dead=False) is FollowStep.WAIT
    assert follow(executing(), "e1", 3, dead=True) is FollowStep.TAKE_OVER
    ended = finished()
    assert follow(ended, "e1", 0, dead=False) is FollowStep.WAIT
    assert follow(ended, "e1", 1, dead=True) is FollowStep.COMPLETE
    assert follow(ended, "e1", 0, dead=True) is FollowStep.GONE
    assert follow(finished(STORES), "e1", 0, dead=True) is FollowStep.WAIT  # it is in the store
    assert follow(finished(kept=False), "e1", 0, dead=False) is FollowStep.GONE
    failed = finished(status=503)
    assert follow(failed, "e1", 0, dead=True) is FollowStep.MOVED
    assert follow(failed, "e1", 1, dead=False) is FollowStep.COMPLETE


# --- time -----------------------------------------------------------------------------------------


def test_what_expired_goes_and_handed_over_pieces_before_it():
    assert POLICY.expire(None, NOW).record is None
    record = finished()
    assert not POLICY.expire(record, NOW + 86_399).changed
    assert POLICY.expire(record, NOW + 86_400).record is None
    told = AnswerPieces("e1", 200, "h", False, 0, (b"ab",))
    handed = POLICY.publish(record, NONE, told, NOW).record
    assert handed is not None
    without = POLICY.expire(handed, NOW + 61).record
    assert without is not None
    assert (without.stored, without.bytes, without.pieces) == (0, 0, 1)
    running = POLICY.publish(executing(), NONE, told, NOW).record
    assert running is not None
    later = POLICY.expire(running, NOW + 61).record
    assert later is not None
    assert (later.stored, later.stored_until) == (1, NOW + 121)


# --- the table ------------------------------------------------------------------------------------


def test_a_transition_that_is_not_in_the_table_is_refused():
    for old in (None, *KeyState):
        for new in (None, *KeyState):
            before = None if old is None else KeyRecord(old, "f", "e", "g", 0.0)
            after = None if new is None else KeyRecord(new, "f", "e", "g", 0.0)
            if new in TRANSITIONS[old]:
                check_transition(before, after)
            else:
                with pytest.raises(KeyTransitionError, match="cannot become"):
                    check_transition(before, after)


# --- random histories -----------------------------------------------------------------------------

GATEWAYS = ("g1", "g2", "g3")


class Histories(RuleBasedStateMachine):
    """Three gateways, one key, in any order; gateways die, freeze and come back late.

    Each gateway believes what it was told last. The model counts executions and remembers the
    terminal answers that anybody was shown.
    """

    def __init__(self):
        super().__init__()
        self.policy = STORES
        self.now = NOW
        self.record = None
        self.usage = NONE
        self.serial = 0
        self.believes = {}  # by execution: the gateway that runs it
        self.ends = {}  # by execution: how it ended, if its gateway told the store
        self.terminal = []  # executions whose terminal answer was shown, in one life of the key
        self.begun = []  # executions, in one life of the key
        self.repeatable = True

    def change(self, ruling):
        if ruling.changed:
            check_transition(self.record, ruling.record)
            if ruling.record is None:
                self.terminal, self.begun = [], []
            self.record = ruling.record
        return ruling.outcome

    def fresh(self, owner):
        self.serial += 1
        return claim(f"e{self.serial}", owner, now=self.now, repeatable=self.repeatable)

    @rule(owner=st.sampled_from(GATEWAYS), repeatable=st.booleans())
    def call(self, owner, repeatable):
        if self.record is None:
            self.repeatable = repeatable
        before = self.record
        expired = before is not None and before.expires_at <= self.now
        asked = self.fresh(owner)
        outcome = self.change(self.policy.claim(before, self.usage, asked))
        if outcome is KeyOutcome.EXECUTE:
            if expired:
                self.terminal, self.begun = [], []
            free = before is None or expired or before.state is KeyState.FAILED
            assert free
            self.begun.append(asked.execution)
            self.believes[asked.execution] = owner
        elif outcome is KeyOutcome.JOIN:
            assert before is not None
            assert before.state in {KeyState.EXECUTING, KeyState.FINISHED}

    @precondition(lambda self: self.believes)
    @rule(data=st.data(), status=st.sampled_from([200, 422, 429, 503]), whole=st.booleans())
    def end(self, data, status, whole):
        """A gateway comes to the end of an execution, perhaps long after it was taken for dead."""
        execution = data.draw(st.sampled_from(sorted(self.believes)))
        told = AnswerPieces(execution, status, "h", False, 0, (execution.encode(),))
        end = AnswerEnd(1, whole, kept=True)
        outcome = self.change(self.policy.finish(self.record, self.usage, told, end, self.now))
        del self.believes[execution]
        if outcome is KeyOutcome.DONE and is_final(status, whole=whole):
            self.terminal.append(execution)
        elif outcome is KeyOutcome.FENCED:
            assert self.record is None or (
                self.record.execution != execution or self.record.state is KeyState.LOST
            )

    @precondition(lambda self: self.record is not None)
    @rule(owner=st.sampled_from(GATEWAYS))
    def take_over(self, owner):
        """Somebody takes the owner for dead, rightly or not."""
        record = self.record
        asked = self.fresh(owner)
        outcome = self.change(self.policy.take_over(record, record.execution, asked))
        if outcome is KeyOutcome.EXECUTE:
            assert record.repeatable
            self.begun.append(asked.execution)
            self.believes[asked.execution] = owner

    @precondition(lambda self: self.believes)
    @rule(data=st.data())
    def die(self, data):
        del self.believes[data.draw(st.sampled_from(sorted(self.believes)))]

    @precondition(lambda self: self.believes)
    @rule(data=st.data())
    def give_up(self, data):
        execution = data.draw(st.sampled_from(sorted(self.believes)))
        self.change(self.policy.release(self.record, execution, self.now))
        del self.believes[execution]

    @rule(seconds=st.sampled_from([1.0, 61.0, 90_000.0]))
    def wait(self, seconds):
        self.now += seconds

    @precondition(lambda self: self.record is not None)
    @rule()
    def sweep(self):
        self.change(self.policy.expire(self.record, self.now))

    @invariant()
    def there_is_one_terminal_answer_in_one_life_of_a_key(self):
        assert len(self.terminal) <= 1

    @invariant()
    def what_may_not_be_repeated_begins_once_until_it_ends(self):
        record = self.record
        if record is not None and not record.repeatable and record.state is KeyState.LOST:
            assert record.execution in self.begun or self.begun == []

    @invariant()
    def the_answer_that_is_kept_is_the_terminal_one(self):
        record = self.record
        if record is not None and record.state is KeyState.FINISHED:
            assert self.terminal == [record.execution]
            assert record.readable or record.unkept or record.stored == 0


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=40)
