"""Answers of ill replicas through a whole driver: what the client gets must be one honest answer.

Driver, flow, request and attempts are the real ones. Only what touches the outside is made up: the
upstream (a list of calls that play their script), the exchange (keeps what the client sees), the
clock (a number) and the loop (a list). So a case of minutes takes a millisecond, and a seed gives
the same case again.
"""

import json
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any, Final

import orjson
from fuzz_draw import Draw
from fuzz_engine import (
    EVENTS,
    JSON,
    MS,
    Script,
    Truth,
    compose,
    draw_truth,
    response_events,
    stream_events,
)

from holdfast.config.fleet_file import FleetFile
from holdfast.core.messages import FleetView, ReplicaView
from holdfast.core.types import State
from holdfast.engines import Continuation, dialect
from holdfast.gateway.http.sse import EventSplitter
from holdfast.gateway.http.upstream_address import Endpoint
from holdfast.gateway.request.request_driver import RequestDriver
from holdfast.gateway.request.settings import Settings, settings_of
from holdfast.gateway.request.targets import Target

ENGINES: Final = ("vllm", "llamacpp", "sglang", "openai", "tgi", "ollama", "trtllm")
KNOWN: Final = frozenset({200, 400, 404, 422, 429, 502, 503, 504})
EVENT_BYTES: Final = 20_000
MEMORY_BYTES: Final = 6_000
PROMPT: Final = "Say it."
TICK: Final = 50 * MS
END: Final = 200 * 1_000 * MS  # long after every deadline of the files below


@dataclass(slots=True, frozen=True)
class Fleet:
    """A config and its replicas; built once, used by many cases."""

    settings: Settings
    view: FleetView
    replicas: tuple[tuple[str, str, str], ...]  # id, url, engine


@cache
def fleet(engine: str, replicas: int, attempts: int, *, eager: bool) -> Fleet:
    document = {
        "gateway": {
            "stream": {
                "event_bytes_max": EVENT_BYTES,
                "memory_bytes_max": MEMORY_BYTES,
                "answer_bytes_max": EVENT_BYTES,
                "sign_of_life_s": 0.3 if eager else 15.0,
            }
        },
        "models": [
            {
                "name": "m",
                "engine": engine,
                "served_as": "served",
                "endpoints": [f"http://127.0.0.1:{9000 + n}" for n in range(replicas)],
                "deadlines": {
                    "first_token_s": 4.0,
                    "between_tokens_s": 3.0,
                    "request_s": 40.0,
                },
            }
        ],
        "retry": {"attempts": attempts, "continuations": attempts},
        "hedge": {"enabled": eager, "samples_min": 1, "delay_floor_s": 0.1, "share_max": 0.5},
    }
    file = FleetFile.from_json(orjson.dumps(document))
    deployed = file.replicas()
    return Fleet(
        settings_of(file),
        FleetView(1, tuple(ReplicaView(one.replica, State.READY, 1.0) for one in deployed)),
        tuple((one.replica.id, one.url, one.engine) for one in deployed),
    )


# --- the surroundings -----------------------------------------------------------------------------


class Call:
    """A call under way, playing its script."""

    def __init__(self, caller: Any, script: Script, now: int) -> None:
        self.caller = caller
        self.script = script
        self.at = 0
        self.due = now + script.ops[0][0]
        self.paused = self.over = False

    def cancel(self) -> None:
        self.over = True

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def play(self, now: int) -> None:
        """Do the next thing."""
        _, what, value = self.script.ops[self.at]
        self.at += 1
        if self.at < len(self.script.ops):
            self.due = now + self.script.ops[self.at][0]
        if what == "head":
            self.caller.on_head(value[0], dict(value[1]))
        elif what == "data":
            self.caller.on_data(value)
        elif what == "end":
            self.over = True
            self.caller.on_end()
        elif what == "fail":
            self.over = True
            self.caller.on_failure(value, "made up")
        else:
            self.due = 1 << 62


class Upstream:
    """Takes calls and hands them to the world."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def call(self, caller: Any, method: bytes, path: bytes, headers: bytes, body: bytes) -> Call:
        assert method == b"POST"
        assert headers.endswith(b"\r\n")
        return self._world.called(caller, path, body)


class Exchange:
    """One client. Holds the driver to the contract and keeps what the client sees."""

    method = b"POST"
    query = b""

    def __init__(self, path: bytes, body: bytes) -> None:
        self.path = path
        self.headers = {b"content-type": b"application/json", b"host": b"a"}
        self.body = body
        self.body_max = 1 << 20
        self.listener: Any = None
        self.started = self.ended = self.aborted = False
        self.gone = False
        self.whole = False
        self.status = 0
        self.sent = bytearray()

    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        if self.gone:
            return
        self._begin(status, headers)
        self.whole = self.ended = True
        self.sent += body

    def start(self, status: int, headers: bytes) -> None:
        if not self.gone:
            self._begin(status, headers)

    def _begin(self, status: int, headers: bytes) -> None:
        assert not self.started, "one exchange has one response"
        assert not headers or headers.endswith(b"\r\n")
        assert b"\r\n\r\n" not in headers
        assert b"\n" not in headers.replace(b"\r\n", b"")
        self.started, self.status = True, status

    def write(self, payload: bytes) -> None:
        if not self.gone:
            assert self.started, "nothing was begun"
            assert not self.ended, "written after the end"
            self.sent += payload

    def end(self) -> None:
        if not self.gone:
            assert self.started
            assert not self.ended, "ended twice"
            self.ended = True

    def fail(self, payload: bytes) -> None:
        self.write(payload)
        self.end()

    def abort(self) -> None:
        self.aborted = self.ended = True

    def leave(self) -> None:
        """The client closes its connection."""
        if not self.ended and not self.gone:
            self.gone = True
            listener, self.listener = self.listener, None
            if listener is not None:
                listener.on_client_gone()


class World:
    """A driver and everything around it."""

    def __init__(self, draw: Draw, site: Fleet, truth: Truth, seed: int) -> None:
        self.now = 1_000 * MS
        self.draw = draw
        self.truth = truth
        self.calls: list[Call] = []
        self.soon: list[tuple[Any, tuple[Any, ...]]] = []
        self.troubled = True  # scripts may hold faults
        upstream = Upstream(self)
        targets = {
            name: Target(
                name,
                "m",
                "served",
                dialect(engine),
                Endpoint(url),
                upstream,  # type: ignore[arg-type]
                b"",
                b"x-holdfast-replica: %b\r\n" % name.encode(),
            )
            for name, url, engine in site.replicas
        }
        self.driver = RequestDriver(
            site.settings,
            targets,
            name="req_",
            loop=self,  # type: ignore[arg-type]
            now_ns=lambda: self.now,
            streams=lambda name: Random(f"{seed} {name}"),
            news=lambda _: None,
        )
        self.driver.use_secret(b"the fleet's")  # ids of responses are signed: alike in every run
        self.driver.view(site.view)

    def call_soon(self, callback: Any, *arguments: Any) -> None:
        """As of an event loop."""
        self.soon.append((callback, arguments))

    def called(self, caller: Any, path: bytes, body: bytes) -> Call:
        """A replica is called: write its script."""
        script, draw = Script(), self.draw
        later = caller.number > 0
        if len(self.calls) > 8:
            script.ops = [(MS, "head", (400, JSON)), (MS, "end", None)]
        elif path == b"/v1/audio/speech":
            sound = [bytes([at + 1]) * 50 for at in range(len(self.truth.tokens))]
            compose(draw, sound, script, {b"content-type": b"audio/mpeg"}, later=later)
        else:
            asked = orjson.loads(body)
            assert asked["model"] == "served"
            if path == b"/v1/responses":
                compose(draw, response_events(self.truth), script, EVENTS, later=later)
            elif asked.get("stream"):
                events, script.honest = stream_events(
                    draw, self.truth, asked, PROMPT, len(self.calls)
                )
                compose(draw, events, script, EVENTS, later=later)
            else:
                compose(draw, [self._whole(asked)], script, JSON, later=later)
        call = Call(caller, script, self.now)
        self.calls.append(call)
        return call

    def _whole(self, asked: dict[str, Any]) -> bytes:
        text = self.truth.text
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
        choice |= {"text": text} if "prompt" in asked else {"message": {"content": text}}
        usage = {"prompt_tokens": 3, "completion_tokens": len(self.truth.tokens)}
        return orjson.dumps({"id": "x", "choices": [choice], "usage": usage})

    def drain(self) -> None:
        """Run what was put off."""
        while self.soon:
            callback, arguments = self.soon.pop(0)
            callback(*arguments)

    def step(self, until: int) -> None:
        """Let the next thing happen: something of a replica, or a tick."""
        running = [call for call in self.calls if not call.over and not call.paused]
        call = min(running, key=lambda one: one.due, default=None)
        if call is not None and call.due <= until:
            self.now = max(self.now, call.due)
            call.play(self.now)
        else:
            self.now = until
            self.driver.tick()
        self.drain()


# --- what the client saw --------------------------------------------------------------------------


def read_events(stream: bytes) -> list[bytes]:
    """Payloads of a stream, read as strictly as the standard allows: nothing may be left over."""
    payloads: list[bytes] = []
    data: list[bytes] = []
    *lines, rest = stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    assert not rest, "a stream that ends within a line"
    for line in lines:
        name, _, value = line.partition(b":")
        if not line:
            if data:
                payloads.append(b"\n".join(data))
            data = []
        elif name == b"data":
            data.append(value.removeprefix(b" "))
        else:
            assert name in {b"", b"event", b"id", b"retry"}, "a line that is no field"
    assert not data, "a stream that ends within an event"
    return payloads


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def parsed(payload: bytes) -> Any:
    """As a client reads it."""
    return json.loads(payload.decode(), parse_constant=_refuse)


@dataclass(slots=True)
class Seen:
    """What one client got, taken together."""

    text: str
    finishes: dict[int, int]  # by choice
    done: bool
    errors: int
    ids: set[str]
    roles: int
    usages: int


def look(stream: bytes) -> Seen:
    """Read a stream of chunks to its end."""
    seen = Seen("", {}, False, 0, set(), 0, 0)
    for payload in read_events(stream):
        assert not seen.done, "something follows [DONE]"
        assert not seen.errors, "something follows the error"
        if payload == b"[DONE]":
            seen.done = True
            continue
        chunk = parsed(payload)
        if "error" in chunk and "choices" not in chunk:
            assert set(chunk["error"]) == {"message", "type", "param", "code", "request_id"}
            seen.errors += 1
            continue
        if chunk.get("id") is not None:
            seen.ids.add(str(chunk["id"]))
        seen.usages += chunk.get("usage") is not None and not chunk.get("choices")
        for choice in chunk.get("choices") or ():
            index = choice.get("index") or 0
            delta = choice.get("delta") or {}
            content = delta.get("content") if "delta" in choice else choice.get("text")
            if not index and isinstance(content, str):
                seen.text += content
            seen.roles += bool(delta.get("role")) and not index
            if choice.get("finish_reason"):
                seen.finishes[index] = seen.finishes.get(index, 0) + 1
    return seen


# --- a case ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Asked:
    """One request and its client."""

    api: str
    body: dict[str, Any]
    exchange: Exchange
    leaves: int = 0  # when; 0: it stays
    slow: tuple[int, int] = (0, 0)  # from, to

    def live(self, now: int) -> None:
        """The client's own doings."""
        exchange = self.exchange
        if self.leaves and now >= self.leaves:
            exchange.leave()
        listener = exchange.listener
        begin, end = self.slow
        if listener is None or not begin:
            return
        if end and now >= end:
            self.slow = (0, 0)
            listener.on_client_ready()
        elif now >= begin and not getattr(listener, "slow", True):
            listener.on_client_slow()


_PATHS: Final = {
    "chat": b"/v1/chat/completions",
    "completions": b"/v1/completions",
    "responses": b"/v1/responses",
    "whole": b"/v1/chat/completions",
    "speech": b"/v1/audio/speech",
}


def _asked(draw: Draw, truth: Truth, now: int) -> Asked:
    api = draw.pick(("chat", "chat", "chat", "completions", "chat", "responses", "whole", "speech"))
    body: dict[str, Any] = {"model": "m"}
    if api in {"chat", "whole"}:
        body["messages"] = [{"role": "user", "content": PROMPT}]
    else:
        body["input" if api in {"responses", "speech"} else "prompt"] = PROMPT
    if api in {"chat", "completions"}:
        body["n"] = truth.choices
        if draw.chance(3):
            body["stream_options"] = {"include_usage": True}
        if draw.chance(6):
            body["max_tokens"] = draw.pick((3, 1, 10))
    if api == "speech":
        body["voice"] = "alloy"
    elif api != "whole":
        body["stream"] = True
    one = Asked(api, body, Exchange(_PATHS[api], orjson.dumps(body)))
    if draw.chance(8):
        one.leaves = now + draw.pick((1, 10 * MS, 700 * MS, 5_000 * MS))
    if draw.chance(6):
        begin = now + draw.pick((1, 5 * MS, 50 * MS))
        one.slow = (begin, begin + draw.pick((10 * MS, 900 * MS, 20_000 * MS)))
    return one


def case(draw: Draw) -> None:
    """Ask one or a few times, play everything out, look at what each client got."""
    engine = draw.pick(ENGINES)
    replicas, attempts = draw.pick(((2, 2), (3, 2), (1, 1), (3, 3), (4, 4)))
    site = fleet(engine, replicas, attempts, eager=draw.chance(3))
    truth = draw_truth(draw)
    world = World(draw, site, truth, draw.upto(1_000_000))
    many = [_asked(draw, truth, world.now) for _ in range(draw.pick((1, 1, 2, 3)))]
    try:
        _ask(world, many)
        _play(world, many)
        for one in many:
            _check(world, one, engine)
        _check_left(world)
    except Exception as error:
        _explain(error, world, many, f"{engine}, {replicas} replicas, {attempts} attempts")
        raise


def replay(draw: Draw, splitter: type[EventSplitter]) -> list[tuple[object, ...]]:
    """What each client of one case got, where this splitter reads the events."""
    site = fleet(draw.pick(ENGINES), 3, 3, eager=draw.chance(3))
    site = replace(site, settings=replace(site.settings, event_splitter=splitter))
    truth = draw_truth(draw)
    world = World(draw, site, truth, draw.upto(1_000_000))
    many = [_asked(draw, truth, world.now) for _ in range(draw.pick((1, 1, 2)))]
    _ask(world, many)
    _play(world, many)
    got = [one.exchange for one in many]
    return [(one.status, bytes(one.sent), one.ended, one.aborted, one.gone) for one in got]


def _ask(world: World, many: list[Asked]) -> None:
    for one in many:
        world.driver.on_head(one.exchange)
        assert one.exchange.listener is not None
        world.driver.on_request(one.exchange)
        world.drain()


def _explain(error: Exception, world: World, many: list[Asked], fleet_text: str) -> None:
    """What whoever reads a failing case wants to know first."""
    error.add_note(f"{fleet_text}, {str(world.truth)[:300]}")
    for one in many:
        told = {name: one.body.get(name) for name in ("n", "max_tokens", "stream_options")}
        sent = bytes(one.exchange.sent)
        error.add_note(f"{one.api} {told} got {one.exchange.status} … {sent[-600:]!r}")
    for at, call in enumerate(world.calls):
        done = [what for _, what, _ in call.script.ops[: call.at]]
        data = b"".join(value for _, what, value in call.script.ops[: call.at] if what == "data")
        error.add_note(f"call {at}:{call.script.said or ' well'}, {done[-3:]} … {data[-600:]!r}")


def _play(world: World, many: list[Asked]) -> None:
    tick = world.now
    while world.driver.busy:
        assert world.now < END, "a request never ended"
        waits = not any(call.due < tick + TICK for call in world.calls if not call.over)
        tick = max(tick, world.now) + (10 * TICK if waits else TICK)
        while world.now < tick:
            world.step(tick)
            for one in many:
                one.live(world.now)
            world.drain()
    for one in many:  # nobody hears of a client that left after its answer
        one.exchange.leave()
    for _ in range(4):
        world.now += 1_000 * MS
        world.driver.tick()
        world.drain()


def _check(world: World, one: Asked, engine: str) -> None:
    exchange = one.exchange
    if exchange.gone:
        return
    assert exchange.ended, "neither an answer nor an error"
    assert exchange.listener is None
    assert exchange.status in KNOWN
    if exchange.aborted:
        assert one.api == "speech", "a stream of events can always end with an error event"
    elif exchange.whole:
        answer = parsed(bytes(exchange.sent))
        assert ("error" in answer) == (exchange.status != 200)
    elif one.api == "speech":
        _check_bytes(world, exchange)
    elif one.api == "responses":
        _check_response(bytes(exchange.sent))
    else:
        _check_stream(world, one, engine)


def _check_bytes(world: World, exchange: Exchange) -> None:
    """What ended properly is what a replica sent to its proper end."""
    sent = [
        b"".join(value for _, what, value in call.script.ops if what == "data")
        for call in world.calls
        if call.caller.proxied.exchange is exchange and call.script.ops[-1][1] == "end"
    ]
    assert bytes(exchange.sent) in sent, "half an answer that looks like a whole one"


def _check_response(stream: bytes) -> None:
    ends = 0
    for payload in read_events(stream):
        assert not ends, "something follows the end"
        event = parsed(payload)
        if event.get("type") in {"response.completed", "response.incomplete"} or "error" in event:
            ends += 1
    assert ends == 1, "a response without an end"


def _check_stream(world: World, one: Asked, engine: str) -> None:
    seen = look(bytes(one.exchange.sent))
    assert seen.done + seen.errors == 1, "neither [DONE] nor an error, or both"
    truth, body = world.truth, one.body
    calls = [call for call in world.calls if call.caller.proxied.exchange is one.exchange]
    honest = all(call.script.honest for call in calls)
    if seen.done and (honest or body["n"] == 1):  # of several choices only their number is watched
        expected = dict.fromkeys(range(body["n"]), 1)
        assert {i: n for i, n in seen.finishes.items() if i in expected} == expected, "one finish"
    if not honest:
        return
    assert truth.text.startswith(seen.text), "text that nobody said"
    assert len(seen.ids) <= 1, "two ids in one answer"
    assert seen.roles <= 1, "two role chunks"
    assert seen.finishes.keys() <= set(range(truth.choices))
    limited = "max_tokens" in body
    if seen.done and not limited:
        assert seen.text == truth.text, "a part is missing"
    if seen.done and "stream_options" in body:
        assert seen.usages <= 1
    _check_continued(calls, one, engine, seen)


def _check_continued(calls: list[Call], one: Asked, engine: str, seen: Seen) -> None:
    """Where the second replica was well, plain text that broke off goes on."""
    if seen.done or not seen.text or len(calls) != 2:
        return
    known = dialect(engine)
    chat = one.api == "chat"
    able = known.chat_continuation is not Continuation.NONE if chat else known.prompt_continuation
    second = calls[1]
    if able and second.script.healthy and second.at == len(second.script.ops):
        raise AssertionError("a healthy continuation was not used")


def _check_left(world: World) -> None:
    driver = world.driver
    assert driver.busy == 0
    assert not driver.port.streaming, "an attempt is still watched"
    assert not driver.port._waiting, "somebody still waits"
    assert not driver.port._lingering
    assert not driver.flow.lives
    assert all(call.over for call in world.calls), "a call was left running"


__all__ = ["case", "look", "read_events", "replay"]
