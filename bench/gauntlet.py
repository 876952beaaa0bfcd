"""One of four replicas goes bad in sixteen ways: who is harmed, and what the failure is called.

    python bench/gauntlet.py [--faults crash,hang] [--gateways holdfast,envoy,…] [--json]
    python bench/gauntlet.py --faults wrong-10 --repeat 20

Four stand-ins (first token after 50 ms, 20 tokens at 10 ms) serve 40 streams a second with the
shipped defaults. After a warm-up one of them is struck, out of band. Harmed is whoever was under
way or sent in the 20 s after the onset and got an error, wrong or missing or repeated text, no
finish reason, or an answer later than 1.5 s. Of Holdfast is printed too when the sick replica got
its last request, and which class and cause its incident names. Every fault gets a fresh fleet.

The two faults of wrong answers are run with peer comparison and without it: it is opt-in, and
nothing else can find a replica that is wrong now and then and right when its canary asks.

Exit status 1 where Holdfast harms more than 1 % on average or 4 % of any fault, names a wrong class
or cause, accuses a healthy replica, or spends more on canaries than their bound.
"""

import argparse
import asyncio
import json
import sys
import time
from dataclasses import dataclass
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit

import uvloop
from rich.console import Console
from rich.table import Table

from fault_load import Load, poisson, short_prompts, summary
from gauntlet_fleet import Behind, Launchers, behind, launched

MEAN_MAX: Final = 0.01
SHARE_MAX: Final = 0.04
CANARY_MAX: Final = 0.01
SETTLE_S: Final = 15.0
LOOK_S: Final = 0.25
NAMED_S: Final = 45.0  # until a cause must be named; harm counts for --seconds only
NAMED_WITHIN_S: Final = 120.0  # where one answer in ten is wrong
_BROKEN: Final = 8  # tokens before a stream breaks: late enough that a retry would repeat


@dataclass(slots=True, frozen=True)
class Trial:
    """A fault, and what its incident has to say."""

    fault: dict[str, Any]
    cause: str
    comparison: bool = False  # peers are compared
    failure_class: str = "runtime"


_WRONG: Final = {"kind": "wrong_output"}
_SOMETIMES: Final = {"kind": "wrong_output", "share": 0.1}
TRIALS: Final[dict[str, Trial]] = {
    "crash": Trial({"kind": "crash"}, "crashed"),
    "sigstop": Trial({"kind": "sigstop"}, "frozen"),
    "hang": Trial({"kind": "hang"}, "hung"),
    "stall": Trial({"kind": "stall", "tokens": _BROKEN}, "stalled"),
    "slow": Trial({"kind": "slow", "factor": 10.0}, "slow"),
    "drip": Trial({"kind": "drip", "interval_s": 5.0}, "dripping"),
    "cut": Trial({"kind": "cut", "tokens": _BROKEN}, "connection_lost"),
    "silent-cut": Trial({"kind": "close", "tokens": _BROKEN}, "truncated"),
    "wrong": Trial(_WRONG, "wrong_output", comparison=True),
    "garbage": Trial({"kind": "garbage"}, "degenerate_output"),
    "empty": Trial({"kind": "empty"}, "empty_output"),
    "500": Trial({"kind": "status", "code": 500}, "server_errors"),
    "500-instant": Trial({"kind": "status", "code": 500, "instant": True}, "fast_failures"),
    "503-instant": Trial({"kind": "status", "code": 503, "instant": True}, "fast_failures"),
    "oom": Trial({"kind": "oom"}, "out_of_memory"),
    "wrong-10": Trial(_SOMETIMES, "wrong_output", comparison=True),
    # Beside the sixteen: the same two without the comparison of peers.
    "wrong, canaries only": Trial(_WRONG, "wrong_output"),
    "wrong-10, canaries only": Trial(_SOMETIMES, "wrong_output"),
}
SIXTEEN: Final = list(TRIALS)[:16]
GATEWAYS: Final = ("holdfast", "envoy", "haproxy", "sglang-router", "vllm-router", "litellm")


@dataclass(slots=True)
class Watched:
    """What Holdfast said of the sick replica, and when, in seconds from the onset."""

    last_request_s: float | None = None  # None: it still gets some
    named_s: float | None = None
    incident: dict[str, Any] | None = None
    accused: tuple[str, ...] = ()  # healthy replicas with an incident
    canary_share: float | None = None  # of the tokens of healthy replicas, since the onset


async def strike(
    fleet: Launchers | Behind, name: str, given: argparse.Namespace, rng: Random
) -> dict[str, Any]:
    """Warm up, strike, measure."""
    replicas: list[Any] = await asyncio.to_thread(lambda: [*fleet.replicas()])
    sick = rng.choice(replicas)
    address = urlsplit(fleet.url)
    load = Load(address.hostname or "", address.port or 80, keep_alive=False)
    loop = asyncio.get_running_loop()
    seconds = given.seconds
    if isinstance(fleet, Launchers):
        seconds = max(seconds, NAMED_WITHIN_S if name.startswith("wrong-10") else NAMED_S)
    begin = loop.time() + 0.1
    whole = given.warm_up + seconds
    shots = poisson(rng.getrandbits(32), given.rate, begin, whole, lengths=short_prompts, tokens=20)
    sending = loop.create_task(load.run(shots))
    await asyncio.sleep(begin + given.warm_up - loop.time())
    before = summary([shot for shot in load.shots if shot.ended])
    onset = loop.time()
    await asyncio.to_thread(sick.strike, TRIALS[name].fault)
    row: dict[str, Any] = {"fault": name}
    if isinstance(fleet, Launchers):
        span = (given.seconds, seconds)
        watched = await watch(fleet, sick.name, TRIALS[name].cause, onset, span, sending)
        row |= verdict(name, sick.name, watched)
    await asyncio.wait([sending])  # a trial for naming may have ended it
    await load.settle(SETTLE_S)
    counted = [
        shot
        for shot in load.shots
        if shot.due < onset + given.seconds and (not shot.ended or shot.ended >= onset)
    ]
    return row | summary(counted) | {"warm_up": before}


async def watch(
    fleet: Launchers,
    sick: str,
    cause: str,
    onset: float,
    span: tuple[float, float],
    sending: "asyncio.Task[None]",
) -> Watched:
    """Look on while it counts, and then until the cause is named or patience ends."""
    loop = asyncio.get_running_loop()
    seen = Watched()
    least_s, most_s = span
    before = canary_tokens(await asyncio.to_thread(fleet.rows), sick)
    served: tuple[Any, ...] | None = None
    while (passed := loop.time() - onset) < most_s:
        rows = await asyncio.to_thread(fleet.rows)
        row = rows.get(sick, {})
        now_served = (row.get("share"), row.get("inflight"), row.get("state"))
        if now_served[0] and now_served != served:
            seen.last_request_s = passed
        served = now_served
        spent, given_out = (
            now - then for now, then in zip(canary_tokens(rows, sick), before, strict=True)
        )
        whole = spent + given_out
        seen.canary_share = spent / whole if whole > 0 else None
        found = await asyncio.to_thread(fleet.incidents)
        mine = [one for one in found if sick in one["replicas"]]
        seen.accused = tuple({r for one in found for r in one["replicas"]} - {sick})
        if mine:
            seen.named_s = seen.named_s if seen.named_s is not None else passed
            seen.incident = await asyncio.to_thread(fleet.incident, mine[0]["id"])
        if passed >= least_s and (seen.incident or {}).get("cause") == cause:
            sending.cancel()
            await asyncio.wait([sending])
            break
        await asyncio.sleep(LOOK_S)
    return seen


def canary_tokens(rows: dict[str, dict[str, Any]], sick: str) -> tuple[int, int]:
    """What canaries cost on the healthy replicas so far, and what users got there."""
    told = [row["canary"] for name, row in rows.items() if name != sick and row.get("canary")]
    return sum(one["tokens"] for one in told), sum(one["users_tokens"] for one in told)


def verdict(name: str, sick: str, watched: Watched) -> dict[str, Any]:
    """What was reported, and whether that is right."""
    trial, incident = TRIALS[name], watched.incident or {}
    right = incident.get("cause") == trial.cause and incident.get("class") == trial.failure_class
    return {
        "sick": sick,
        "last_request_s": watched.last_request_s,
        "named_s": watched.named_s,
        "class": incident.get("class"),
        "cause": incident.get("cause"),
        "expected": trial.cause,
        "right": right,
        "accused": list(watched.accused),
        "canary_share": watched.canary_share,
        "signs": [one["sign"] for one in incident.get("evidence", ())],
        "action": incident.get("action", ""),
    }


def run_one(gateway: str, name: str, given: argparse.Namespace, number: int) -> dict[str, Any]:
    """One fault on a fresh fleet."""
    rng = Random(f"{given.seed} {name} {number}")
    if gateway != "holdfast":
        with behind(gateway, rng) as fleet:
            row = uvloop.run(_guarded(strike(fleet, name, given, rng)))
    else:
        model: dict[str, Any] = {"comparison": {}} if TRIALS[name].comparison else {}
        with launched(rng, model) as own:
            row = uvloop.run(_guarded(strike(own, name, given, rng)))
    row |= {"gateway": gateway, "run": number}
    told = f"{gateway} {name}: {row['share']:.2%} of {row['requests']} harmed"
    if gateway == "holdfast":
        told += f", {row['cause']} ({'right' if row['right'] else 'not ' + row['expected']})"
    print(told, file=sys.stderr, flush=True)
    return row


async def _guarded(trial: Any) -> dict[str, Any]:
    """Bounded: a gateway that hangs must not hang the benchmark."""
    row: dict[str, Any] = await asyncio.wait_for(trial, 600.0)
    return row


# --- tables ---------------------------------------------------------------------------------------


def show_own(rows: list[dict[str, Any]], given: argparse.Namespace) -> None:
    """Holdfast's table."""
    table = Table(title=f"1 of 4 goes bad, {given.rate:g} streams/s, {given.seconds:g} s, defaults")
    for column in ("fault", "requests", "harmed", "how", "last request", "named", "class, cause"):
        table.add_column(column, justify="left" if column in ("fault", "how") else "right")
    for row in rows:
        kinds = ", ".join(f"{count} {kind}" for kind, count in row["kinds"].items())
        said = f"{row['class']}, {row['cause']}" if row["cause"] else "nothing"
        table.add_row(
            row["fault"],
            str(row["requests"]),
            f"{row['share']:.2%}",
            kinds or "–",
            _s(row["last_request_s"]),
            _s(row["named_s"]),
            said if row["right"] else f"{said} (not {row['expected']})",
        )
    sixteen = [row["share"] for row in rows if row["fault"] in SIXTEEN]
    if sixteen:
        table.caption = f"mean harmed {sum(sixteen) / len(sixteen):.2%}, worst {max(sixteen):.2%}"
    Console(width=None if sys.stdout.isatty() else 150).print(table)


def show_peers(rows: list[dict[str, Any]], given: argparse.Namespace) -> None:
    """Everybody's harmed share, side by side."""
    gateways = list(dict.fromkeys(row["gateway"] for row in rows))
    if len(gateways) < 2:
        return
    shares = {(row["gateway"], row["fault"]): row["share"] for row in rows}
    table = Table(title=f"share harmed in the {given.seconds:g} s after the onset")
    table.add_column("fault")
    for gateway in gateways:
        table.add_column(gateway, justify="right")
    faults = list(dict.fromkeys(row["fault"] for row in rows))
    for fault in faults:
        cells = [shares.get((gateway, fault)) for gateway in gateways]
        table.add_row(fault, *("–" if cell is None else f"{cell:.1%}" for cell in cells))
    first = [fault for fault in faults if fault in SIXTEEN[:8] + SIXTEEN[9:15]]
    means = [_mean([shares[g, f] for f in first if (g, f) in shares]) for g in gateways]
    table.add_section()
    table.add_row("mean of those that are not wrong answers", *means)
    Console(width=None if sys.stdout.isatty() else 150).print(table)


def _mean(shares: list[float]) -> str:
    return f"{sum(shares) / len(shares):.1%}" if shares else "–"


def _s(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} s"


def missed(rows: list[dict[str, Any]]) -> list[str]:
    """What Holdfast did not hold, in sentences."""
    own = [row for row in rows if row["gateway"] == "holdfast" and row["fault"] in SIXTEEN]
    if not own:
        return []
    complaints = []
    mean = sum(row["share"] for row in own) / len(own)
    whole = {row["fault"] for row in own} >= set(SIXTEEN)  # the mean is of all of them or of none
    if whole and mean > MEAN_MAX:
        complaints.append(f"harmed on average {mean:.2%}, more than {MEAN_MAX:.0%}")
    for row in own:
        if row["share"] > SHARE_MAX:
            complaints.append(f"{row['fault']}: {row['share']:.2%} harmed")
        if not row["right"] and row["fault"] != "wrong-10":
            complaints.append(f"{row['fault']}: named {row['cause']}, not {row['expected']}")
        if row["accused"]:
            complaints.append(f"{row['fault']}: accused {', '.join(row['accused'])}")
        if (row["canary_share"] or 0.0) > CANARY_MAX:
            complaints.append(f"{row['fault']}: canaries were {row['canary_share']:.2%} of tokens")
    sometimes = [row for row in own if row["fault"] == "wrong-10"]
    named = sum(row["right"] for row in sometimes)
    if sometimes and named < len(sometimes) - len(sometimes) // 20:
        complaints.append(f"wrong-10: named in {named} of {len(sometimes)} runs")
    return complaints


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--faults", default=";".join(TRIALS), help="separated by ; or ,")
    parser.add_argument("--gateways", default="holdfast", help=f"of {', '.join(GATEWAYS)}, or all")
    parser.add_argument("--seconds", type=float, default=20.0, help="measured after the onset")
    parser.add_argument("--warm-up", type=float, default=10.0, help="seconds before it")
    parser.add_argument("--rate", type=float, default=40.0, help="streams per second")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each fault")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    split = ";" if ";" in given.faults else ","
    given.faults = [name for name in given.faults.split(split) if name]
    known = [name for name in given.faults if name in TRIALS]
    if known != given.faults:
        parser.error(f"known faults: {'; '.join(TRIALS)}")
    given.gateways = list(GATEWAYS) if given.gateways == "all" else given.gateways.split(",")
    if not set(given.gateways) <= set(GATEWAYS):
        parser.error(f"known gateways: {', '.join(GATEWAYS)}")
    return given


def main() -> int:
    """Measure, print, and judge."""
    given = arguments()
    began = time.monotonic()
    rows = [
        run_one(gateway, name, given, number)
        for name in given.faults
        for number in range(given.repeat)
        for gateway in given.gateways
        if gateway == "holdfast" or (name in SIXTEEN and number == 0)
    ]
    complaints = missed(rows)
    if given.json:
        told = {"benchmark": "gauntlet", "seed": given.seed, "rows": rows, "missed": complaints}
        print(json.dumps(told))
    else:
        own = [row for row in rows if row["gateway"] == "holdfast"]
        if own:
            show_own(own, given)
        show_peers(rows, given)
        print(f"{time.monotonic() - began:.0f} s; {'; '.join(complaints) or 'every bound held'}")
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main())
