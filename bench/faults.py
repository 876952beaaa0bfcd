"""How many clients notice that one of four replicas falls ill.

    python bench/faults.py [--faults crash,hang] [--seconds 20] [--rate 40] [--json]
    python bench/faults.py --no-harm

Four stand-ins (first token after 50 ms, 20 tokens at 10 ms) serve streams behind the gateway. After
a warm-up one of them is struck; for the seconds after the onset every request counts that was under
way or sent: harmed is whoever got an error, wrong or missing or repeated text, no finish reason, or
an answer later than 1.5 s. Every fault gets a fresh fleet and a fresh gateway, so none profits from
what was learned of another (``--keep`` repairs in place of that, and waits for the recovery).

``--no-harm`` asks the opposite question (``no_harm.py``): whether the same defaults leave a healthy
fleet alone. Exit status 1 where any fault harms more than 1 %, or a healthy replica was punished.
"""

import argparse
import asyncio
import json
import sys
import time
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit

import uvloop
from rich.console import Console
from rich.table import Table

import no_harm
from fault_fleet import Fleet, Replica, running
from fault_load import Load, mixed_prompts, poisson, short_prompts, summary

SHARE_MAX: Final = 0.01
SETTLE_S: Final = 15.0  # for the last requests; by then they count as without an end
RECOVERY_S: Final = 90.0  # with --keep: breakers wait up to a minute
TOKENS: Final = 20
STAND_IN: Final = ("--ttft-ms", "50", "--tpot-ms", "10", "--tokens", str(TOKENS))
MIXES: Final = {"short": short_prompts, "mixed": mixed_prompts}

# After so many tokens a stream breaks: late enough that a retry would repeat, not continue.
_BROKEN: Final = 8
FAULTS: Final[dict[str, dict[str, Any]]] = {
    "crash": {"kind": "crash"},
    "sigstop": {"kind": "sigstop"},
    "hang": {"kind": "hang"},
    "stall": {"kind": "stall", "tokens": _BROKEN},
    "slow": {"kind": "slow", "factor": 10.0},
    "drip": {"kind": "drip", "interval_s": 5.0},
    "cut": {"kind": "cut", "tokens": _BROKEN},
    "close": {"kind": "close", "tokens": _BROKEN},
    "empty": {"kind": "empty"},
    "garbage": {"kind": "garbage"},
    "500": {"kind": "status", "code": 500},
    "500-instant": {"kind": "status", "code": 500, "instant": True},
    "503-instant": {"kind": "status", "code": 503, "instant": True},
    "oom": {"kind": "oom"},
    # Not asked for, and worth a look: --faults error-frame,garbage-json,…
    "error-frame": {"kind": "error_frame", "tokens": _BROKEN},
    "close-fin": {"kind": "close", "tokens": _BROKEN, "form": "fin"},
    "garbage-bytes": {"kind": "garbage", "form": "bytes"},
    "garbage-json": {"kind": "garbage", "form": "json"},
    "garbage-under-way": {"kind": "garbage", "under_way": True},
    "black-hole": {"kind": "black_hole"},
    "flaky": {"kind": "flaky", "probability": 0.5, "tokens": _BROKEN},
    "partition": {"kind": "partition"},
    "busy": {"kind": "refuse_busy"},
}
STANDARD: Final = list(FAULTS)[:14]


async def strike(fleet: Fleet, sick: Replica, name: str, given: argparse.Namespace) -> Any:
    """Warm up, strike, measure."""
    address = urlsplit(fleet.url)
    load = Load(address.hostname or "", address.port or 80, keep_alive=given.keep_alive)
    loop = asyncio.get_running_loop()
    lengths = MIXES[given.prompt_mix]
    seconds = given.warm_up + given.seconds
    begin = loop.time() + 0.1
    shots = poisson(given.seed, given.rate, begin, seconds, lengths=lengths, tokens=TOKENS)
    sending = loop.create_task(load.run(shots))
    await asyncio.sleep(begin + given.warm_up - loop.time())
    before = summary([shot for shot in load.shots if shot.ended])
    onset = loop.time()
    await asyncio.to_thread(sick.strike, FAULTS[name])
    await sending
    await load.settle(SETTLE_S)
    struck = [shot for shot in load.shots if not shot.ended or shot.ended >= onset]
    seen = await asyncio.to_thread(_seen_by, sick)
    return {"fault": name, **summary(struck), "warm_up": before, "sick_stats": seen}


def _seen_by(sick: Replica) -> dict[str, Any] | None:
    try:
        return sick.stats()
    except OSError:
        return None  # it is dead or stopped, as it should be


def recover(sick: Replica, fleet: Fleet) -> bool:
    """Repair, and wait until the gateway sends requests there again."""
    sick.repair()
    address = urlsplit(fleet.url)
    finished = sick.stats()["finished"]

    async def trickle() -> bool:
        load = Load(address.hostname or "", address.port or 80, keep_alive=False)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        shots = poisson(0, 20.0, begin, RECOVERY_S, lengths=short_prompts, tokens=TOKENS)
        sending = loop.create_task(load.run(shots))
        while not sending.done():
            await asyncio.sleep(0.5)
            if (await asyncio.to_thread(sick.stats))["finished"] >= finished + 5:
                break
        back = not sending.done()
        sending.cancel()
        await load.settle(5.0)
        return back

    return uvloop.run(trickle())


def measure(names: list[str], given: argparse.Namespace) -> list[dict[str, Any]]:
    """A row per fault."""
    rows = []
    ports = [int(port) for port in given.ports.split(",") if port]
    how: dict[str, Any] = {
        "ports": ports,
        "gateway_url": given.gateway_url,
        "template": given.gateway_command,
    }
    if given.keep:
        with running(STAND_IN, rng=Random(given.seed), **how) as fleet:
            for number, name in enumerate(names):
                sick = Random(f"{given.seed} {name}").choice(fleet.replicas)
                rows.append(uvloop.run(strike(fleet, sick, name, given)))
                tell(rows[-1], given)
                if number + 1 < len(names):
                    began = time.monotonic()
                    rows[-1]["recovered"] = recover(sick, fleet)
                    rows[-1]["recovery_s"] = round(time.monotonic() - began, 1)
        return rows
    for name in names:
        rng = Random(f"{given.seed} {name}")
        with running(STAND_IN, rng=rng, **how) as fleet:
            rows.append(uvloop.run(strike(fleet, rng.choice(fleet.replicas), name, given)))
        tell(rows[-1], given)
    return rows


def tell(row: dict[str, Any], given: argparse.Namespace) -> None:
    """A line as soon as a fault is done: the whole takes minutes."""
    if not given.json:
        print(f"{row['fault']}: {row['share']:.2%} of {row['requests']} harmed", file=sys.stderr)


def show(rows: list[dict[str, Any]], given: argparse.Namespace) -> None:
    """The table."""
    title = f"harm in the {given.seconds:g} s after onset, {given.rate:g} streams/s, 1 of 4 sick"
    table = Table(title=title)
    columns = ("fault", "requests", "harmed", "share", "how", "repeated", "first token p50")
    for column in (*columns, "p99", "slowest", "retried", "continued"):
        table.add_column(column, justify="left" if column in ("fault", "how") else "right")
    for row in rows:
        kinds = ", ".join(f"{count} {kind}" for kind, count in row["kinds"].items())
        table.add_row(
            row["fault"],
            str(row["requests"]),
            str(row["harmed"]),
            f"{row['share']:.2%}",
            kinds or "–",
            str(row["repeated"]),
            f"{row['first_ms_p50']:.0f} ms",
            f"{row['first_ms_p99']:.0f} ms",
            f"{row['slowest_s']:.2f} s",
            str(row["retried"]),
            str(row["continued"]),
        )
    Console(width=None if sys.stdout.isatty() else 150).print(table)
    spoilt = [row["fault"] for row in rows if row["warm_up"]["harmed"]]
    if spoilt:
        print(f"harmed before the onset already, so not the fault's doing: {', '.join(spoilt)}")


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--faults", default=",".join(STANDARD), help="comma-separated")
    parser.add_argument("--seconds", type=float, default=20.0, help="measured after the onset")
    parser.add_argument("--warm-up", type=float, default=10.0, help="seconds before it")
    parser.add_argument("--rate", type=float, default=40.0, help="streams per second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--prompt-mix", choices=list(MIXES), default="short")
    parser.add_argument("--keep-alive", action="store_true", help="reuse client connections")
    parser.add_argument("--keep", action="store_true", help="one fleet for all faults; repair it")
    parser.add_argument("--gateway-url", default="", help="a gateway that runs already")
    parser.add_argument("--ports", default="", help="of the stand-ins, for --gateway-url: a,b,c,d")
    parser.add_argument("--gateway-command", default="", help="in place of ours; {config} is known")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-harm", action="store_true", help="a healthy fleet under stress")
    no_harm.add_arguments(parser)
    given = parser.parse_args()
    if bool(given.gateway_url) != bool(given.ports):
        parser.error("--gateway-url and --ports go together")
    unknown = [name for name in given.faults.split(",") if name not in FAULTS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(FAULTS)}")
    return given


def main() -> int:
    """Measure and print; 1 where somebody was harmed."""
    given = arguments()
    if given.no_harm:
        return no_harm.main(given)
    rows = measure(given.faults.split(","), given)
    if given.json:
        print(json.dumps({"benchmark": "faults", "seed": given.seed, "rows": rows}))
    else:
        show(rows, given)
    return int(any(row["share"] > SHARE_MAX for row in rows))


if __name__ == "__main__":
    sys.exit(main())
