"""Kills gateway, control and the batch process with SIGKILL while a batch flows; counts its lines.

    python bench/batch_kill.py --items 2000 --kills 30

Starts two stand-ins and ``holdfast serve`` with batches enabled, sends a batch through the API and
kills one process after another at random moments; the supervisor starts each again. At the end the
output and error files are compared with the input: every line must have exactly one record, and the
stand-ins tell how many requests they served, so that what ran twice is counted.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from operations_http import ask, free_port, upload

HOLDFAST = (sys.executable, "-m", "holdfast")
KILLED = ("batch", "gateway-0", "control")


async def main() -> None:
    """Run the trial and print its counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=2_000)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        told = await trial(Path(folder), args.items, args.kills, args.seed)
    print(json.dumps(told, indent=2))
    sys.exit(0 if told["lost"] == told["twice"] == 0 else 1)


async def trial(folder: Path, items: int, kills: int, seed: int) -> dict[str, Any]:
    """One batch under kills; returns the counts."""
    ports = [free_port() for _ in range(6)]
    engines = [await _stand_in(ports[i], ports[i + 2]) for i in (0, 1)]
    fleet = folder / "fleet.yaml"
    fleet.write_text(_fleet(ports), encoding="utf-8")
    log = (folder / "serve.log").open("wb")
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    command = (*HOLDFAST, "serve", "-c", str(fleet))
    serve = await asyncio.create_subprocess_exec(*command, stderr=log, env=environment)
    base = f"http://127.0.0.1:{ports[4]}"
    try:
        await _until_ready(base)
        path = folder / "in.jsonl"
        path.write_bytes(b"".join(_line(number) for number in range(items)))
        file = await asyncio.to_thread(upload, base, path)
        body = {
            "input_file_id": file["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        began = time.monotonic()
        batch = await asyncio.to_thread(ask, base, "POST", "/v1/batches", body)
        killer = asyncio.create_task(_kill(folder / "serve.log", kills, random.Random(seed)))
        batch = await _until_ended(base, batch["id"])
        killer.cancel()
        await asyncio.gather(killer, return_exceptions=True)
        counts = await asyncio.to_thread(_count, base, batch, items)
        served = sum([await asyncio.to_thread(_served, port) for port in ports[2:4]])
        return {
            "items": items,
            "status": batch["status"],
            **counts,
            "kills": dict(_KILLS),
            "took_s": round(time.monotonic() - began, 1),
            "requests_at_engines": served,
        }
    finally:
        serve.send_signal(signal.SIGTERM)
        await serve.wait()
        for engine in engines:
            engine.terminate()
            await engine.wait()
        log.close()


_KILLS: Counter[str] = Counter()


async def _kill(log: Path, kills: int, chance: random.Random) -> None:
    """Kill one of the processes at a random moment, again and again."""
    for _ in range(kills):
        await asyncio.sleep(chance.uniform(0.2, 2.0))
        pids = {}
        for line in (await asyncio.to_thread(_read, log)).splitlines():
            if '"event":"started"' in line and line.startswith("{"):
                said = json.loads(line)
                pids[said.get("child")] = said.get("pid")
        name = chance.choice(KILLED)
        try:
            os.kill(pids[name], signal.SIGKILL)
            _KILLS[name] += 1
        except (KeyError, ProcessLookupError):
            continue


def _read(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


def _count(base: str, batch: dict[str, Any], items: int) -> dict[str, int]:
    ids: Counter[str] = Counter()
    for name in ("output_file_id", "error_file_id"):
        if batch[name]:
            text = ask(base, "GET", f"/v1/files/{batch[name]}/content", raw=True)
            ids.update(json.loads(line)["custom_id"] for line in text.splitlines())
    return {
        "completed": batch["request_counts"]["completed"],
        "failed": batch["request_counts"]["failed"],
        "lost": items - len(ids),
        "twice": sum(count > 1 for count in ids.values()),
    }


async def _until_ended(base: str, batch_id: str) -> dict[str, Any]:
    while True:
        await asyncio.sleep(0.5)
        try:
            batch = await asyncio.to_thread(ask, base, "GET", f"/v1/batches/{batch_id}")
        except OSError:
            continue  # the gateway or the batch process is being started again
        if batch["status"] in {"completed", "failed", "expired", "cancelled"}:
            found: dict[str, Any] = batch
            return found


async def _until_ready(base: str) -> None:
    while True:
        try:
            await asyncio.to_thread(ask, base, "GET", "/readyz/m", raw=True)
            await asyncio.to_thread(ask, base, "GET", "/v1/batches")
        except OSError:
            await asyncio.sleep(0.2)
        else:
            return


async def _stand_in(port: int, side: int) -> asyncio.subprocess.Process:
    arguments = ("--port", str(port), "--side-port", str(side), "--slots", "8")
    speed = ("--ttft-ms", "20", "--tpot-ms", "5", "--tokens", "10")
    return await asyncio.create_subprocess_exec(
        *HOLDFAST, "stand-in", *arguments, *speed, stderr=asyncio.subprocess.DEVNULL
    )


def _served(side: int) -> int:
    told = ask(f"http://127.0.0.1:{side}", "GET", "/stats")
    return int(told.get("requests", told.get("served", 0)))


def _fleet(ports: list[int]) -> str:
    return f"""gateway: {{listen: "127.0.0.1:{ports[4]}"}}
admin: {{listen: "127.0.0.1:{ports[5]}"}}
batch: {{enabled: true}}
models:
  - name: m
    engine: openai
    endpoints:
      - {{id: a, url: "http://127.0.0.1:{ports[0]}", slots: 8}}
      - {{id: b, url: "http://127.0.0.1:{ports[1]}", slots: 8}}
"""


def _line(number: int) -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": f"count to {number}"}]}
    line = {
        "custom_id": f"c{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": body,
    }
    return json.dumps(line).encode() + b"\n"


if __name__ == "__main__":
    asyncio.run(main())
