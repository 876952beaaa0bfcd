"""What readiness catches and what it lets pass, with ``holdfast serve`` as it is.

Real: the gateway, the control loop, its canaries and its polls, over sockets, with short periods.
The engines are stand-ins in a thread of this process; each test makes another one ill, so that none
has to wait until the last one is believed again. One thing is played in virtual time, because it
takes a minute: the compilation. The tests go over one stage in the order in which they stand here.
"""

import asyncio
import threading
import time
from concurrent.futures import Future
from contextlib import contextmanager
from random import Random

import orjson
import pytest
import uvloop

from holdfast.core.canary import CanaryVerdict
from holdfast.core.diagnose.detect.silence import (
    COMPILE,
    LOADING,
    LOG,
    SERVING,
    Heartbeat,
    SilenceConfig,
)
from holdfast.core.health.fleet import Fleet
from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.messages import CanaryResult, Joined, Launch, Phase, RunCanary, Stop, Tick
from holdfast.core.types import SECOND, Replica, State
from holdfast.engines import dialect
from holdfast.engines.startup_log import phase_of
from holdfast.testing.standin import Options, StandIn, fault

WRONG, GARBAGE, STALLING, SLOW, FULL, EMPTY = (f"m-{number}" for number in range(1, 7))
BUSY = "long-1"
TIED = ("tied-1", "tied-2")
PATIENCE_S = 30.0
DEADLINE_S = 2.0
FIRST_S, TOKEN_S = 0.1, 0.01  # a canary of eight tokens takes 0.17 s, and 0.51 s three times slower
ENGINE = Options(models=("m", "long"), ttft_ms=FIRST_S * 1e3, tpot_ms=TOKEN_S * 1e3)
TIED_ENGINE = Options(models=("tied",), ttft_ms=FIRST_S * 1e3, tpot_ms=TOKEN_S * 1e3, tied=0.4)
# Two at a time, and a second and a half for a prompt of 3,000 words: canaries wait in the queue.
SATURATED = Options(
    models=("long",), ttft_ms=50, tpot_ms=10, tokens=8, slots=2, prefill_us_per_token=500
)
FLEET = {
    "canary_deadline_s": DEADLINE_S,
    "canary_deadline_max_s": 4 * DEADLINE_S,
    "health": {
        "canary_s": 0.4,
        "canary_suspect_s": 0.2,
        "canary_warming_s": 0.2,
        "canary_quarantined_s": 0.2,
        "slow_start_s": 1.0,
    },
}
CANARY = {"slow_floor_s": 0.15}  # 0.25 s would be more than three times 0.1 s
ILL = {"suspect", "quarantined", "dead", "starting", "draining", "stopped"}


class Engines:
    """Stand-ins on a loop of their own thread."""

    def __init__(self):
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._all = {}

    def open(self):
        self._thread.start()
        odd = {BUSY: SATURATED, **dict.fromkeys(TIED, TIED_ENGINE)}
        for name in (WRONG, GARBAGE, STALLING, SLOW, FULL, EMPTY, *odd):
            engine = StandIn(odd.get(name, ENGINE))
            asyncio.run_coroutine_threadsafe(engine.start(), self._loop).result(PATIENCE_S)
            self._all[name] = engine

    def close(self):
        for engine in self._all.values():
            asyncio.run_coroutine_threadsafe(engine.stop(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def _on(self, task, *arguments):
        done = Future()
        self._loop.call_soon_threadsafe(lambda: done.set_result(task(*arguments)))
        return done.result(PATIENCE_S)

    def strike(self, name, kind, **how):
        self._on(self._all[name].set_fault, fault(kind, **how))

    def repair(self, name):
        self._on(self._all[name].clear_fault)

    def stats(self, name):
        return self._on(self._all[name].stats)

    def urls(self, model):
        return [e.url for name, e in self._all.items() if name.startswith(f"{model}-")]


class Stage:
    """The engines, a ``serve`` before them, and what control says of it all."""

    def __init__(self, ops, folder):
        self._ops = ops
        self.engines = Engines()
        self.config = folder / "fleet.yaml"
        self.port, self.admin_port = ops.free_ports(2, Random())
        self.admin = f"http://127.0.0.1:{self.admin_port}"
        self.serve = None

    def open(self):
        self.engines.open()
        self.engines.strike(EMPTY, "model_missing")  # from the very beginning
        models = [
            {"name": name, "engine": "vllm", "endpoints": self.engines.urls(name), "canary": CANARY}
            for name in ("m", "long", "tied")
        ]
        file = {
            "gateway": {"listen": f"127.0.0.1:{self.port}"},
            "admin": {"listen": f"127.0.0.1:{self.admin_port}"},
            "models": models,
            "fleet": FLEET,
            "incidents": {"dry_run": True},  # readiness is the fleet's own: nobody else acts here
        }
        self.config.write_bytes(orjson.dumps(file))  # JSON is YAML
        self.serve = self._ops.Serve(self.config)
        for model in ("m", "long", "tied"):
            self._ops.wait_for(f"http://127.0.0.1:{self.port}/readyz/{model}", self.serve.process)

    def close(self):
        if self.serve is not None:
            self.serve.end()
        self.engines.close()

    def row(self, name):
        rows = self._ops.call(f"{self.admin}/status")["replicas"]
        return next(row for row in rows if row["id"] == name)

    def happened(self, name, since=0.0):
        """What was noted of a replica: (what, reason)."""
        events = self._ops.call(f"{self.admin}/events?replica={name}&limit=1000")["events"]
        return [(one["what"], one["reason"]) for one in events if one["at"] >= since]

    def until(self, true, what):
        end = time.monotonic() + PATIENCE_S
        while not (found := true()):
            assert time.monotonic() < end, f"{what}: {self.serve.said()[-2000:]}"
            time.sleep(0.05)
        return found

    def becomes(self, name, state):
        """Wait for a state; returns the reason that was given for it."""

        def reached():
            row = self.row(name)
            return row if row["state"] == state else None

        return self.until(reached, f"{name} becomes {state}")["reason"]

    def canaries(self, name, count):
        """Wait for so many further canaries of a replica."""
        seen = set()

        def enough():
            told = self.row(name)["canary"]
            seen.add(told["at"] if told else None)
            return len(seen) > count

        self.until(enough, f"{count} canaries of {name}")

    def measured(self, name, since):
        """How long the last canaries of a replica took, in seconds, where that is known."""
        kept = self._ops.call(f"{self.admin}/replicas/{name}/canaries")["canaries"]
        return [one["latency_s"] or 0.0 for one in kept if one["at"] >= since]

    @contextmanager
    def struck(self, name, kind, **how):
        """It is ill meanwhile; before that, it was ready."""
        self.becomes(name, "ready")
        self.engines.strike(name, kind, **how)
        try:
            yield
        finally:
            self.engines.repair(name)

    @contextmanager
    def left_alone(self, *names):
        """Nothing may be held against these meanwhile."""
        since = time.time()
        for name in names:
            assert self.becomes(name, "ready")
        yield
        for name in names:
            assert not [told for told in self.happened(name, since) if told[0] in ILL]
            assert self.row(name)["state"] == "ready"


@pytest.fixture(scope="module")
def stage(ops, tmp_path_factory):
    made = Stage(ops, tmp_path_factory.mktemp("readiness"))
    try:
        made.open()
        yield made
    finally:
        made.close()


# --- what it catches -----------------------------------------------------------------------------


def test_a_server_that_is_up_without_its_model_is_never_admitted(stage):
    stage.becomes(WRONG, "ready")
    stage.canaries(EMPTY, 3)
    row = stage.row(EMPTY)
    assert (row["state"], row["share"]) == ("warming", 0)
    assert "404" in row["canary"]["detail"]
    assert "ready" not in {what for what, _ in stage.happened(EMPTY)}
    stage.engines.repair(EMPTY)
    stage.becomes(EMPTY, "ready")


def test_a_model_that_vanishes_while_the_server_is_up_is_caught(stage):
    stage.engines.repair(EMPTY)  # it began without a model; the test before may run elsewhere
    with stage.struck(EMPTY, "model_missing"):
        stage.becomes(EMPTY, "quarantined")


def test_a_wrong_answer_is_caught(stage):
    with stage.struck(WRONG, "wrong_output"):
        assert "answered its canaries wrong" in stage.becomes(WRONG, "quarantined")


def test_garbage_is_caught(stage):
    with stage.struck(GARBAGE, "garbage"):
        assert "answered its canaries wrong" in stage.becomes(GARBAGE, "quarantined")


def test_a_stall_after_the_first_token_is_caught(stage):
    with stage.struck(STALLING, "stall", tokens=1):
        stage.becomes(STALLING, "quarantined")
    assert any("no answer in time" in reason for _, reason in stage.happened(STALLING))


def test_three_times_the_latency_on_the_fixed_input_is_caught(stage):
    stage.canaries(SLOW, 6)  # its usual latency is known
    with stage.struck(SLOW, "slow", factor=3):
        assert "slower" in stage.becomes(SLOW, "suspect")
        assert stage.row(SLOW)["share"] < 0.2  # right but slow: a tenth, not nothing


def test_a_kv_cache_above_the_line_is_caught_and_room_brings_it_back(stage):
    with stage.struck(FULL, "kv_full", share=0.97):
        assert "97% of its KV cache" in stage.becomes(FULL, "quarantined")
    stage.becomes(FULL, "ready")


def test_each_of_them_is_believed_again_when_it_is_well(stage):
    stage.engines.repair(EMPTY)  # it began without a model; the first test may run elsewhere
    for name in (WRONG, GARBAGE, STALLING, SLOW, FULL, EMPTY):
        stage.becomes(name, "ready")


# --- what it lets pass ---------------------------------------------------------------------------


@pytest.mark.alone  # its canaries have a second: a machine that others saturate is another test
def test_a_replica_saturated_by_long_prompts_is_left_alone(ops, stage):
    """It has no peers, so nothing speaks for it but the tokens that its users get."""
    prompt = "word " * 3_000
    answered = []

    async def ask_on():
        while True:
            body = ops.chat(f"{prompt}{len(answered)}", stream=True, model="long")
            answered.append((await ops.ask(stage.port, body)).status)

    async def saturate():
        late = set()

        def enough():
            told = stage.row(BUSY)["canary"]
            if told["verdict"] == "timeout":
                late.add(told["at"])
            return len(late) >= 2

        users = [asyncio.ensure_future(ask_on()) for _ in range(8)]
        try:
            await ops.until(enough, "canaries wait longer than their deadline", PATIENCE_S)
        finally:
            for user in users:
                user.cancel()
            await asyncio.gather(*users, return_exceptions=True)

    with stage.left_alone(BUSY):
        uvloop.run(saturate())
    assert answered
    assert set(answered) == {200}


def test_one_slow_probe_is_forgiven(stage):
    """The engine stands still in the middle of one canary, and goes on before its deadline."""
    began = time.time()

    def one_was_slow():
        """A control that was late itself measures nothing; then it is tried again."""
        with stage.struck(WRONG, "hang"):
            stage.until(lambda: stage.engines.stats(WRONG)["running"], "a canary is under way")
            time.sleep(DEADLINE_S / 2)  # this long it takes: the point of the test
        stage.canaries(WRONG, 2)
        return [one for one in stage.measured(WRONG, began) if one > DEADLINE_S / 3]

    with stage.left_alone(WRONG):
        stage.until(one_was_slow, "a slow canary is kept")
        stage.canaries(WRONG, 4)


def test_a_model_with_two_first_words_that_are_as_likely_is_left_alone(stage):
    with stage.left_alone(*TIED):
        for name in TIED:
            stage.canaries(name, 12)
    told = [reason for name in TIED for _, reason in stage.happened(name)]
    assert not [reason for reason in told if "another answer" in reason], "from its start on"


def test_metrics_that_vanish_are_unknown_and_no_illness(stage):
    with stage.left_alone(GARBAGE, FULL), stage.struck(FULL, "metrics_gone"):
        stage.canaries(FULL, 6)  # with half as many polls


# --- in virtual time -----------------------------------------------------------------------------

COMPILES = "INFO Compiling a graph for dynamic shape takes 55.10 s"
LOADS = "INFO Loading safetensors checkpoint shards: 100% Completed"


@pytest.mark.parametrize("compile_s", [60, 300])
def test_a_compilation_is_waited_for(compile_s):
    """Virtual time: the fleet and the heartbeat as they are, a platform that only tells phases."""
    known = dialect("vllm")
    compiling, loading = phase_of(known, COMPILES), phase_of(known, LOADS)
    assert compiling is not None
    assert compiling.compiling
    assert loading is not None
    assert not loading.compiling
    fleet = Fleet(FleetConfig(), lambda _purpose: Random(1))
    actions = fleet.handle(Joined(Replica("r", "m")), 0)
    assert [type(action) for action in actions if isinstance(action, Launch)] == [Launch]
    beat = Heartbeat(SilenceConfig(), 0)
    for phase in (State.STARTING, State.LOADING):
        fleet.handle(Phase("r", phase), SECOND)
    beat.beat(LOG, SECOND)
    beat.phase(LOADING, SECOND)
    beat.beat(LOG, 2 * SECOND)
    beat.phase(COMPILE, 2 * SECOND)
    end = (2 + compile_s) * SECOND
    for now in range(2 * SECOND, end, SECOND):  # not a word, and its port refuses
        done = fleet.handle(Tick(), now)
        assert not [action for action in done if isinstance(action, Stop | Launch | RunCanary)]
        assert beat.silent(now, None) is None
    assert fleet.members["r"].health.state is State.LOADING
    fleet.handle(Phase("r", State.WARMING), end)
    beat.phase(SERVING, end)
    (asked,) = [a for a in fleet.handle(Tick(), end) if isinstance(a, RunCanary)]
    fleet.handle(CanaryResult("r", CanaryVerdict.PASS, incarnation=asked.incarnation), end + SECOND)
    assert fleet.members["r"].health.state is State.READY
    assert fleet.members["r"].health.incarnation == 0
