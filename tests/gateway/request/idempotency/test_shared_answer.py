"""One answer and its readers, with exchanges that only note what is written to them."""

from types import SimpleNamespace

import pytest

from holdfast.core.request.idempotency.key_policy import IdempotencyConfig
from holdfast.core.request.idempotency.key_record import KeyName
from holdfast.gateway.request.idempotency.recorded_answers import RecordedAnswers
from holdfast.gateway.request.idempotency.shared_answer import KeyedCaller, RecordedAnswer

NAME = KeyName("t", "d")


class Client:
    """An exchange, as the server has it."""

    method, path, query, headers, body, body_max = b"POST", b"/v1/x", b"", {}, b"", 0

    def __init__(self):
        self.listener = None
        self.started = self.over = self.aborted = False
        self.head = self.sent = b""
        self.slow_after = None

    def respond(self, status, headers, body):
        assert not self.started
        self.started = self.over = True
        self.head, self.sent = headers, body

    def start(self, status, headers):
        assert not self.started
        self.started, self.head = True, headers

    def write(self, payload):
        assert self.started
        assert not self.over
        self.sent += payload
        if self.slow_after is not None and len(self.sent) >= self.slow_after:
            self.listener.on_client_slow()

    def end(self):
        assert not self.over
        self.over = True

    def fail(self, payload):
        self.write(payload)
        self.end()

    def abort(self):
        self.over = self.aborted = True


class Home:
    """Notes what callers and answers say."""

    def __init__(self):
        self.over = []
        self.ends = 0

    def left(self, caller):
        self.done(caller)

    def done(self, caller):
        self.over.append(caller)
        if caller.answer is not None:
            caller.answer.leave(caller)

    def ended(self, answer):
        self.ends += 1


class Request:
    """The listener of the execution: hears when it should pause."""

    def __init__(self):
        self.heard = []

    def on_client_slow(self):
        self.heard.append("slow")

    def on_client_ready(self):
        self.heard.append("ready")


@pytest.fixture
def stage():
    home, room = Home(), RecordedAnswers(IdempotencyConfig())

    def answer(bytes_max=1_000_000):
        made = RecordedAnswer(NAME, "e", home, room, Client(), bytes_max)
        made.listener = Request()
        return made

    def caller(*, stream=True):
        ask = SimpleNamespace(stream=stream)
        proxied = SimpleNamespace(exchange=Client(), ask=ask, request_id=b"req_1")
        return KeyedCaller(home, proxied, NAME, "f")

    return SimpleNamespace(home=home, room=room, answer=answer, caller=caller)


def test_who_comes_late_reads_from_the_beginning(stage):
    answer, early, late = stage.answer(), stage.caller(), stage.caller()
    answer.join(early)
    answer.start(200, b"a: b\r\n")
    answer.write(b"one ")
    answer.join(late)
    answer.write(b"two")
    assert early.exchange.sent == late.exchange.sent == b"one two"


def test_the_end_is_shown_when_it_is_sealed_and_not_before(stage):
    answer, caller = stage.answer(), stage.caller()
    answer.join(caller)
    answer.start(200, b"")
    answer.write(b"data: 1\n\n")
    answer.write(b"data: [DONE]\n\n")
    answer.end()
    assert caller.exchange.sent == b"data: 1\n\n"
    assert not caller.exchange.over
    answer.seal()
    assert caller.exchange.sent == b"data: 1\n\ndata: [DONE]\n\n"
    assert caller.exchange.over
    assert stage.home.over == [caller]
    assert stage.home.ends == 1


def test_a_whole_answer_is_shown_when_it_is_sealed(stage):
    answer, caller = stage.answer(), stage.caller(stream=False)
    answer.join(caller)
    answer.respond(200, b"x-ratelimit-limit-requests: 1\r\nx-request-id: r\r\n", b"{}")
    assert not caller.exchange.started
    answer.seal()
    assert caller.exchange.sent == b"{}"
    assert caller.exchange.head == b"x-request-id: r\r\nidempotent-replayed: true\r\n"


def test_the_caller_that_executes_gets_the_headers_as_they_are(stage):
    answer, caller = stage.answer(), stage.caller(stream=False)
    caller.executes = True
    answer.join(caller)
    answer.respond(200, b"x-ratelimit-limit-requests: 1\r\n", b"{}")
    answer.seal()
    assert caller.exchange.head == b"x-ratelimit-limit-requests: 1\r\n"


def test_a_slow_reader_keeps_nobody_waiting_and_misses_nothing(stage):
    answer, quick, slow = stage.answer(), stage.caller(), stage.caller()
    slow.exchange.slow_after = 4
    answer.join(quick)
    answer.join(slow)
    answer.start(200, b"")
    for piece in (b"1234", b"5678", b"9"):
        answer.write(piece)
    answer.end()
    answer.seal()
    assert quick.exchange.over
    assert slow.exchange.sent == b"1234"
    assert answer.listener is None
    slow.exchange.slow_after = None
    slow.on_client_ready()
    assert slow.exchange.sent == b"123456789"
    assert slow.exchange.over


def test_an_answer_that_is_not_kept_waits_for_its_slow_reader_and_holds_little(stage):
    answer, caller = stage.answer(bytes_max=6), stage.caller()
    caller.exchange.slow_after = 8
    answer.join(caller)
    answer.start(200, b"")
    answer.write(b"1234")
    assert stage.room.size == 4
    answer.write(b"5678")
    assert not answer.kept
    assert stage.room.size == 0
    assert answer.listener.heard == ["slow"]
    answer.write(b"9")  # was under way
    assert answer.pieces == [b"9"]
    caller.exchange.slow_after = None
    listener = answer.listener
    caller.on_client_ready()
    assert listener.heard == ["slow", "ready"]
    answer.end()
    answer.seal()
    assert caller.exchange.sent == b"123456789"


def test_comments_are_passed_on_and_not_kept(stage):
    answer, caller = stage.answer(), stage.caller()
    answer.join(caller)
    answer.start(200, b"")
    answer.write(b": waiting\n\n")
    assert caller.exchange.sent == b": waiting\n\n"
    assert answer.pieces == []
    assert not caller.shown


def test_an_error_after_a_comment_is_an_event(stage):
    answer, caller = stage.answer(), stage.caller()
    answer.join(caller)
    caller.comment()
    answer.respond(503, b"", b'{"error": {}}')
    answer.seal()
    assert caller.exchange.sent.endswith(b'data: {"error": {}}\n\n')
    assert caller.exchange.over


def test_an_answer_that_broke_is_broken_for_all(stage):
    answer, caller, late = stage.answer(), stage.caller(stream=False), stage.caller(stream=False)
    answer.join(caller)
    answer.start(200, b"")
    answer.write(b"\x00\x01")
    answer.abort()
    answer.seal()
    answer.join(late)
    assert caller.exchange.aborted
    assert late.exchange.aborted
    assert not answer.whole


def test_an_empty_answer_has_one_piece(stage):
    answer, caller = stage.answer(), stage.caller()
    answer.join(caller)
    answer.start(200, b"")
    answer.end()
    answer.seal()
    assert answer.pieces == [b""]
    assert caller.exchange.over


def test_who_left_gets_nothing_more(stage):
    answer, caller = stage.answer(), stage.caller()
    answer.join(caller)
    answer.start(200, b"")
    caller.on_client_gone()
    answer.write(b"1")
    answer.end()
    answer.seal()
    assert caller.exchange.sent == b""
    assert answer.callers == []


def test_memory_is_shared_and_the_oldest_answers_go_first(stage):
    room = RecordedAnswers(IdempotencyConfig(memory_bytes_max=10, answer_bytes_max=8))
    answers = []
    for number in range(3):
        name = KeyName("t", str(number))
        answer = RecordedAnswer(name, "e", stage.home, room, Client(), 8)
        room.add(answer)
        answer.respond(200, b"", b"12345")
        room.ended(answer, number)
        answers.append(answer)
    assert list(room.kept) == [KeyName("t", "1"), KeyName("t", "2")]
    assert room.size == 10
    running = RecordedAnswer(KeyName("t", "3"), "e", stage.home, room, Client(), 8)
    room.add(running)
    running.respond(200, b"", b"12345678")
    assert running.kept
    assert list(room.kept) == []
    last = RecordedAnswer(KeyName("t", "4"), "e", stage.home, room, Client(), 8)
    room.add(last)
    last.respond(200, b"", b"12345")
    assert not last.kept  # the other one is under way, and stays
    assert room.size == 8
    room.purge({"t"})
    assert room.size == 0
    assert not running.kept


def test_old_answers_are_forgotten(stage):
    room = RecordedAnswers(IdempotencyConfig(ttl_s=100.0, handover_s=10.0))
    for name, status in (("failed", 503), ("final", 200)):
        answer = RecordedAnswer(KeyName("t", name), "e", stage.home, room, Client(), 100)
        room.add(answer)
        answer.respond(status, b"", b"12345")
        room.ended(answer, 0)
    room.expire(5_000_000_000)
    assert len(room.kept) == 2
    room.expire(11_000_000_000)
    assert list(room.kept) == [KeyName("t", "final")]
    room.expire(101_000_000_000)
    assert room.size == 0
