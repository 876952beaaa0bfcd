"""One tenant attacks; what the ordinary work of another one notices of it.

    python bench/hostile.py [--rounds 4] [--window 8] [--only newlines,tail] [--json]

Real processes: two stand-ins and ``holdfast serve`` with batches and two tenants. The ordinary
tenant chats, lists its files, and runs batches of one line. Windows alone and windows beside the
attack take turns, so that a busy machine is the same to both. Printed for each attack: the p99 of
each kind of call alone and beside, their ratio, and every call that failed. The attacker is a
process of its own with the lowest priority: what is measured is the server, not who shares its CPU.

Exit status 1 where a call of the ordinary tenant failed, or a ratio is above the attack's bound. An
attack is a row of ``ATTACKS``: its name, what it does until it is stopped, and the bound.
"""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import orjson

from fault_fleet import end
from operations import Stage, ask, chat

KEYS: Final = {name: f"hf-{name}-0123456789abcdef0123456789" for name in ("ordinary", "hostile")}
P99_RATIO_MAX: Final = 1.2
PATIENCE_S: Final = 60.0
CHAT_EVERY_S: Final = 0.05
FILES_EVERY_S: Final = 0.2
BATCH_EVERY_S: Final = 2.0
SETTLE_S: Final = 1.0  # after an attack began or ended, not counted
FREE_BYTES: Final = 20_000_000  # of a tenant
_FORM: Final = "multipart/form-data; boundary=x"
_NEW: Final = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}


def line(number: int) -> bytes:
    """One line of an input file."""
    body = {"model": "m", "messages": [{"role": "user", "content": f"word {number}"}]}
    told = {"custom_id": f"c{number}", "method": "POST", "url": _NEW["endpoint"], "body": body}
    return orjson.dumps(told) + b"\n"


def form(data: bytes, behind: bytes = b"") -> bytes:
    """A form that uploads a file for a batch."""
    return (
        b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n%b\r\n--x--\r\n%b'
        % (data, behind)
    )


class Caller:
    """Calls the data port in the name of one tenant."""

    def __init__(self, port: int, tenant: str) -> None:
        self.port = port
        self.headers = f"authorization: Bearer {KEYS[tenant]}\r\n"

    async def call(
        self, method: str, path: str, body: bytes = b"", kind: str = "application/json"
    ) -> Any:
        """The JSON of a 200; None where the answer is another one or the connection broke."""
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n{self.headers}"
            f"content-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        try:
            reply = await ask(self.port, head.encode() + body, PATIENCE_S)
        except (OSError, TimeoutError):
            return None
        return orjson.loads(reply.body) if reply.status == 200 else None

    async def upload(self, data: bytes, behind: bytes = b"") -> str | None:
        """The id of a file that was accepted."""
        made = await self.call("POST", "/v1/files", form(data, behind), _FORM)
        return made and str(made["id"])

    async def batch(self, file_id: str) -> str | None:
        """The id of a batch that was accepted."""
        new = orjson.dumps({**_NEW, "input_file_id": file_id})
        made = await self.call("POST", "/v1/batches", new)
        return made and str(made["id"])

    async def tidy(self) -> None:
        """Delete the files that may be deleted."""
        for one in ((await self.call("GET", "/v1/files")) or {"data": []})["data"]:
            await self.call("DELETE", f"/v1/files/{one['id']}")


# --- attacks -------------------------------------------------------------------------------------


async def newlines(hostile: Caller) -> None:
    """Files of line breaks, three batches of each."""
    while True:
        file_id = await hostile.upload(b"\n" * 18_000_000)
        for _ in range(3 if file_id else 0):
            await hostile.batch(file_id or "")
        await asyncio.sleep(1.0)
        await hostile.tidy()


async def long_files(hostile: Caller) -> None:
    """Files of as many lines as a batch may have, as many batches as may be."""
    data = b"".join(line(number) for number in range(20_000))
    file_id = await hostile.upload(data)
    while True:
        await hostile.batch(file_id or "")
        await asyncio.sleep(0.2)


async def tail(hostile: Caller) -> None:
    """Forms with 60 MB behind their last boundary."""
    while True:
        await hostile.upload(line(1), behind=b"\n" * 60_000_000)
        await hostile.tidy()


async def creations(hostile: Caller) -> None:
    """Batches as fast as they can be asked for."""
    file_id = await hostile.upload(b"{}\n" * 40_000)

    async def create() -> None:
        while True:
            await hostile.batch(file_id or "")

    await asyncio.gather(*(create() for _ in range(8)))


async def disk(hostile: Caller) -> None:
    """Uploads at once, beyond the tenant's quota, and their deletion."""
    while True:
        await asyncio.gather(*(hostile.upload(b"x" * 4_000_000) for _ in range(8)))
        await hostile.tidy()


@dataclass(frozen=True)
class Attack:
    """One thing that a tenant may try, and how much slower another one's calls may get."""

    name: str
    run: Callable[[Caller], Awaitable[None]]  # until it is cancelled
    ratio_max: float = P99_RATIO_MAX


ATTACKS: Final = (
    Attack("newlines", newlines),
    Attack("long files", long_files),
    Attack("tail", tail),
    Attack("creations", creations),
    Attack("disk", disk),
)


# --- the ordinary tenant -------------------------------------------------------------------------


@dataclass
class Figures:
    """How long the calls of the ordinary tenant took, by kind, and which failed."""

    took: dict[str, list[float]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def p99(self, kind: str) -> float:
        """The 99th percentile of one kind."""
        took = sorted(self.took.get(kind, [0.0]))
        return took[min(len(took) - 1, len(took) * 99 // 100)]


class Ordinary:
    """Chats, lists files, and runs batches of one line."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._number = 0

    async def work(self, window_s: float, figures: Figures) -> None:
        """Do all of it for a while, and wait for every answer."""
        async with asyncio.TaskGroup() as group:
            for kind, every_s, call in (
                ("chat", CHAT_EVERY_S, self._chat),
                ("files", FILES_EVERY_S, self._files),
                ("batch", BATCH_EVERY_S, self._batch),
            ):
                group.create_task(self._paced(kind, every_s, call, window_s, figures))

    async def _paced(
        self,
        kind: str,
        every_s: float,
        call: Callable[[], Awaitable[str]],
        window_s: float,
        figures: Figures,
    ) -> None:
        async def measured() -> None:
            began = time.monotonic()
            if trouble := await call():
                figures.failed.append(f"{kind}: {trouble}")
            figures.took.setdefault(kind, []).append(time.monotonic() - began)

        finish = time.monotonic() + window_s
        async with asyncio.TaskGroup() as group:
            while time.monotonic() < finish:
                group.create_task(measured())
                await asyncio.sleep(every_s)

    async def _chat(self) -> str:
        self._number += 1
        stream = bool(self._number % 2)
        asked = chat(f"word {self._number}", stream=stream, headers=self._caller.headers)
        try:
            reply = await ask(self._caller.port, asked, PATIENCE_S)
            return "" if reply.status == 200 and reply.text() else f"status {reply.status}"
        except (OSError, TimeoutError, ValueError, KeyError) as error:
            return type(error).__name__

    async def _files(self) -> str:
        return "" if await self._caller.call("GET", "/v1/files?limit=20") else "not listed"

    async def _batch(self) -> str:
        """A batch of one line, until it is checked: how fast it then runs is for people's load."""
        file_id = await self._caller.upload(line(1))
        made = file_id and await self._caller.batch(file_id)
        if not made:
            return "not accepted"
        until = time.monotonic() + 3 * PATIENCE_S
        while time.monotonic() < until:
            told = await self._caller.call("GET", f"/v1/batches/{made}")
            if told and told["status"] != "validating":
                return ""
            await asyncio.sleep(0.02)
        return "still validating"


# --- the stage -----------------------------------------------------------------------------------


def _open(folder: Path) -> Stage:
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    stage = Stage(folder, workers=1)
    tenants = "".join(
        f"  - {{name: {name}, keys: ['sha256:{sha256(key.encode()).hexdigest()}']}}\n"
        for name, key in KEYS.items()
    )
    limits = f"file_bytes_max: {FREE_BYTES}, tenant_bytes_max: {FREE_BYTES}"
    stage.extra = f"batch: {{enabled: true, limits: {{{limits}}}}}\ntenants:\n{tenants}"
    stage.open()
    return stage


async def _served(caller: Caller) -> None:
    """Wait for the batch process."""
    async with asyncio.timeout(PATIENCE_S):
        while await caller.call("GET", "/v1/files") is None:  # noqa: ASYNC110 nobody tells
            await asyncio.sleep(0.1)


async def _play(stage: Stage, attack: Attack, given: argparse.Namespace) -> dict[str, Any]:
    caller = Caller(stage.port, "ordinary")
    await _served(caller)
    ordinary, alone, beside = Ordinary(caller), Figures(), Figures()
    await ordinary.work(SETTLE_S, Figures())  # connections and models are warm
    for _ in range(given.rounds):
        await ordinary.work(given.window, alone)
        command = [sys.executable, __file__, "--attack", attack.name, "--port", str(stage.port)]
        process = subprocess.Popen(command)  # noqa: ASYNC220 some milliseconds
        try:
            await asyncio.sleep(SETTLE_S)
            await ordinary.work(given.window, beside)
        finally:
            end([process])
        await Caller(stage.port, "hostile").tidy()
        await asyncio.sleep(SETTLE_S)
    ratios = {kind: beside.p99(kind) / max(alone.p99(kind), 1e-3) for kind in alone.took}
    return {
        "attack": attack.name,
        "alone_p99_ms": {kind: round(1e3 * alone.p99(kind)) for kind in alone.took},
        "beside_p99_ms": {kind: round(1e3 * beside.p99(kind)) for kind in beside.took},
        "ratio": {kind: round(ratio, 2) for kind, ratio in ratios.items()},
        "calls": sum(map(len, beside.took.values())),
        "failed": [*alone.failed, *beside.failed],
        "held": max(ratios.values()) <= attack.ratio_max and not (alone.failed or beside.failed),
    }


async def _attack(name: str, port: int) -> None:
    os.nice(19)
    (attack,) = (one for one in ATTACKS if one.name == name)
    with contextlib.suppress(asyncio.CancelledError):
        await attack.run(Caller(port, "hostile"))


def main() -> int:
    """Play all attacks; 0 if the ordinary tenant noticed none."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4, help="windows alone, and beside")
    parser.add_argument("--window", type=float, default=8.0, help="seconds of one")
    parser.add_argument("--only", help="names of attacks, with commas between")
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.attack:
        asyncio.run(_attack(given.attack, given.port))
        return 0
    wanted = given.only.split(",") if given.only else [attack.name for attack in ATTACKS]
    held = True
    for attack in ATTACKS:
        if attack.name not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            stage = _open(Path(folder))
            try:
                row = asyncio.run(_play(stage, attack, given))
            finally:
                stage.close()
        held = held and row["held"]
        if given.json:
            print(json.dumps(row), flush=True)
            continue
        shown = ", ".join(
            f"{kind} {row['alone_p99_ms'][kind]} to {row['beside_p99_ms'][kind]} ms ({ratio} x)"
            for kind, ratio in row["ratio"].items()
        )
        failed = f"; failed: {sorted(set(row['failed']))}" if row["failed"] else ""
        print(f"{attack.name:12} p99 {shown}{failed}", flush=True)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
