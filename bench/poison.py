"""One client sends requests that fail by themselves; what the others notice of it.

    python bench/poison.py [--seconds 25] [--rate 8] [--json]

Four stand-ins behind ``holdfast serve`` with the shipped defaults and no tenants, so that nobody
can tell the attacker from the others by name. Three rounds of the same honest load:

    quiet     nobody attacks
    stop      a stop string equal to the first letter of the answer: empty answers, ten a second
    deadly    a request that ends the process it runs on, with another nonce each time, one a second

Exit status 1 where a replica is taken out by *stop*, where more than two are ended by *deadly*,
or where the honest requests succeed in less than 99 % or their p99 is more than twice that of the
quiet round, but for the second attempts that two ended replicas cost.
"""

import argparse
import asyncio
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from gauntlet_fleet import TOKENS, Launchers, launched
from holdfast.testing.standin import expected_text

_DEADLY = "cucumber"
_OUT = ("quarantined", "dead", "suspect")


class Clients:
    """The honest requests of one round, and the attack beside them."""

    def __init__(self, url: str, rng: Random) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._rng = rng
        self._threads = ThreadPoolExecutor(128)
        self.times: list[float] = []
        self.failed = 0
        self.attack: dict[int, int] = {}

    async def ask(self, text: str, **more: Any) -> int:
        """Send one request; return the status, 0 where there was none."""
        messages = [{"role": "user", "content": text}]
        body = json.dumps({"model": "m", "messages": messages, **more}).encode()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._send, body)

    def _send(self, body: bytes) -> int:
        asked = Request(self._url, body, {"content-type": "application/json"})  # noqa: S310
        try:
            with urlopen(asked, timeout=30.0) as answer:  # noqa: S310
                answer.read()
                return int(answer.status)
        except HTTPError as error:
            return error.code
        except OSError:
            return 0

    async def honest(self) -> None:
        """One request of somebody else's."""
        began = time.monotonic()
        status = await self.ask(f"what is {self._rng.randrange(10**9)} good for")
        self.times.append(time.monotonic() - began)
        self.failed += status != 200

    async def hostile(self, kind: str) -> None:
        """One request of the attack."""
        nonce = self._rng.randrange(10**9)
        if kind == "stop":
            text = f"tell me about ship {nonce}"
            first = expected_text("m", [{"role": "user", "content": text}], TOKENS)[0]
            status = await self.ask(text, stop=first)
        else:
            status = await self.ask(f"[{nonce}] divide this by the {_DEADLY}")
        self.attack[status] = self.attack.get(status, 0) + 1

    async def run(self, seconds: float, rate: float, kind: str) -> None:
        """Send both at their rates until the time is over, and wait for all answers."""
        hostile = {"quiet": 0.0, "stop": 10.0, "deadly": 1.0}[kind]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._paced(self.honest, 1 / rate, seconds))
            if hostile:
                group.create_task(self._paced(lambda: self.hostile(kind), 1 / hostile, seconds))
        self._threads.shutdown()

    async def _paced(self, send: Any, every: float, seconds: float) -> None:
        async with asyncio.TaskGroup() as group:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                group.create_task(send())
                await asyncio.sleep(every * self._rng.uniform(0.5, 1.5))


def one_round(fleet: Launchers, kind: str, seconds: float, rate: float) -> dict[str, Any]:
    """One kind of attack: what the others got, and what became of the replicas."""
    before = {row["id"]: row["pid"] for row in fleet.rows().values()}
    known = {incident["id"] for incident in fleet.incidents()}
    clients = Clients(fleet.url, Random(kind))
    asyncio.run(clients.run(seconds, rate, kind))
    rows = fleet.rows()
    times = sorted(clients.times)
    return {
        "round": kind,
        "honest": len(times),
        "success": round(1 - clients.failed / len(times), 4),
        "p50_s": round(times[len(times) // 2], 3),
        "p99_s": round(times[min(len(times) - 1, len(times) * 99 // 100)], 3),
        "attack": {str(status): count for status, count in sorted(clients.attack.items())},
        "out": [name for name, row in rows.items() if row["state"] in _OUT],
        "ended": sum(before.get(name) != row["pid"] for name, row in rows.items()),
        "incidents": [i["cause"] for i in fleet.incidents() if i["id"] not in known],
    }


def main() -> int:
    """Run the three rounds and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=25.0, help="of each round")
    parser.add_argument("--rate", type=float, default=8.0, help="honest requests per second")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rounds = []
    with launched(Random(1), {}) as fleet:
        for kind in ("quiet", "stop", "deadly"):
            if kind == "deadly":
                for replica in fleet.replicas():
                    replica.strike({"kind": "oom", "marker": _DEADLY})
            rounds.append(one_round(fleet, kind, asked.seconds, asked.rate))
            print(json.dumps(rounds[-1]) if asked.json else rounds[-1], flush=True)
    quiet, stop, deadly = rounds
    well = not stop["out"] and not stop["incidents"] and deadly["ended"] <= 2
    served = all(each["success"] >= 0.99 for each in rounds)
    return 0 if well and served and stop["p99_s"] <= 2 * quiet["p99_s"] else 1


if __name__ == "__main__":
    sys.exit(main())
