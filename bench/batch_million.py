"""A large file through ``holdfast batch run`` on stand-ins: memory, estimate, resume.

    python bench/batch_million.py --lines 1000000

Starts four stand-ins that answer at once and ``holdfast serve`` with batches enabled; runs the
command; kills it (SIGKILL) after a third of the lines and runs it again. Prints the memory of every
process after the first 20,000 lines and at most, the estimate after the first tenth (the command's
own, ``core.batch.progress``) beside what it took in the end, and how long the second run took until
it went on. ``--unbroken`` does not kill it: then the tenth and what it took are of all lines.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from holdfast.core.batch.progress import ProgressEstimate
from operations_http import ask, free_port

HOLDFAST: Final = (sys.executable, "-m", "holdfast")
STAND_INS: Final = 4
EARLY_LINES: Final = 20_000
LOOK_S: Final = 1.0  # a look counts the lines of two batches, which costs the batch process 20 ms
SLOTS: Final = 64


async def main() -> None:
    """Run the trial and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--unbroken", action="store_true", help="do not kill the command")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        told = await trial(Path(folder), args.lines, broken=not args.unbroken)
        print(json.dumps(told, indent=2))


async def trial(folder: Path, lines: int, *, broken: bool) -> dict[str, Any]:
    """One file; returns the figures."""
    ports = [free_port() for _ in range(STAND_INS + 2)]
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    started = [await _start("stand-in", *_speed(port)) for port in ports[:STAND_INS]]
    fleet = folder / "fleet.yaml"
    await asyncio.to_thread(fleet.write_text, _fleet(ports), "utf-8")
    log = folder / "serve.log"
    with log.open("wb") as file:
        serve = await asyncio.create_subprocess_exec(
            *HOLDFAST, "serve", "-c", str(fleet), stderr=file, env=environment
        )
    source, out = folder / "in.jsonl", folder / "out.jsonl"
    await asyncio.to_thread(_write, source, lines)
    try:
        base = f"http://127.0.0.1:{ports[STAND_INS]}"
        await _until_ready(base)
        watched = WatchedFleet(base, log, {"serve": serve.pid, "stand-in": started[0].pid})
        told: dict[str, Any] = {"lines": lines}
        if broken:
            killed = await _run(watched, source, out, lines, kill_at=lines // 3)
            told["first run, until killed"] = killed
        told["last run"] = await _run(watched, source, out, lines, kill_at=None)
        with out.open("rb") as file:
            ids = {json.loads(line)["custom_id"] for line in file}
        return {**told, "answers": len(ids), "errors": lines - len(ids)}
    finally:
        serve.send_signal(signal.SIGTERM)
        await serve.wait()
        for process in started:
            process.terminate()
            await process.wait()


@dataclass(slots=True)
class WatchedFleet:
    """A running fleet: where it answers, and the memory of its processes."""

    base: str
    log: Path
    pids: dict[str, int]
    early_mb: dict[str, int] = field(default_factory=dict)  # after the first lines
    largest_mb: dict[str, int] = field(default_factory=dict)

    def look(self, command: int, done: int) -> None:
        """Note the memory of every process now."""
        pids = {**self.pids, **_children(self.log), "command": command}
        for name, pid in pids.items():
            megabytes = _rss_mb(pid)
            self.largest_mb[name] = max(self.largest_mb.get(name, 0), megabytes)
            if done >= EARLY_LINES:
                self.early_mb.setdefault(name, megabytes)


async def _run(
    fleet: WatchedFleet, source: Path, out: Path, lines: int, kill_at: int | None
) -> dict[str, Any]:
    """Run the command once, and watch it."""
    began = time.monotonic()
    command = ("batch", "run", str(source), str(out), "--url", fleet.base, "--quiet")
    process = await _start(*command)
    begun_with = await asyncio.to_thread(_done, fleet.base, out)
    progress = ProgressEstimate(lines, begun_with, time.monotonic_ns())
    went_on: float | None = None
    tenth: tuple[float, float | None] | None = None  # when a tenth was done, and the estimate
    while process.returncode is None:
        await asyncio.sleep(LOOK_S)
        done = await asyncio.to_thread(_done, fleet.base, out)
        at = time.monotonic() - began
        progress.saw(done, time.monotonic_ns())
        if went_on is None and done > begun_with:
            went_on = at
        if tenth is None and done >= begun_with + (lines - begun_with) // 10:
            tenth = at, progress.left_s(time.monotonic_ns())
        fleet.look(process.pid, done)
        if kill_at is not None and done >= kill_at:
            process.kill()
            await process.wait()
    took = time.monotonic() - began
    told: dict[str, Any] = {
        "took_s": round(took, 1),
        "lines done before": begun_with,
        "first new line after_s": None if went_on is None else round(went_on, 1),
        f"rss_mb after {EARLY_LINES:,} lines": dict(fleet.early_mb),
        "rss_mb at most": dict(fleet.largest_mb),
    }
    if tenth is not None and kill_at is None:
        told["estimate after a tenth_s"] = tenth[1]
        told["it took from there_s"] = round(took - tenth[0], 1)
    return told


def _done(base: str, out: Path) -> int:
    """Lines that ended, by the command's own notes and the batches that run."""
    progress = out.with_name(out.name + ".progress")
    try:
        state = json.loads(progress.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0
    done = sum(part["lines"] for part in state["parts"] if part["written"])
    for part in state["parts"]:
        if part["batch_id"] and not part["written"]:
            try:
                counts = ask(base, "GET", f"/v1/batches/{part['batch_id']}")["request_counts"]
            except OSError:
                continue
            done += counts["completed"] + counts["failed"]
    return int(done)


def _children(log: Path) -> dict[str, int]:
    """The processes that the supervisor started last, by name."""
    found: dict[str, int] = {}
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("{") and '"event":"started"' in line:
            said = json.loads(line)
            found[said["child"]] = said["pid"]
    return found


def _rss_mb(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/statm").read_text(encoding="ascii")
    except OSError:
        return 0
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


async def _start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *HOLDFAST, *arguments, stdout=asyncio.subprocess.DEVNULL
    )


def _speed(port: int) -> tuple[str, ...]:
    speed = ("--ttft-ms", "0", "--tpot-ms", "0", "--tokens", "4")
    return ("--port", str(port), "--slots", str(SLOTS), *speed)


async def _until_ready(base: str) -> None:
    while True:
        try:
            await asyncio.to_thread(ask, base, "GET", "/readyz/m", raw=True)
            await asyncio.to_thread(ask, base, "GET", "/v1/batches")
        except OSError:
            await asyncio.sleep(0.2)
        else:
            return


def _write(path: Path, lines: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        for number in range(lines):
            body = {"model": "m", "messages": [{"role": "user", "content": f"word {number}"}]}
            line = {
                "custom_id": f"c{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": body,
            }
            file.write(json.dumps(line) + "\n")


def _fleet(ports: list[int]) -> str:
    endpoints = "".join(
        f'      - {{id: s{n}, url: "http://127.0.0.1:{port}", slots: {SLOTS}}}\n'
        for n, port in enumerate(ports[:STAND_INS])
    )
    return (
        f'gateway: {{listen: "127.0.0.1:{ports[STAND_INS]}"}}\n'
        f'admin: {{listen: "127.0.0.1:{ports[STAND_INS + 1]}"}}\n'
        "batch: {enabled: true}\n"
        f"models:\n  - name: m\n    engine: openai\n    endpoints:\n{endpoints}"
    )


if __name__ == "__main__":
    asyncio.run(main())
