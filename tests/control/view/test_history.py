import asyncio
import json
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from starlette.applications import Starlette

from holdfast.control.view import history as module
from holdfast.control.view.history import Sampler, history_metrics, history_routes, state_number
from holdfast.core.gpu import GpuDevice, use_of
from holdfast.core.types import State
from holdfast.core.view.snapshot import (
    DiskRow,
    HostRow,
    IncidentRow,
    ModelRow,
    QueueRow,
    ReplicaRow,
    Snapshot,
)
from holdfast.storage.history import History, Question

NOW = 1_800_000_000.0

SNAPSHOT = Snapshot(
    at=NOW,
    replicas=(
        ReplicaRow(
            "m-0",
            "m",
            "ready",
            used_bytes=4 << 30,
            share=0.5,
            canary_s=0.2,
            canary_verdict="wrong",
            ttft_s=0.4,
            tpot_s=0.02,
        ),
        ReplicaRow("task/9", "m", "pending"),
        ReplicaRow("task/8", "m", "running"),
    ),
    models=(ModelRow("org/m", ready=1, waiting=7, ttft_s=0.3, burn=2.5, errors_share=0.0),),
    queues=(QueueRow("jobs", "org/m", "aws", visible=12, dead_letters=1),),
    disks=(DiskRow("fs-1", "aws", used_share=0.9),),
    incidents=(IncidentRow("inc-1", "t", "runtime", "hung", "open", 0.9, "m-0", 3.0),),
    totals={"requests_s": 3.5, "tokens_s": None, "gateways": 2},
)


class Clock:
    def __init__(self):
        self.now = NOW

    def __call__(self):
        return self.now


@pytest.fixture
def history(tmp_path):
    clock = Clock()
    found = History(tmp_path / "history.sqlite", told=lambda what, reason: None, steady=clock)
    found.clock = clock
    yield found
    found.close()


def sampler(history, snapshot=SNAPSHOT, **more):
    return Sampler(history, lambda: snapshot, clock=history.clock, **more)


@dataclass
class Answer:
    status_code: int
    body: bytes

    def json(self):
        return json.loads(self.body)


@contextmanager
def asking(history, clock=None):
    """Ask the routes as a server does."""
    app = Starlette(routes=history_routes(history, clock or history.clock))

    def ask(path):
        name, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": "GET",
            "path": name,
            "query_string": query.encode(),
            "headers": [],
        }
        answer = Answer(0, b"")

        async def receive():
            return {"type": "http.request"}

        async def send(message):
            answer.status_code = message.get("status", answer.status_code)
            answer.body += message.get("body", b"")

        asyncio.run(app(scope, receive, send))
        return answer

    yield ask


# --- sampling -------------------------------------------------------------------------------------


def test_a_sample_has_a_point_for_all_that_is_known_and_none_for_the_rest(history):
    assert sampler(history).sample() == len(EXPECTED)
    history.flush()
    assert history.names() == sorted(EXPECTED)
    found = history.query([""], Question(NOW - 1, NOW + 1), "prefix").series
    assert {name: told[0][1] for name, told in found.items()} == EXPECTED


EXPECTED = {
    "replica/m-0/state": 3.0,
    "replica/m-0/used_bytes": float(4 << 30),
    "replica/m-0/share": 0.5,
    "replica/m-0/canary_s": 0.2,
    "replica/m-0/canary_verdict": 5.0,
    "replica/m-0/ttft_s": 0.4,
    "replica/m-0/tpot_s": 0.02,
    "replica/task/9/state": 0.0,
    "model/org/m/waiting": 7.0,
    "model/org/m/ttft_s": 0.3,
    "model/org/m/burn": 2.5,
    "model/org/m/errors_share": 0.0,
    "model/org/m/ready": 1.0,
    "queue/jobs/visible": 12.0,
    "queue/jobs/dead_letters": 1.0,
    "disk/fs-1/used_share": 0.9,
    "fleet/all/ready": 1.0,
    "fleet/all/incidents": 1.0,
    "fleet/all/requests_s": 3.5,
}


def test_figures_that_no_row_has_come_from_whoever_knows_them(history):
    more = {"model/org/m/cusum": 4.5, "model/org/m/drift": None}
    sampler(history, more=lambda: more).sample()
    history.flush()
    assert "model/org/m/cusum" in history.names()
    assert "model/org/m/drift" not in history.names()


def test_a_change_of_state_is_kept_at_its_moment(history):
    one = sampler(history)
    one.sample()
    one.state_changed("m-0", "quarantined", NOW + 3.25)
    one.state_changed("m-0", "nonsense", NOW + 4)
    history.flush()
    told = history.query(["replica/m-0/state"], Question(NOW, NOW + 20)).series
    assert told["replica/m-0/state"] == [(NOW, 3.0), (NOW + 3.25, 5.0)]


def test_a_change_of_verdict_is_kept_at_its_moment(history):
    one = sampler(history)
    one.sample()
    one.canary_answered("m-0", "timeout", NOW + 3.25)
    one.canary_answered("m-0", "nonsense", NOW + 4)
    history.flush()
    name = "replica/m-0/canary_verdict"
    told = history.query([name], Question(NOW, NOW + 20)).series
    assert told[name] == [(NOW, 5.0), (NOW + 3.25, 8.0)]


def test_states_have_their_place_in_the_life_of_a_replica():
    assert [state_number(state.value) for state in State] == list(range(len(State)))
    assert state_number("running") is None


def test_nothing_is_kept_before_there_is_a_picture(history):
    assert sampler(history, None).sample() == 0


def test_samples_are_taken_by_the_clock_and_one_that_fails_does_not_end_them(history, monkeypatch):
    taken = asyncio.Event()
    calls = []

    def take():
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("a mistake")
        taken.set()

    slept = []

    async def sleep(seconds):
        slept.append(seconds)
        if taken.is_set():
            await asyncio.Event().wait()

    async def main():
        monkeypatch.setattr(module.asyncio, "sleep", sleep)
        history.clock.now = NOW + 3
        one = Sampler(history, take, clock=history.clock)
        work = asyncio.create_task(one.run())
        async with asyncio.timeout(10):
            await taken.wait()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        return one.errors

    assert asyncio.run(main()) == 1
    assert slept[0] == 7.0


def test_a_history_is_kept_as_long_as_control_runs(tmp_path):
    told = []

    async def main():
        note = lambda what, reason: told.append(what)  # noqa: E731
        async with module.keeping(tmp_path, lambda: SNAPSHOT, told=note) as one:
            one.sample()
            one.state_changed("m-0", "dead", NOW)
        async with module.keeping(tmp_path, lambda: None) as again:
            return await asyncio.to_thread(again.history.names, "replica/m-0/state")

    assert asyncio.run(main()) == ["replica/m-0/state"]
    assert (tmp_path / "history.sqlite").exists()


# --- asking ---------------------------------------------------------------------------------------


def test_points_are_answered_by_name_prefix_and_pattern(history):
    sampler(history).sample()
    history.flush()
    with asking(history) as ask:
        one = ask(f"/history?series=model/org/m/ttft_s&since={NOW - 60}&until={NOW + 60}&points=9")
        assert one.status_code == 200
        assert one.json() == {
            "series": {"model/org/m/ttft_s": [[NOW, 0.3]]},
            "since": NOW - 60,
            "until": NOW + 60,
            "step_s": 10.0,
            "left_out": 0,
        }
        two = ask("/history?series=replica/m-0/share&series=queue/jobs/visible").json()
        assert set(two["series"]) == {"replica/m-0/share", "queue/jobs/visible"}
        prefix = ask("/history?series=queue/&match=prefix").json()
        assert set(prefix["series"]) == {"queue/jobs/visible", "queue/jobs/dead_letters"}
        pattern = ask("/history?series=replica/*/state&match=pattern").json()
        assert set(pattern["series"]) == {"replica/m-0/state", "replica/task/9/state"}
        assert ask("/history?series=no/such/thing").json()["series"] == {}


def test_names_come_in_pages(history):
    sampler(history).sample()
    history.flush()
    with asking(history) as ask:
        first = ask("/history/series?limit=10").json()
        rest = ask(f"/history/series?limit=10&after={first['series'][-1]}").json()
        assert first["series"] + rest["series"] == sorted(EXPECTED)
        assert (first["more"], rest["more"]) == (True, False)
        assert ask("/history/series?prefix=disk/").json()["series"] == ["disk/fs-1/used_share"]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("", "series is a name"),
        ("series=", "series is a name"),
        ("&".join(["series=a/b/c"] * 65), "up to 64 times"),
        ("series=a&since=yesterday", "since is a time"),
        ("series=a&since=nan", "since is a time"),
        ("series=a&until=-3", "until is a time"),
        ("series=a&since=20&until=10", "since must be before until"),
        ("series=a&since=10&until=10", "since must be before until"),
        ("series=a&since=0&until=1e12", "ten years"),
        ("series=a&points=1", "points is a whole number from 2"),
        ("series=a&points=1e3", "points is a whole number"),
        ("series=a&points=99999", "points is a whole number"),
        ("series=a&points=%D9%A3", "points is a whole number"),
        ("series=a&match=regex", "match is one of exact, prefix, pattern"),
        ("series=a&match=pattern", "one star"),
        ("series=a&value=p99", "value is one of"),
        ("series=a&step=7", "step is one of 10, 60, 900"),
        ("series=a&step=10&since=1000&until=90000&points=100", "more than 100 steps"),
        ("series=a&serie=b", "'serie' is no parameter"),
    ],
)
def test_a_bad_question_is_a_sentence(history, query, told):
    with asking(history) as ask:
        answer = ask(f"/history?{query}")
        assert answer.status_code == 400
        assert told in answer.json()["error"]


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=10001", "what=1"])
def test_a_bad_question_for_names_is_a_sentence(history, query):
    with asking(history) as ask:
        answer = ask(f"/history/series?{query}")
        assert answer.status_code == 400
        assert answer.json()["error"]


def test_a_history_that_is_over_says_so(history):
    history.close()
    with asking(history) as ask:
        answer = ask("/history?series=a/b/c")
        assert answer.status_code == 503
        assert "not open" in answer.json()["error"]


def test_too_many_questions_at_once_are_turned_away(history, monkeypatch):
    monkeypatch.setattr(module, "WAITING_MAX", 0)
    with asking(history) as ask:
        assert ask("/history?series=a/b/c").status_code == 503


def test_its_figures_are_counted(history):
    history.put(NOW, {"a/b/c": float("nan")})
    sampler(history).sample()
    history.flush()
    counters, gauges = history_metrics(history)
    assert counters["history_points_refused_total"] == 1
    assert gauges["history_series"] == len(EXPECTED)


def test_figures_of_gpus_are_kept_where_they_are_known(history):
    device = GpuDevice("GPU-a", 0, memory_used_bytes=5, memory_total_bytes=9, temperature_c=60)
    use = use_of((device,), (4,))
    rows = (ReplicaRow("m-0", "m", "ready", gpu=use), ReplicaRow("m-1", "m", "ready"))
    seen = Snapshot(at=NOW, replicas=rows, hosts=(HostRow("n", "local", gpu=use_of((device,))),))
    values = Sampler(history, lambda: seen)._values(seen)
    found = {name: value for name, value in values.items() if "/gpu_" in name}
    assert found == {
        "replica/m-0/gpu_held_bytes": 4,
        "replica/m-0/gpu_memory_used_bytes": 5,
        "replica/m-0/gpu_memory_total_bytes": 9,
        "replica/m-0/gpu_temperature_c": 60,
        "host/n/gpu_memory_used_bytes": 5,
        "host/n/gpu_memory_total_bytes": 9,
        "host/n/gpu_temperature_c": 60,
    }
