"""A large file through ``holdfast batch run`` on stand-ins: memory, estimate, resume.

    python bench/batch_million.py --lines 1000000

Starts four stand-ins that answer at once and ``holdfast serve`` with batches enabled; runs the
command; kills it (SIGKILL) after a third of the lines and runs it again. Prints the largest memory
of the batch process and of the command, the estimate after the first tenth beside what it took in
the end, and how long the second run took until it went on.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from operations_http import ask, free_port

HOLDFAST: Final = (sys.executable, "-m", "holdfast")
STAND_INS: Final = 4
SLOTS: Final = 64


async def main() -> None:
    """Run the trial and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=1_000_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(await trial(Path(folder), args.lines), indent=2))


async def trial(folder: Path, lines: int) -> dict[str, Any]:
    """One file, killed once; returns the figures."""
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
        first = await _run(base, source, out, log, lines, kill_at=lines // 3)
        second = await _run(base, source, out, log, lines, kill_at=None)
        with out.open("rb") as file:
            ids = {json.loads(line)["custom_id"] for line in file}
        return {
            "lines": lines,
            "answers": len(ids),
            "errors": lines - len(ids),
            "first run, until killed": first,
            "second run": second,
        }
    finally:
        serve.send_signal(signal.SIGTERM)
        await serve.wait()
        for process in started:
            process.terminate()
            await process.wait()


async def _run(
    base: str,
    source: Path,
    out: Path,
    log: Path,
    lines: int,
    kill_at: int | None,
) -> dict[str, Any]:
    """Run the command once, and watch it."""
    began = time.monotonic()
    process = await _start("batch", "run", str(source), str(out), "--url", base, "--quiet")
    went_on: float | None = None
    tenth: tuple[float, float] | None = None  # seconds and lines when a tenth was done
    samples: list[tuple[float, int]] = []
    rss = {"command": 0, "batch": 0}
    begun_with: int | None = None
    while process.returncode is None:
        await asyncio.sleep(0.5)
        done = await asyncio.to_thread(_done, base, out)
        at = time.monotonic() - began
        begun_with = done if begun_with is None else begun_with
        samples.append((at, done))
        if went_on is None and done > begun_with:
            went_on = at
        if tenth is None and done >= begun_with + lines // 10:
            tenth = at, done
        for name, pid in (("command", process.pid), ("batch", _batch_pid(log))):
            rss[name] = max(rss[name], _rss_mb(pid))
        if kill_at is not None and done >= kill_at:
            process.kill()
            await process.wait()
    took = time.monotonic() - began
    end = samples[-1][1] if kill_at is not None else lines
    told = {
        "took_s": round(took, 1),
        "lines": end - (begun_with or 0),
        "first new line after_s": None if went_on is None else round(went_on, 1),
        "largest_rss_mb": rss,
    }
    if tenth is not None and kill_at is None:
        rate = (tenth[1] - (begun_with or 0)) / tenth[0]
        told["estimate after a tenth_s"] = round((lines - tenth[1]) / rate, 1)
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


def _batch_pid(log: Path) -> int:
    found = 0
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("{") and '"event":"started"' in line and '"child":"batch"' in line:
            found = json.loads(line)["pid"]
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
