"""A rolling update with real processes, while clients stream: a bad revision, then a good one.

``holdfast serve`` launches the replicas itself, by the command of its file; a new revision is a new
file. The revision that answers wrongly must end at its first replica, and the one that is right
must come in one zone at a time, replacement before removal. Clients must notice neither. The tests
share one stage and go over it in the order in which they stand here.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

import orjson
import pytest
import uvloop

from holdfast.testing.standin import expected_text

PATIENCE_S = 90.0  # of a busy machine: each replica is a new interpreter
REPLICAS = 3
ZONES = ["zone-a", "zone-b"]
TOKENS = 40  # at 10 ms each: whoever drains has streams to finish
CLIENTS = 6
PAUSE_S = 0.05
PROMPT = "Count from one to five in words."
KNOWN = expected_text("m", [{"role": "user", "content": PROMPT}], 8)
STAND_IN = [
    *(sys.executable, "-m", "holdfast", "stand-in", "--host", "{host}", "--port", "{port}"),
    *("--model", "m", "--ttft-ms", "20", "--tpot-ms", "10", "--tokens", str(TOKENS)),
]
# Engines compile before they serve: the port refuses meanwhile, and only the log tells why.
COMPILE = "print('Compiling a graph for dynamic shape takes 0.60 s', flush=True)"
COMPILING = [
    *(sys.executable, "-c"),
    f"import sys, time, os; {COMPILE}; time.sleep(0.6); os.execv(sys.argv[1], sys.argv[1:])",
]
HEALTH = {
    "canary_s": 1.0,
    "canary_suspect_s": 0.5,
    "canary_warming_s": 0.2,
    "canary_quarantined_s": 0.5,
    "slow_start_s": 1.0,
}


class Stage:
    """One ``serve`` that launches replicas, and the file it follows."""

    def __init__(self, ops, folder):
        self.ops = ops
        self.folder = folder
        self.config = folder / "fleet.yaml"
        self.port, self.admin_port = ops.free_ports(2, Random())
        self.admin = f"http://127.0.0.1:{self.admin_port}"
        self.process = None
        self.pids = set()  # of all replicas that were ever seen

    def write(self, revision, command):
        file = {
            "gateway": {"listen": f"127.0.0.1:{self.port}"},
            "admin": {"listen": f"127.0.0.1:{self.admin_port}"},
            "models": [
                {
                    "name": "m",
                    "engine": "vllm",
                    "revision": revision,
                    "launch": {"replicas": REPLICAS, "zones": ZONES, "command": command},
                    "canary": {"prompt": PROMPT, "expect": [KNOWN], "slow_floor_s": 2.0},
                    "rollout": {"settle_s": 0.5},
                }
            ],
            "fleet": {"health": HEALTH},
        }
        draft = self.config.with_suffix(".draft")
        draft.write_bytes(orjson.dumps(file))  # JSON is YAML
        draft.replace(self.config)

    def open(self):
        self.write("1", STAND_IN)
        command = [sys.executable, "-m", "holdfast", "serve", "-c", str(self.config)]
        command += ["--state-dir", str(self.folder / "state")]
        with (self.folder / "serve.log").open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.ops.wait_for(f"http://127.0.0.1:{self.port}/readyz/m", self.process)

    def close(self):
        if self.process is None:
            return
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        family = self.ops.children(self.process.pid)
        self.ops.end([self.process])
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def said(self):
        return (self.folder / "serve.log").read_text(errors="replace")[-3_000:]

    def rows(self):
        rows = self.ops.call(f"{self.admin}/status")["replicas"]
        self.pids |= {row["pid"] for row in rows if row["pid"]}
        return rows

    def whole(self, revision):
        """Whether all that exists is of this revision and ready."""
        told = [(row["revision"], row["state"]) for row in self.rows()]
        return told == [(revision, "ready")] * REPLICAS

    def events(self, what):
        told = self.ops.call(f"{self.admin}/events?limit=1000")["events"]
        return [one for one in told if one["what"] == what]

    async def until(self, true, what):
        try:
            await self.ops.until(true, what, PATIENCE_S)
        except RuntimeError as error:
            raise AssertionError(f"{error}\n{self.said()}") from error


class Streams:
    """Clients that read streams all the while; what was wrong with any, and who served them."""

    def __init__(self, stage):
        self._stage = stage
        self._tasks = []
        self._stop = False
        self.harms = Counter()
        self.served_by = Counter()

    async def __aenter__(self):
        self._tasks = [asyncio.ensure_future(self._client(n)) for n in range(CLIENTS)]
        return self

    async def __aexit__(self, *_):
        self._stop = True
        await asyncio.gather(*self._tasks)

    async def _client(self, client):
        ops, number = self._stage.ops, 0
        while not self._stop:
            content = f"client {client} asks {number}"
            number += 1
            try:
                reply = await ops.ask(self._stage.port, ops.chat(content, stream=True))
                assert reply.complete, "closed too early"
                assert reply.status == 200, f"status {reply.status}"
                expected = expected_text("m", [{"role": "user", "content": content}], TOKENS)
                assert reply.text() == expected, "wrong text"
            except (OSError, ValueError, KeyError, AssertionError) as error:
                self.harms[f"{type(error).__name__}: {error}"] += 1
            else:
                self.served_by[reply.headers["x-holdfast-replica"]] += 1
            await asyncio.sleep(PAUSE_S)


@pytest.fixture(scope="module")
def stage(ops, tmp_path_factory):
    made = Stage(ops, tmp_path_factory.mktemp("rollout"))
    try:
        made.open()
        yield made
    finally:
        made.close()


def test_the_first_revision_is_there(stage):
    uvloop.run(stage.until(lambda: stage.whole("1"), "all replicas of revision 1 are ready"))
    assert Counter(row["zone"] for row in stage.rows()) == {"zone-a": 2, "zone-b": 1}


def test_a_revision_that_answers_wrongly_ends_at_its_first_replica(stage):
    before = {row["id"]: row["pid"] for row in stage.rows()}
    newcomers = set()

    def rolled_back():
        newcomers.update(row["id"] for row in stage.rows() if row["revision"] == "2")
        return bool(stage.events("rollout halted")) and stage.whole("1")

    async def main():
        async with Streams(stage) as streams:
            stage.write("2", [*STAND_IN, "--fault", "wrong_output"])
            await stage.until(rolled_back, "revision 2 is refused")
            await asyncio.sleep(1.0)  # nothing else of it comes: there were four looks at it
        return streams

    streams = uvloop.run(main())
    assert not streams.harms
    assert set(streams.served_by) == set(before)  # the old ones, and each of them
    assert {row["id"]: row["pid"] for row in stage.rows()} == before
    assert len(newcomers) == 1
    (halted,) = stage.events("rollout halted")
    (newcomer,) = newcomers
    assert newcomer in halted["reason"]
    assert "wrong" in halted["reason"]
    assert "ready" not in {
        one["what"] for one in stage.ops.call(f"{stage.admin}/events?replica={newcomer}")["events"]
    }


def test_a_right_revision_comes_in_one_zone_at_a_time_and_nobody_leaves_too_early(stage):
    before = {row["id"] for row in stage.rows()}
    looks = []

    def finished():
        rows = stage.rows()
        looks.append([(r["zone"], r["revision"], r["state"], r["phase"]) for r in rows])
        return stage.whole("3") and any("3+" in e["reason"] for e in ended())

    def ended():
        return stage.events("rollout finished")

    async def main():
        async with Streams(stage) as streams:
            stage.write("3", [*COMPILING, *STAND_IN])
            await stage.until(finished, "revision 3 is everywhere")
        return streams

    streams = uvloop.run(main())
    assert not streams.harms
    after = {row["id"] for row in stage.rows()}
    assert not before & after
    assert set(streams.served_by) <= before | after
    assert after & set(streams.served_by)
    for look in looks:
        ready = [one for one in look if one[2] == "ready"]
        assert len(ready) >= REPLICAS, look
        arriving = {
            zone for zone, revision, state, _ in look if revision == "3" and state != "ready"
        }
        mixed = {
            zone
            for zone in ZONES
            if {revision for where, revision, *_ in look if where == zone} == {"1", "3"}
        }
        assert len(mixed | arriving) <= 1, look
    assert any("ompil" in phase for look in looks for *_, phase in look)


def test_what_was_launched_ends_with_it(stage):
    stage.rows()
    stage.process.terminate()
    assert stage.process.wait(PATIENCE_S) == 0
    end = time.monotonic() + PATIENCE_S
    while left := {pid for pid in stage.pids if Path(f"/proc/{pid}").exists()}:
        assert time.monotonic() < end, left
        time.sleep(0.05)
