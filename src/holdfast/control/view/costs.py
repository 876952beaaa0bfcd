"""Adds up the fleet's costs from gateways' token counters and the replicas' running time.

The rule is the core's (``core.plan.cost``). Here are its inputs. A replica's busy time in the last
two seconds is all of it if requests run there now, else the sum of the times of the attempts that
ended meanwhile. The second is exact for short requests that do not overlap, and never too much for
others. Canaries' tokens are counted here, all others by gateways.

Costs begin at zero with each control: billing must scrape the counters or read the report
regularly. Rejected: keeping them on disk. Two records of the same thing differ one day, and
Prometheus has one.
"""

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from holdfast.core.plan.cost import DIRECT, NOBODY, Key, Ledger, Line, Prices, Running, Span, Use
from holdfast.core.types import State

LOOK_S: Final = 2.0  # a replica that is idle for less is not worth a line
LINES_MAX: Final = 1_000  # in one report, the dearest first
SERIES: Final = ("tokens_total{", "attempt_seconds_total{")  # what is looked at

_TOKENS: Final = re.compile(
    r'tokens_total\{tenant="([^"]*)",model="([^"]*)",route="([^"]*)",use="([^"]*)",type="([^"]*)"\}'
)
_ATTEMPTS: Final = re.compile(r'attempt_seconds_total\{replica="([^"]*)"\}')
_STARTING: Final = frozenset({State.STARTING.value, State.LOADING.value, State.WARMING.value})
_GONE: Final = frozenset({State.STOPPED.value, State.DEAD.value})
_USES: Final = {use.value: use for use in Use}

Row = Mapping[str, Any]  # a replica, as the fleet tells it
Read = Callable[[], tuple[Iterable[Row], Mapping[str, float]]]  # replicas, and SERIES of counters


class Costs:
    """Books GPU-seconds and tokens of the fleet since this control began, and their price.

    In memory only: it begins at zero with each control.
    """

    def __init__(self, prices: Prices) -> None:
        self._ledger = Ledger(prices)
        self._since = time.time()
        self._looked_at: int | None = None
        self._keys: dict[str, tuple[Key, bool]] = {}  # of series; True: of answers
        self._attempts: dict[str, float] = {}  # seconds by replica, at the last look
        self._canaries: dict[str, tuple[int, int]] = {}

    def follow(self, prices: Prices) -> None:
        """Use other prices from now on, also for what is booked already."""
        self._ledger.prices = prices

    def canary(self, model: str, tokens: int, answer_max: int) -> None:
        """Add a canary's tokens to its model; up to ``answer_max`` of them count as output.

        They are booked with the next ``look``.
        """
        said = min(tokens, answer_max)
        before = self._canaries.get(model, (0, 0))
        self._canaries[model] = (before[0] + tokens - said, before[1] + said)

    async def run(self, read: Read) -> None:
        """Read replicas and counters and book every 2 s, until cancelled."""
        while True:
            rows, counters = read()
            self.look(rows, counters, time.monotonic_ns())
            await asyncio.sleep(LOOK_S)

    def look(self, rows: Iterable[Row], counters: Mapping[str, float], now: int) -> None:
        """Book the GPU time and tokens since the last call; the first call books no time."""
        elapsed_s = 0.0 if self._looked_at is None else (now - self._looked_at) / 1e9
        self._looked_at = now
        busy = self._busy(counters)
        running = [_running(row, elapsed_s, busy) for row in rows if row["state"] not in _GONE]
        self._ledger.look(elapsed_s, running, self._counted(counters))

    def _busy(self, counters: Mapping[str, float]) -> dict[str, float]:
        """Seconds of attempts that ended on each replica since the last call."""
        now = {
            match[1]: value
            for series, value in counters.items()
            if (match := _ATTEMPTS.fullmatch(series)) is not None
        }
        before, self._attempts = self._attempts, now
        return {replica: total - before.get(replica, 0.0) for replica, total in now.items()}

    def _counted(self, counters: Mapping[str, float]) -> dict[Key, tuple[int, int]]:
        found: dict[Key, tuple[int, int]] = {
            Key(NOBODY, model, DIRECT, Use.CANARY): tokens
            for model, tokens in self._canaries.items()
        }
        for series, value in counters.items():
            known = self._keys.get(series)
            if known is None:
                match = _TOKENS.fullmatch(series)
                use = None if match is None else _USES.get(match[4])
                if match is None or use is None:
                    continue
                known = Key(match[1], match[2], match[3], use), match[5] == "output"
                self._keys[series] = known
            key, is_answer = known
            read, said = found.get(key, (0, 0))
            found[key] = (read, said + int(value)) if is_answer else (read + int(value), said)
        return found

    # --- what is told ----------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """All costs as plain data: totals, models, and up to 1,000 lines, the dearest first."""
        ledger = self._ledger
        lines = [_told(ledger, key, line) for key, line in ledger.lines.items()]
        lines.sort(key=lambda one: (-one["cost"], -one["gpu_seconds"], one["model"], one["tenant"]))
        spent = ledger.seconds()
        models = [
            _told_model(ledger, model, spent) for model in sorted({name for name, _ in spent})
        ]
        names = ("cost", "useful_cost", "wasted_cost", "idle_cost", "charged", "gpu_seconds")
        return {
            "currency": ledger.prices.currency,
            "since": self._since,
            "seconds": round(time.time() - self._since, 3),
            "priced": any(
                price.gpu_hour or price.input_million or price.output_million
                for price in ledger.prices.models.values()
            ),
            "totals": {name: round(sum(one[name] for one in models), 6) for name in names},
            "models": models,
            "lines": lines[:LINES_MAX],
            "left_out": max(0, len(lines) - LINES_MAX),
        }

    def counters(self) -> dict[str, float]:
        """Prometheus counters of canaries' tokens, GPU-seconds by use, and their price.

        Users' tokens are counted by gateways.
        """
        ledger = self._ledger
        told: dict[str, float] = {}
        for model, (read, said) in self._canaries.items():
            labels = f'tenant="{NOBODY}",model="{model}",route="{DIRECT}",use="canary"'
            told[f'tokens_total{{{labels},type="input"}}'] = read
            told[f'tokens_total{{{labels},type="output"}}'] = said
        currency = ledger.prices.currency
        for (model, use), gpu_s in ledger.seconds().items():
            if use == Span.UNDER_WAY.value:
                continue  # it falls when it is shared out, and a counter must not
            told[f'gpu_seconds_total{{model="{model}",use="{use}"}}'] = gpu_s
            labels = f'model="{model}",use="{use}",currency="{currency}"'
            told[f"gpu_cost_total{{{labels}}}"] = ledger.gpu_cost(model, gpu_s)
        return told


def _running(row: Row, elapsed_s: float, busy: Mapping[str, float]) -> Running:
    starting = row["state"] in _STARTING
    busy_s = elapsed_s if row["inflight"] else busy.get(row["id"], 0.0)
    return Running(str(row["model"]), starting, busy_s)


def _told(ledger: Ledger, key: Key, line: Line) -> dict[str, Any]:
    return {
        "tenant": key.tenant,
        "model": key.model,
        "route": key.route,
        "use": key.use.value,
        "input_tokens": line.input_tokens,
        "output_tokens": line.output_tokens,
        "gpu_seconds": round(line.gpu_s, 3),
        "cost": round(ledger.gpu_cost(key.model, line.gpu_s), 6),
        "charged": round(ledger.charge(key.model, line), 6) if key.use is Use.USEFUL else 0.0,
    }


def _told_model(
    ledger: Ledger, model: str, spent: Mapping[tuple[str, str], float]
) -> dict[str, Any]:
    seconds = {use: s for (name, use), s in spent.items() if name == model}
    lines = [(key, line) for key, line in ledger.lines.items() if key.model == model]
    useful_s = seconds.get(Use.USEFUL.value, 0.0)
    wasted_s = sum(seconds.get(use.value, 0.0) for use in Use if use is not Use.USEFUL)
    hours = ledger.hours.get(model)
    all_s = hours.all_s if hours is not None else 0.0
    used = [line for key, line in lines if key.use is Use.USEFUL]
    return {
        "model": model,
        "gpus": ledger.prices.of(model).gpus,
        "gpu_seconds": round(all_s, 3),
        "seconds_by_use": {use: round(s, 3) for use, s in seconds.items() if s},
        "cost": round(ledger.gpu_cost(model, all_s), 6),
        "useful_cost": round(ledger.gpu_cost(model, useful_s), 6),
        "wasted_cost": round(ledger.gpu_cost(model, wasted_s), 6),
        "idle_cost": round(ledger.gpu_cost(model, all_s - useful_s - wasted_s), 6),
        "charged": round(sum(ledger.charge(model, line) for line in used), 6),
        "input_tokens": sum(line.input_tokens for _, line in lines),
        "output_tokens": sum(line.output_tokens for _, line in lines),
        "useful_input_tokens": sum(line.input_tokens for line in used),
        "useful_output_tokens": sum(line.output_tokens for line in used),
    }


__all__ = ["LINES_MAX", "LOOK_S", "SERIES", "Costs"]
