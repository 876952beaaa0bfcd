"""Memory of answers that tenants share: what is held is counted, and who holds most loses first."""

from types import SimpleNamespace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.core.request.idempotency.key_policy import IdempotencyConfig
from holdfast.core.request.idempotency.key_record import KeyName, KeyRecord, KeyState
from holdfast.gateway.request.idempotency.recorded_answers import RecordedAnswers
from holdfast.gateway.request.idempotency.shared_answer import (
    FollowedAnswer,
    KeyedCaller,
    RecordedAnswer,
)

MOST, ANSWER = 40, 20  # bytes: of all answers, and of one


class Client:
    """An exchange whose client may stop reading."""

    method, path, query, headers, body, body_max = b"POST", b"/v1/x", b"", {}, b"", 0

    def __init__(self):
        self.listener = None
        self.started = False
        self.sent = b""

    def start(self, status, headers):
        self.started = True

    def write(self, payload):
        self.sent += payload

    def end(self):
        """The answer is complete."""

    def fail(self, payload):
        self.sent += payload


class Home:
    """What callers and answers use of the service for keys."""

    def done(self, caller):
        if caller.answer is not None:
            caller.answer.leave(caller)

    left = done

    def refuse(self, caller, error):
        caller.refuse(error)

    def ended(self, answer):
        """It is noted by whoever tests it."""


class Stage:
    """A room, and answers of tenants in it."""

    def __init__(self):
        config = IdempotencyConfig(memory_bytes_max=MOST, answer_bytes_max=ANSWER)
        self.room, self.home, self.made = RecordedAnswers(config), Home(), 0

    def begin(self, tenant):
        self.made += 1
        name = KeyName(tenant, str(self.made))
        answer = RecordedAnswer(name, "e", self.home, self.room, Client(), ANSWER)
        self.room.add(answer)
        answer.start(200, b"")
        return answer

    def read(self, answer, *, slow=False):
        ask = SimpleNamespace(stream=True)
        proxied = SimpleNamespace(exchange=Client(), ask=ask, request_id=b"req_1")
        caller = KeyedCaller(self.home, proxied, answer.name, "f")
        caller.slow = caller.exchange.started = slow
        answer.join(caller)
        return caller

    def end(self, answer):
        answer.end()
        self.room.ended(answer, self.made)
        answer.seal()

    def keep(self, tenant, size=10):
        answer = self.begin(tenant)
        answer.write(b"x" * size)
        self.end(answer)
        return answer


def test_who_holds_most_loses_its_oldest_answer_and_others_keep_theirs():
    stage = Stage()
    kept = [stage.keep("blue")] + [stage.keep("red") for _ in range(6)]
    assert list(stage.room.kept.values()) == [kept[0], *kept[4:]]
    stage.keep("blue")
    assert list(stage.room.kept.values())[:3] == [kept[0], *kept[5:]]
    assert stage.room.size == MOST


def test_an_execution_of_who_holds_most_is_not_kept_where_another_needs_the_room():
    stage = Stage()
    running = [stage.begin("red") for _ in range(2)]
    for answer in running:
        answer.write(b"x" * ANSWER)
    mine = stage.begin("blue")
    mine.write(b"x" * 10)
    assert mine.kept
    assert [answer.kept for answer in running] == [False, True]
    assert stage.room.size == 30


def test_one_that_is_dropped_is_counted_as_long_as_somebody_reads_it():
    stage = Stage()
    answer = stage.begin("red")
    answer.write(b"x" * 10)
    slow = stage.read(answer, slow=True)
    stage.end(answer)
    stage.room.drop_kept(answer.name)
    assert (stage.room.size, answer.pieces) == (10, [b"x" * 10])
    slow.on_client_ready()
    assert slow.exchange.sent == b"x" * 10
    assert (stage.room.size, answer.pieces) == (0, [])


def test_one_that_is_too_large_is_counted_as_far_as_it_is_still_here():
    stage = Stage()
    answer = stage.begin("red")
    slow = stage.read(answer, slow=True)
    for _ in range(3):
        answer.write(b"x" * 10)
    assert not answer.kept
    assert stage.room.size == 20, "what its client has not read is here"
    slow.on_client_ready()
    answer.write(b"x")
    assert stage.room.size == 0


def test_clients_that_do_not_read_are_let_go_where_another_tenant_needs_what_they_hold():
    stage = Stage()
    held = []
    for _ in range(2):
        answer = stage.begin("red")
        answer.write(b"x" * ANSWER)
        held.append(stage.read(answer, slow=True))
        stage.end(answer)
    own = stage.keep("red")
    assert not own.kept, "red has no more than there is"
    assert not any(caller.gone for caller in held)
    kept = stage.keep("blue")
    assert list(stage.room.kept.values())[-1] is kept
    assert any(caller.gone for caller in held)
    told = next(caller for caller in held if caller.gone)
    assert b"idempotency_answer_gone" in told.exchange.sent


def test_what_comes_from_another_gateway_is_counted_until_it_is_read():
    stage = Stage()
    name = KeyName("red", "d")
    answer = FollowedAnswer(name, "e", stage.room)
    slow = stage.read(answer, slow=True)
    record = KeyRecord(KeyState.FINISHED, "f", "e", "o", 1.0, streams=True, status=200)
    assert answer.take(record, (b"x" * 30,))
    assert stage.room.size == 30
    assert not answer.take(record, (b"x" * 11,)), "there is no room, and nobody to take it from"
    answer.unlist()
    answer.seal()
    assert stage.room.size == 30
    slow.on_client_ready()
    assert stage.room.size == 0


class Answers(RuleBasedStateMachine):
    """Executions, readers and drops in any order: all that is held is counted, and bounded."""

    @initialize()
    def begins(self):
        self.stage = Stage()
        self.answers, self.running, self.callers = [], [], []

    @rule(tenant=st.sampled_from("abc"))
    def begin(self, tenant):
        answer = self.stage.begin(tenant)
        self.answers.append(answer)
        self.running.append(answer)

    @rule(which=st.integers(0), size=st.integers(1, 12), last=st.booleans())
    def write(self, which, size, last):
        if self.running:
            answer = self.running[which % len(self.running)]
            before, held = answer.kept, dict(self.stage.room._share.held)
            answer.write(b"data: [DONE]"[:size] if last else b"x" * size)
            if before and not answer.kept and answer.size <= ANSWER:
                mine = held.pop(answer.name.tenant, 0)
                assert (mine + size) * (len(held) + 1) > MOST, (mine, size, held)

    @rule(which=st.integers(0))
    def end(self, which):
        if self.running:
            self.stage.end(self.running.pop(which % len(self.running)))

    @rule(which=st.integers(0), slow=st.booleans())
    def read(self, which, slow):
        here = [*self.stage.room.running.values(), *self.stage.room.kept.values()]
        here = [answer for answer in here if answer.kept or not answer.dropped]
        if here:
            self.callers.append(self.stage.read(here[which % len(here)], slow=slow))

    @rule(which=st.integers(0), leaves=st.booleans())
    def go_on(self, which, leaves):
        here = [caller for caller in self.callers if not caller.gone]
        if here:
            caller = here[which % len(here)]
            caller.on_client_gone() if leaves else caller.on_client_ready()

    @rule(which=st.integers(0))
    def drop(self, which):
        kept = list(self.stage.room.kept)
        if kept:
            self.stage.room.drop_kept(kept[which % len(kept)])

    @invariant()
    def what_is_held_is_counted(self):
        if not hasattr(self, "stage"):
            return
        room = self.stage.room
        assert room.size == sum(sum(held.values()) for held in room._held.values()) <= MOST
        for answer in self.answers:
            counted = room._held.get(answer.name.tenant, {}).get(answer, 0)
            here = sum(map(len, answer.pieces))
            if answer.kept:
                assert counted == here
            elif not any(caller.slow for caller in answer.callers):
                assert counted <= here
        total = {t: sum(held.values()) for t, held in room._held.items()}
        assert room._share.held == {t: size for t, size in total.items() if size}


TestAnswers = Answers.TestCase
TestAnswers.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
