"""What the fuzzer found, one test for each, so that no seed need be lucky to find it again."""

import importlib
from pathlib import Path

import orjson
import pytest

from holdfast.config.gateway import HttpConfig
from holdfast.core.failure import Kind
from holdfast.gateway.api.answers import AnswerKind, MalformedAnswerError, read_answer
from holdfast.gateway.api.chunks import StreamApi, read_chunk
from holdfast.gateway.api.continuation import Seam
from holdfast.gateway.api.responses import read_response_event
from holdfast.gateway.http.server import Server
from holdfast.gateway.http.sse import EventSplitter, MalformedStreamError, framed
from turns import AtOnce

FUZZ = Path(__file__).resolve().parent.parent / "fuzz"
MS = 1_000_000
EVENTS = {b"content-type": b"text/event-stream"}
DONE = b"data: [DONE]\n\n"


def chunk(text: str | None = None, finish: str | None = None, index: int = 0) -> dict:
    delta = {} if text is None else {"content": text}
    return {"id": "c", "choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def event(value: object) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(value)


@pytest.fixture
def relay(monkeypatch):
    """Plays scripts, one for each call, through a driver: what the client and the calls became."""
    monkeypatch.syspath_prepend(str(FUZZ))
    fuzz = importlib.import_module("fuzz_relay")
    engine = importlib.import_module("fuzz_engine")

    def run(*scripts, api="chat", attempts=2, eager=False, step=MS):
        class World(fuzz.World):
            def called(self, caller, path, body):
                ops = scripts[len(self.calls)]
                head = (MS, "head", (200, EVENTS if api != "speech" else {}))
                timed = [(step, *op) if isinstance(op, tuple) else (step, "data", op) for op in ops]
                call = fuzz.Call(caller, engine.Script([head, *timed]), self.now)
                self.calls.append(call)
                return call

        world = World(None, fuzz.fleet("vllm", 2, attempts, eager=eager), None, 1)
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        if api != "chat":
            body = {"model": "m", "input": "hi", "voice": "v", "stream": api == "responses"}
        exchange = fuzz.Exchange(fuzz._PATHS[api], orjson.dumps(body))
        world.driver.on_head(exchange)
        world.driver.on_request(exchange)
        fuzz._play(world, [fuzz.Asked(api, body, exchange)])
        fuzz._check_left(world)
        return exchange, world.calls, fuzz

    return run


# --- reads and events -----------------------------------------------------------------------------


def test_reads_that_are_as_long_as_events_but_not_events_are_told_apart(relay):
    texts = [f" word{number:03}" for number in range(40)]
    wire = b"".join(event(chunk(text)) for text in texts)
    size = len(event(chunk(texts[0])))
    tail = [event(chunk(None, "stop")), DONE, ("end", None)]
    for shift in (1, 20, size - 1):  # every read ends within an event, all as long as one
        reads = [wire[:shift], *(wire[at : at + size] for at in range(shift, len(wire), size))]
        exchange, _, fuzz = relay([*reads, *tail])
        assert fuzz.look(bytes(exchange.sent)).text == "".join(texts)


def test_a_payload_in_several_lines_reaches_the_client_in_one(relay):
    lines = orjson.dumps(chunk("hi there"), option=orjson.OPT_INDENT_2).split(b"\n")
    pretty = b"".join(b"data: %b\n" % line for line in lines) + b"\n"
    exchange, _, fuzz = relay([pretty, pretty, event(chunk(None, "stop")), DONE, ("end", None)])
    seen = fuzz.look(bytes(exchange.sent))
    assert (seen.text, seen.done, seen.errors) == ("hi therehi there", True, 0)


def test_an_event_is_written_on_one_line():
    assert framed(b'{"a":\n1}') == b'data: {"a": 1}\n\n'
    assert framed(b"{}", b"x.y") == b"event: x.y\ndata: {}\n\n"
    assert EventSplitter(100).feed_named(framed(b"{}", b"x.y")) == [(b"x.y", b"{}")]


@pytest.mark.parametrize("member", [b'"id":"\xff"', b'"model":"\xc3("'])
def test_bytes_that_are_no_text_are_malformed_wherever_they_stand(member):
    for api, key in (
        (StreamApi.CHAT, b'"delta":{"content":"x"}'),
        (StreamApi.COMPLETIONS, b'"text":"x"'),
    ):
        with pytest.raises(MalformedStreamError):
            read_chunk(b'{"choices":[{"index":0,%b}],%b}' % (key, member), api)
    with pytest.raises(MalformedStreamError):
        read_response_event(b'{"type":"response.created",%b}' % member)
    with pytest.raises(MalformedAnswerError):
        read_answer(b'{"choices":[{"message":{"content":"x"}}],%b}' % member, AnswerKind.CHAT)


# --- the end of an answer -------------------------------------------------------------------------

SAID = [event(chunk("all was ")), event(chunk("said")), event(chunk(None, "stop"))]
BEHIND = {
    "nothing, for ever": [("stall", None)],
    "an error": [event({"error": {"message": "m", "code": 500}}), DONE, ("end", None)],
    "rubbish": [b"<html>", ("end", None)],
    "a reset": [("fail", Kind.RESET)],
    "a second end": [event(chunk(None, "stop")), DONE, ("end", None)],
    "more text": [event(chunk("more")), event(chunk(None, "stop")), DONE, ("end", None)],
}


@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND.keys())
def test_whatever_follows_the_last_word_the_answer_is_whole_and_has_one_end(relay, behind):
    exchange, calls, fuzz = relay([*SAID, *behind], [*SAID, DONE, ("end", None)])
    seen = fuzz.look(bytes(exchange.sent))
    assert (seen.text, seen.finishes, seen.done) == ("all was said", {0: 1}, True)
    assert len(calls) == 1, "nobody needs to go on with it"


def test_the_end_of_a_choice_that_nobody_asked_for_ends_nothing(relay):
    other = event(chunk(None, "stop", index=5))
    first = [event(chunk("one")), other, event(chunk(" two")), ("fail", Kind.RESET)]
    second = [event(chunk(" three")), other, event(chunk(None, "stop")), DONE, ("end", None)]
    exchange, _, fuzz = relay(first, second)
    seen = fuzz.look(bytes(exchange.sent))
    assert seen.finishes[0] == 1
    assert seen.done


def test_a_seam_ends_with_the_first_choice_alone():
    seam = Seam(orjson.dumps(chunk("one")), "one", 1, (), 1)
    seam.rewrite(orjson.dumps(chunk("?", "stop", index=5)))
    assert not seam.finished
    seam.rewrite(orjson.dumps(chunk(None, "stop")))
    assert seam.finished


EMPTY = [event(chunk("")), event(chunk(None, "stop")), DONE, ("end", None)]


def test_two_empty_answers_after_a_sign_of_life_are_still_an_answer_with_an_end(relay):
    exchange, _, fuzz = relay(EMPTY, EMPTY, eager=True, step=500 * MS)
    assert exchange.sent.startswith(b": ")
    seen = fuzz.look(bytes(exchange.sent))
    assert (seen.finishes, seen.done, seen.roles) == ({0: 1}, True, 0)


def test_a_third_answer_is_streamed_alone_after_two_empty_ones(relay):
    exchange, _, fuzz = relay(EMPTY, EMPTY, [*SAID, DONE, ("end", None)], attempts=3)
    seen = fuzz.look(bytes(exchange.sent))
    assert (seen.text, seen.finishes, seen.done) == ("all was said", {0: 1}, True)


def test_two_empty_answers_and_half_a_third_end_with_an_error(relay):
    half = [event({**chunk("half"), "x": 1}), event(chunk("\ufeff", None, 1)), ("fail", Kind.RESET)]
    exchange, _, fuzz = relay(EMPTY, EMPTY, half, attempts=3)
    seen = fuzz.look(bytes(exchange.sent))
    assert (seen.text, seen.done, seen.errors) == ("half", False, 1)


def test_a_replica_that_says_nothing_at_length_is_given_up(relay):
    role = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    exchange, calls, fuzz = relay([role] * 2_000, [*SAID, DONE, ("end", None)])
    assert fuzz.look(bytes(exchange.sent)).text == "all was said"
    assert calls[0].at < 1_000


# --- responses and sounds -------------------------------------------------------------------------


def named(kind: str, **more) -> bytes:
    return b"event: %b\n%b" % (kind.encode(), event({"type": kind, **more}))


DELTA = named("response.output_text.delta", delta="hi")
COMPLETED = named("response.completed", response={"usage": {"output_tokens": 1}})


def test_half_an_event_of_a_response_does_not_swallow_the_error_behind_it(relay):
    exchange, _, fuzz = relay([DELTA, DELTA[:40], ("fail", Kind.RESET)], api="responses")
    first, last = map(orjson.loads, fuzz.read_events(bytes(exchange.sent)))
    assert first["delta"] == "hi"
    assert last["error"]["code"] == "upstream_failed"


@pytest.mark.parametrize("behind", [("stall", None), COMPLETED, b"<html>"])
def test_a_complete_response_ends_whatever_follows(relay, behind):
    exchange, _, fuzz = relay([DELTA, COMPLETED, behind, ("end", None)], api="responses")
    kinds = [orjson.loads(one)["type"] for one in fuzz.read_events(bytes(exchange.sent))]
    assert kinds == ["response.output_text.delta", "response.completed"]


def test_two_empty_responses_are_shown(relay):
    empty = [named("response.created"), COMPLETED, ("end", None)]
    exchange, _, fuzz = relay(empty, empty, api="responses")
    kinds = [orjson.loads(one)["type"] for one in fuzz.read_events(bytes(exchange.sent))]
    assert kinds == ["response.created", "response.completed"]


def test_half_a_sound_does_not_look_like_a_whole_one(relay):
    exchange, _, _ = relay([b"\x01\x02", ("fail", Kind.RESET)], api="speech")
    assert exchange.aborted
    assert bytes(exchange.sent) == b"\x01\x02"


# --- the server -----------------------------------------------------------------------------------


class Wire:
    def __init__(self):
        self.sent = b""

    def get_extra_info(self, name):
        """Nothing is known of the peer."""

    def write(self, data):
        self.sent += data

    def is_closing(self):
        return False

    def set_write_buffer_limits(self, high):
        assert high


def test_the_question_whether_there_is_a_server_is_answered_with_origins_too():
    class App:
        def on_head(self, exchange):
            raise AssertionError("not for the app")

    server = Server(App(), HttpConfig(), loop=AtOnce(), cors_origins=("*",))
    connection, wire = server.protocol(), Wire()
    connection.connection_made(wire)
    connection.data_received(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n")
    assert wire.sent.startswith(b"HTTP/1.1 204")
    connection.connection_lost(None)
