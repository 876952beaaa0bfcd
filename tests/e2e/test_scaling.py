"""A model goes from nothing to two replicas and back: real processes, and nobody waits in vain.

One scene, because each part of it is the beginning of the next.
"""

import asyncio
import contextlib
import re
import signal
import subprocess
import sys
import urllib.error
from random import Random

import pytest
import uvloop

TOKENS = 8  # of an answer, as the benchmark's clients expect
CLIENTS = 16
STAND_IN = (
    *(sys.executable, "-m", "holdfast", "stand-in", "--port", "{port}", "--model", "m"),
    *("--ttft-ms", "20", "--tpot-ms", "10", "--tokens", str(TOKENS), "--slots", "2"),
)
FLEET = """\
gateway: {{listen: 127.0.0.1:{port}, workers: 2}}
admin: {{listen: 127.0.0.1:{admin}}}
models:
  - name: m
    engine: vllm
    launch: {{replicas: 0, slots: 2, command: {command}}}
    scaling:
      {{min: 0, max: 2, target_queue_tokens: 10, up_window_s: 1, down_window_s: 2,
        idle_to_zero_s: 2}}
    rollout: {{settle_s: 0.2}}
"""


class Fleet:
    """``holdfast serve`` with one launched model."""

    def __init__(self, ops, folder):
        self._ops = ops
        self.port, admin = ops.free_ports(2, Random())
        self.data, self.admin = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{admin}"
        self._config, self._state = folder / "fleet.yaml", folder / "state"
        self._log = folder / "serve.log"
        command = str(list(STAND_IN))
        self._config.write_text(FLEET.format(port=self.port, admin=admin, command=command))

    def __enter__(self):
        command = [sys.executable, "-m", "holdfast", "serve", "-c", str(self._config)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--state-dir", str(self._state)], stdout=log, stderr=log
            )
        return self

    def __exit__(self, *_):
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
        self._ops.end([self._process])

    def ready(self, path):
        """Status of a probe on the clients' port."""
        try:
            self._ops.call(f"{self.data}{path}")
        except urllib.error.HTTPError as refused:
            refused.close()
            return refused.code
        except OSError:
            return 0
        return 200

    def replicas(self):
        """States by id."""
        rows = self._ops.call(f"{self.admin}/status")["replicas"]
        return {row["id"]: row["state"] for row in rows}

    def serving(self):
        return [name for name, state in self.replicas().items() if state == "ready"]

    def metric(self, name):
        text = self._ops.call(f"{self.admin}/metrics")
        found = re.search(rf'^holdfast_{name}{{model="m"}} (\S+)$', text, re.MULTILINE)
        return float(found[1]) if found else None

    def scaled(self):
        """Counts from and to, as the history tells."""
        events = self._ops.call(f"{self.admin}/events")["events"]
        told = [e["reason"].split(":")[0] for e in events if e["what"] == "scaled"]
        return [tuple(int(count) for count in each.split(" to ")) for each in told]

    def said(self):
        return self._log.read_text(errors="replace")


@pytest.fixture
def fleet(ops, tmp_path):
    with Fleet(ops, tmp_path) as made:
        yield made


async def play(ops, fleet):
    await ops.until(lambda: fleet.ready("/readyz") == 200, "gateways accept")
    await ops.until(lambda: fleet.metric("queued_requests") == 0, "an empty queue is told")
    assert fleet.ready("/readyz/m") == 503
    assert (fleet.replicas(), fleet.metric("desired_replicas")) == ({}, 0)

    # Three at once: none is refused, and one replica comes for all.
    assert await asyncio.gather(*(ops.harm(fleet.port, n) for n in range(3))) == [""] * 3
    assert len(fleet.replicas()) == 1
    assert fleet.ready("/readyz/m") == 200

    numbers = iter(range(3, 100_000))
    harms, enough = [], asyncio.Event()

    async def client():
        while not enough.is_set():
            harms.append(await ops.harm(fleet.port, next(numbers)))

    clients = [asyncio.create_task(client()) for _ in range(CLIENTS)]
    try:
        await ops.until(lambda: len(fleet.serving()) == 2, "load makes two")
        assert fleet.metric("desired_replicas") == 2
        await ops.until(lambda: fleet.metric("queued_tokens") > 0, "what waits is told")
    finally:
        enough.set()
        await asyncio.gather(*clients)
    # One asks now and then while it shrinks: who is drained away must not take a request along.
    await now_and_then(ops, fleet, numbers, harms)
    await ops.until(lambda: not fleet.replicas(), "all replicas are drained and gone")
    assert fleet.metric("desired_replicas") == 0
    assert fleet.ready("/readyz") == 200
    assert fleet.ready("/readyz/m") == 503
    assert await ops.harm(fleet.port, next(numbers)) == ""  # it wakes again
    assert not any(harms), {harm for harm in harms if harm}
    assert len(harms) > CLIENTS
    counts = fleet.scaled()
    assert counts[:2] == [(0, 1), (1, 2)]
    assert counts[-1] == (0, 1)
    assert "Traceback" not in fleet.said()


async def now_and_then(ops, fleet, numbers, harms):
    """Until one of the two is gone; the other stays, as it is asked."""
    async with asyncio.timeout(ops.WAITING_S):
        while len(fleet.replicas()) == 2:
            assert fleet.metric("desired_replicas") >= 1
            harms.append(await ops.harm(fleet.port, next(numbers)))
            await asyncio.sleep(0.1)


def test_a_model_goes_from_zero_to_two_and_back_and_nobody_loses_a_request(ops, fleet):
    uvloop.run(play(ops, fleet))
