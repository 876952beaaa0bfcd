"""What canaries cost users: first tokens with canaries and without, and tokens at saturation.

    python bench/canary_cost.py [--pairs 8] [--block-s 15] [--json]

Two equal fleets (four stand-ins of four slots, prompts of 5 to 60 words) run at the same time, one
with the shipped defaults and one whose canaries are so rare that none is asked after the start.
Prompts are short because long ones would hide a canary twice: behind their own first token, and
among their tokens. Half of what a fleet can do is sent to one and then to the other, in turns: a
pair of blocks gets the very same requests at the same times, and the fleet that begins changes from
pair to pair. So what else this machine does meets both. The ratio is that of the p99 of the first
token over all blocks; its interval is a bootstrap over the pairs.

Then the first fleet gets more than it can do, and the share of tokens that its canaries took of all
its tokens is read from its own status page.

Exit status 1 where the ratio is above 1.03, canaries take more than 1 % of tokens at saturation, or
the fleet without canaries was asked one, which would make the comparison worthless.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Sequence
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit

import uvloop

from fault_fleet import Fleet, call, running
from fault_load import Load, Shot, poisson, quantile, short_prompts, summary

SLOTS: Final = 4
TOKENS: Final = 20
TTFT_S: Final = 0.05
TPOT_S: Final = 0.01

RATIO_MAX: Final = 1.03
SHARE_MAX: Final = 0.01
HALF: Final = 0.5
BEYOND: Final = 1.3  # of what the fleet can do: every slot is taken, and some wait
SETTLE_S: Final = 30.0
FILLING_S: Final = 5.0  # until every slot is taken; counted from then on
DRAWS: Final = 2_000
# Rarer than any run is long. The period of doubt stays: it needs a failure, and nobody fails.
WITHOUT: Final = "fleet: {health: {canary_s: 86400}}\n"


def capacity(replicas: int) -> float:
    """Requests per second that fill every slot."""
    return replicas * SLOTS / (TTFT_S + TOKENS * TPOT_S)


Pair = tuple[list[float], list[float]]  # first tokens of one pair of blocks: with, without


async def block(fleet: Fleet, rate: float, seconds: float, seed: int) -> list[Shot]:
    """Send so much for so long, and wait for all of it."""
    address = urlsplit(fleet.url)
    load = Load(address.hostname or "", address.port or 80, keep_alive=True)
    begin = asyncio.get_running_loop().time() + 0.05
    await load.run(poisson(seed, rate, begin, seconds, lengths=short_prompts, tokens=TOKENS))
    await load.settle(SETTLE_S)
    return load.shots


def first_tokens(shots: Sequence[Shot]) -> list[float]:
    """Seconds until each request's first token; those without one are told by the harm."""
    return [shot.first - shot.due for shot in shots if shot.first]


def canary_tokens(fleet: Fleet) -> tuple[int, int]:
    """Tokens of canaries and of users so far, by the fleet's own account."""
    rows = call(f"{fleet.admin}/status")["replicas"]
    told = [row["canary"] for row in rows if row.get("canary")]
    return sum(one["tokens"] for one in told), sum(one["users_tokens"] for one in told)


def canaries_seen(fleet: Fleet) -> int:
    """How many canaries the stand-ins have seen so far."""
    return sum(int(replica.stats()["lone"]) for replica in fleet.replicas)


async def compare(asked: Fleet, left: Fleet, given: argparse.Namespace) -> dict[str, Any]:
    """First tokens at half load, with canaries and without, in turns."""
    rate = capacity(len(asked.replicas)) * HALF
    for fleet in (asked, left):  # deadlines and connections; not counted
        await block(fleet, rate, given.warm_up, given.seed)
    before = [await asyncio.to_thread(canaries_seen, fleet) for fleet in (asked, left)]
    pairs: list[Pair] = []
    shots: list[list[Shot]] = [[], []]
    for number in range(given.pairs):
        found: dict[int, list[Shot]] = {}
        for index in (0, 1) if number % 2 == 0 else (1, 0):
            fleet = (asked, left)[index]
            found[index] = await block(fleet, rate, given.block_s, given.seed + 1 + number)
            shots[index] += found[index]
        pairs.append((first_tokens(found[0]), first_tokens(found[1])))
    after = [await asyncio.to_thread(canaries_seen, fleet) for fleet in (asked, left)]
    low, high = interval(pairs, Random(given.seed))
    return {
        "rate": round(rate, 1),
        "requests": [len(one) for one in shots],
        "harmed": [summary(one, late_s=SETTLE_S)["harmed"] for one in shots],
        "first_ms_p50": [round(1e3 * quantile(pooled(pairs, i), 0.5), 1) for i in (0, 1)],
        "first_ms_p99": [round(1e3 * quantile(pooled(pairs, i), 0.99), 1) for i in (0, 1)],
        "ratio_p99": round(ratio(pairs), 4),
        "ratio_p99_low": round(low, 4),
        "ratio_p99_high": round(high, 4),
        "canaries": [now - then for now, then in zip(after, before, strict=True)],
    }


async def saturate(fleet: Fleet, given: argparse.Namespace) -> dict[str, Any]:
    """The share of canaries' tokens while every slot is taken."""
    rate = capacity(len(fleet.replicas)) * BEYOND
    sending = asyncio.create_task(block(fleet, rate, given.saturated_s, given.seed + 1_000))
    await asyncio.sleep(FILLING_S)
    before = await asyncio.to_thread(canary_tokens, fleet)
    await asyncio.sleep(given.saturated_s - FILLING_S)
    after = await asyncio.to_thread(canary_tokens, fleet)
    shots = await sending
    spent, users = (now - then for now, then in zip(after, before, strict=True))
    return {
        "rate": round(rate, 1),
        "requests": len(shots),
        "canary_tokens": spent,
        "users_tokens": users,
        "share": spent / (spent + users) if spent + users else 0.0,
    }


# --- figures --------------------------------------------------------------------------------------


def pooled(pairs: Sequence[Pair], index: int) -> list[float]:
    """All first tokens of one side."""
    return [value for pair in pairs for value in pair[index]]


def ratio(pairs: Sequence[Pair]) -> float:
    """The p99 with canaries over the p99 without."""
    without = quantile(pooled(pairs, 1), 0.99)
    return quantile(pooled(pairs, 0), 0.99) / without if without else 1.0


def interval(pairs: Sequence[Pair], rng: Random) -> tuple[float, float]:
    """The 95 % interval of the ratio: a bootstrap over pairs of blocks."""
    draws = sorted(ratio(rng.choices(pairs, k=len(pairs))) for _ in range(DRAWS))
    return draws[int(0.025 * DRAWS)], draws[int(0.975 * DRAWS)]


def missed(told: dict[str, Any]) -> list[str]:
    """What was not held, in sentences."""
    found = []
    half, full = told["half"], told["saturated"]
    if half["ratio_p99"] > RATIO_MAX:
        found.append(f"first-token p99 is {half['ratio_p99']:.3f} times that without canaries")
    if half["canaries"][1]:
        found.append(f"{half['canaries'][1]} canaries were asked where there should be none")
    if not half["canaries"][0]:
        found.append("no canary was asked where there should be some")
    if any(half["harmed"]):
        found.append(f"requests were harmed at half load: {half['harmed']}")
    if full["share"] > SHARE_MAX:
        found.append(f"canaries took {full['share']:.2%} of tokens at saturation")
    if not full["users_tokens"]:
        found.append("users' tokens were not counted at saturation")
    return found


def show(told: dict[str, Any]) -> None:
    """The figures in a few lines."""
    half, full = told["half"], told["saturated"]
    for index, name in enumerate(("with canaries", "without")):
        p50, p99 = half["first_ms_p50"][index], half["first_ms_p99"][index]
        asked = f"{half['canaries'][index]} canaries beside {half['requests'][index]} requests"
        print(f"{name:14}  first token p50 {p50:6.1f} ms  p99 {p99:6.1f} ms  {asked}")
    within = f"{half['ratio_p99_low']:.3f} to {half['ratio_p99_high']:.3f}"
    print(f"p99 ratio at half load ({half['rate']:g}/s): {half['ratio_p99']:.3f} (95 %: {within})")
    spent, users = full["canary_tokens"], full["users_tokens"]
    print(
        f"at saturation ({full['rate']:g}/s): {full['share']:.2%} ({spent} beside {users} tokens)"
    )


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pairs", type=int, default=8, help="of blocks")
    parser.add_argument("--block-s", type=float, default=15.0, help="seconds of each")
    parser.add_argument("--warm-up", type=float, default=10.0, help="seconds for each fleet")
    parser.add_argument("--saturated-s", type=float, default=40.0, help="seconds of saturation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    if given.pairs < 2:
        parser.error("--pairs: use 2 or more")
    if given.saturated_s <= 2 * FILLING_S:
        parser.error(f"--saturated-s: use more than {2 * FILLING_S:g}")
    return given


async def measure(asked: Fleet, left: Fleet, given: argparse.Namespace) -> dict[str, Any]:
    """Both parts."""
    half = await compare(asked, left, given)
    return {"benchmark": "canary_cost", "half": half, "saturated": await saturate(asked, given)}


def main() -> int:
    """Measure, print, and judge."""
    given = arguments()
    began = time.monotonic()
    options = ["--ttft-ms", f"{TTFT_S * 1e3:g}", "--tpot-ms", f"{TPOT_S * 1e3:g}"]
    options += ["--tokens", str(TOKENS), "--slots", str(SLOTS)]
    with contextlib.ExitStack() as stack:
        asked = stack.enter_context(running(options, rng=Random()))
        left = stack.enter_context(running(options, rng=Random(), extra=WITHOUT))
        told = uvloop.run(measure(asked, left, given))
    complaints = missed(told)
    if given.json:
        print(json.dumps({**told, "missed": complaints}))
    else:
        show(told)
        for sentence in complaints:
            print(f"missed: {sentence}")
        verdict = "every bound held" if not complaints else f"{len(complaints)} bounds missed"
        print(f"{time.monotonic() - began:.0f} s; {verdict}")
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main())
