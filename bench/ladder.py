"""What clients of a ladder notice when the large model is lost: killed, drained, ill, or full.

    python bench/ladder.py [--rate 5] [--lost-s 20] [--only killed,drained] [--json]

Real processes: a stand-in for each of two models, ``holdfast serve`` with its defaults and a ladder
over both, and clients of whom every other one streams. *Quarantined* is a stand-in that answers 500
until it is taken out, and after. *Full* is one slot and a queue of two, asked for faster than it
answers.

Exit status 1 where a client gets an error, waits 2 s longer than the model that answers takes, or
where the large model has no traffic again within 60 s of its recovery.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

import uvloop

from fault_fleet import Replica, call, end, free_ports, wait_for
from holdfast.config.tenants import hash_key
from holdfast.testing.standin import expected_text
from operations import Reply, Serve, ask, chat

TOKENS: Final = 8
OPTIONS: Final = ("--ttft-ms", "50", "--tpot-ms", "10", "--tokens", str(TOKENS))
LONGER_S: Final = 2.0  # than the model that answers usually takes
BACK_S: Final = 60.0  # until the large model has traffic again
BEFORE_S: Final = 3.0
TOKEN: Final = "hf-bench-of-the-ladder"  # noqa: S105 - of a fleet that lives for a minute
WAYS: Final = ("killed", "drained", "quarantined", "full")


class Stage:
    """A stand-in of each model, and a ``serve`` with a ladder over both."""

    def __init__(self, folder: Path, way: str) -> None:
        big, small, side, other, self.port, admin = free_ports(6, Random())
        slow = ("--slots", "1", "--ttft-ms", "800") if way == "full" else ()
        self.big = Replica(big, side, (*OPTIONS, *slow, "--model", "big"))
        self.small = Replica(small, other, (*OPTIONS, "--model", "small"))
        for replica in (self.big, self.small):
            wait_for(f"{replica.side}/stats", replica.process)
        self.admin = f"http://127.0.0.1:{admin}"
        slots = ", slots: 1" if way == "full" else ""
        queue = ", queue: {depth_max: 2, batch_depth_max: 1}" if way == "full" else ""
        config = folder / "fleet.yaml"
        config.write_text(
            f"gateway: {{listen: 127.0.0.1:{self.port}, workers: 1}}\n"
            f"admin: {{listen: 127.0.0.1:{admin}, token: '{hash_key(TOKEN)}'}}\n"
            "models:\n"
            "  - {name: big, engine: vllm,"
            f" endpoints: [{{url: 'http://127.0.0.1:{big}'{slots}}}]{queue}}}\n"
            f"  - {{name: small, engine: vllm, endpoints: ['http://127.0.0.1:{small}']}}\n"
            "virtual_models: [{name: m, ladder: [big, small]}]\n"
        )
        self.serve = Serve(config)
        for model in ("big", "small"):
            wait_for(f"http://127.0.0.1:{self.port}/readyz/{model}", self.serve.process)

    def lose(self, way: str) -> None:
        """Take the large model away."""
        if way == "killed":
            self.big.process.kill()
            self.big.process.wait()
        elif way == "drained":
            call(f"{self.admin}/replicas/big-1/drain", "POST", token=TOKEN)
        elif way == "quarantined":
            self.big.strike({"kind": "status", "code": 500})

    def give_back(self, way: str) -> None:
        """Bring the large model back."""
        if way == "drained":
            call(f"{self.admin}/replicas/big-1/undrain", "POST", token=TOKEN)
        elif way != "full":
            self.big.repair()

    def close(self) -> None:
        """End everything."""
        self.serve.end()
        end([self.big.process, self.small.process])


class Answers:
    """What clients got, as it came."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    async def client(self, port: int, number: int) -> None:
        """Ask once; keep what came, from whom, and after how long."""
        content = f"request {number}"
        sent = time.monotonic()
        row: dict[str, Any] = {"sent": sent, "model": "", "harm": ""}
        try:
            reply: Reply = await ask(port, chat(content, stream=bool(number % 2)))
            row["model"] = reply.headers.get("x-holdfast-degraded", "big")
            messages = [{"role": "user", "content": content}]
            if reply.status != 200:
                row["harm"] = f"status {reply.status}"
            elif reply.text().split() != expected_text(row["model"], messages, TOKENS).split():
                row["harm"] = "wrong text"
        except (OSError, TimeoutError, ValueError, KeyError) as error:
            row["harm"] = type(error).__name__
        row["took"] = time.monotonic() - sent
        self.rows.append(row)

    async def ask_for(self, port: int, seconds: float, rate: float) -> None:
        """Clients at a steady rate for so long, and their answers."""
        clients: list[asyncio.Task[None]] = []
        begun = time.monotonic()
        for number in range(round(seconds * rate)):
            await asyncio.sleep(max(0.0, begun + number / rate - time.monotonic()))
            serial = len(self.rows) + len(clients)
            clients.append(asyncio.create_task(self.client(port, serial)))
        await asyncio.gather(*clients)


@contextmanager
def staged(way: str) -> Iterator[Stage]:
    """A stage for one way to lose the large model."""
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder), way)
        try:
            yield stage
        finally:
            stage.close()


async def play(way: str, rate: float, lost_s: float, back_s: float = BACK_S) -> dict[str, Any]:
    """Lose the large model once; what clients noticed, and when it had traffic again."""
    with staged(way) as stage:
        usual, lost, back = Answers(), Answers(), Answers()
        await usual.ask_for(stage.port, BEFORE_S, rate if way != "full" else 1.0)
        await asyncio.to_thread(stage.lose, way)
        await lost.ask_for(stage.port, lost_s, rate)
        await asyncio.to_thread(stage.give_back, way)
        returned = time.monotonic()
        deadline = returned + back_s
        while time.monotonic() < deadline:
            await back.ask_for(stage.port, 1.0, rate if way != "full" else 1.0)
            if any(row["model"] == "big" and not row["harm"] for row in back.rows):
                break
    both = lost.rows + back.rows
    takes = {
        "big": median([row["took"] for row in usual.rows if row["model"] == "big"]),
        "small": median([row["took"] for row in both if row["model"] == "small"] or [0.0]),
    }
    first = next((r["sent"] for r in back.rows if r["model"] == "big" and not r["harm"]), None)
    return {
        "way": way,
        "requests": len(both),
        "harmed": sum(bool(row["harm"]) for row in both),
        "by_small": sum(row["model"] == "small" for row in both),
        "small_takes_s": takes["small"],
        "longest_s": max(row["took"] for row in both),
        "longest_beyond_s": max(row["took"] - takes[row["model"] or "small"] for row in both),
        "back_after_s": None if first is None else first - returned,
    }


def holds(row: dict[str, Any]) -> bool:
    """Whether a row keeps the three promises."""
    in_time = row["longest_beyond_s"] <= LONGER_S
    return row["harmed"] == 0 and in_time and row["back_after_s"] is not None


def main() -> int:
    """Play each way once and print a line for it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rate", type=float, default=5.0)
    parser.add_argument("--lost-s", type=float, default=20.0)
    parser.add_argument("--only", default=",".join(WAYS))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = []
    for way in given.only.split(","):
        row = uvloop.run(play(way, given.rate, given.lost_s))
        rows.append(row)
        if not given.json:
            figures = ", ".join(
                f"{name} {value:.2f}" if isinstance(value, float) else f"{name} {value}"
                for name, value in row.items()
            )
            print(f"{figures}: {'holds' if holds(row) else 'DOES NOT HOLD'}", flush=True)
    if given.json:
        print(json.dumps(rows))
    return 0 if all(map(holds, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
