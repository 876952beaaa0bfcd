"""Accounts for tokens and GPU-seconds by tenant, model and route, useful and wasted apart.

    gateways ─ tokens by (tenant, model, route, use) ─┐
    replicas ─ seconds: starting, idle, busy ─────────┴─► Ledger ─► lines ─► prices

The rule. A replica holds its GPUs from its start to its end. While it loads, that is *starting*;
while nothing runs on it, *idle*; the rest is *busy*. The busy GPU-seconds of a model are shared out
among the tokens that were counted for it meanwhile, an answer's token weighing ``output_weight``
times a prompt's: a prompt is read in one go, an answer is written token by token. Tokens of a long
answer are counted at its end, so busy seconds wait until some are; what still waits is *under way*.

What a client was given is *useful*. Everything else a replica was made to do for it is wasted, and
named by its reason (``Use``). The reason is that of the work that was lost: a retry is booked where
the failed attempt had run, not where the second one did.

Rejected: GPU-seconds by the duration of each attempt. Engines run many at once, so the sum of
durations exceeds the hours on the bill by the batch size, and a tenant beside many others would pay
for waiting. Rejected: idle time spread over tenants; no tenant could act on such a price, while an
idle line says by itself that a fleet is too large.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Final, NamedTuple

from holdfast.core.types import require

DIRECT: Final = "direct"  # the route of a request that named a model itself
NOBODY: Final = "-"  # the tenant of what Holdfast asks on its own; no tenant can be called so
LINES_MAX: Final = 10_000  # further ones are booked under NOBODY
HOUR_S: Final = 3_600.0
MILLION: Final = 1_000_000.0


class Use(StrEnum):
    """What tokens were spent for: an answer, or a kind of waste."""

    USEFUL = "useful"  # a client was given them
    RETRY = "retry"  # an attempt failed before anybody was given anything of it
    HEDGE = "hedge"  # another replica was faster
    CONTINUATION = "continuation"  # read again, so that another replica could go on
    ESCALATION = "escalation"  # a cheap answer that failed a check
    ABANDONED = "abandoned"  # its client went before it was given anything
    COMPARISON = "comparison"  # asked of a second replica to compare the two
    CANARY = "canary"  # the known question


class Span(StrEnum):
    """What GPU-seconds were for which no tokens are booked: idle, starting, under way."""

    IDLE = "idle"
    STARTING = "starting"
    UNDER_WAY = "under_way"  # busy, with tokens that are not counted yet


@dataclass(slots=True, frozen=True)
class ModelPrice:
    """Settings of one model: GPUs per replica, price per GPU-hour and per million tokens."""

    gpus: int = 1  # that one replica holds
    gpu_hour: float = 0.0  # of one GPU
    input_million: float = 0.0  # asked for a million tokens of prompts
    output_million: float = 0.0  # asked for a million tokens of answers

    def __post_init__(self) -> None:
        require(0 < self.gpus <= 1024, "prices.gpus", f"is {self.gpus}", "use 1 to 1024")
        for name in ("gpu_hour", "input_million", "output_million"):
            value = getattr(self, name)
            require(0 <= value < inf, f"prices.{name}", f"is {value}", "use 0 or more")


_UNPRICED: Final = ModelPrice()


@dataclass(slots=True, frozen=True)
class Prices:
    """Settings: the prices of all models of a fleet by name, their currency, and a weight.

    ``output_weight``: how many prompt tokens an answer's token counts as when GPU-seconds are
    shared.
    """

    currency: str = "USD"
    output_weight: float = 4.0  # of a token of an answer, in tokens of a prompt: usual list prices
    models: Mapping[str, ModelPrice] = field(default_factory=dict)

    def __post_init__(self) -> None:
        weight = self.output_weight
        require(0 < weight <= 1000, "prices.output_weight", f"is {weight}", "use more than 0")

    def of(self, model: str) -> ModelPrice:
        """Return the ``ModelPrice`` of a model; all zero (one GPU) where the file gives none."""
        return self.models.get(model, _UNPRICED)


class Key(NamedTuple):
    """What tokens are booked on: tenant, model, route (the virtual model asked for) and use."""

    tenant: str
    model: str
    route: str  # the virtual model they asked for, or DIRECT
    use: Use


@dataclass(slots=True)
class Running:
    """Input of ``Ledger.look`` for one replica: whether it was starting, how long it was busy."""

    model: str
    starting: bool = False
    busy_s: float = 0.0  # that something ran on it; at most as long as the look was ago


@dataclass(slots=True)
class Line:
    """Totals booked on one key: input and output tokens, and the GPU-seconds of both."""

    input_tokens: int = 0
    output_tokens: int = 0
    gpu_s: float = 0.0


@dataclass(slots=True)
class Hours:
    """Total GPU-seconds of one model's replicas since the ledger began, by what they did."""

    starting_s: float = 0.0
    idle_s: float = 0.0
    busy_s: float = 0.0
    waiting_s: float = 0.0  # of the busy ones: not shared out yet

    @property
    def all_s(self) -> float:
        """All GPU-seconds that the model's replicas held so far: starting, idle and busy."""
        return self.starting_s + self.idle_s + self.busy_s


class Ledger:
    """Books tokens by ``Key`` and GPU-seconds by model, over the whole fleet, since it was created.

    Keeps totals in memory only; ``look`` is called again and again. It sends no bills.
    """

    def __init__(self, prices: Prices) -> None:
        self.prices = prices
        self.lines: dict[Key, Line] = {}
        self.hours: dict[str, Hours] = {}
        self._before: dict[Key, tuple[int, int]] = {}

    def look(
        self,
        elapsed_s: float,
        replicas: Iterable[Running],
        counted: Mapping[Key, tuple[int, int]],
    ) -> None:
        """Book the last ``elapsed_s``: each replica's GPU-seconds, and tokens since the last call.

        ``replicas`` are all that hold GPUs now; ``counted`` holds each key's total (input, output)
        tokens so far. Busy GPU-seconds are shared out by tokens, and wait while there are none. A
        total that fell began anew and is not booked this time. Returns nothing.
        """
        require(elapsed_s >= 0, "elapsed_s", f"is {elapsed_s}", "time does not run backwards")
        for replica in replicas:
            self._hold(replica, elapsed_s)
        weights: dict[str, list[tuple[Line, float]]] = {}
        weight = self.prices.output_weight
        for key, (input_tokens, output_tokens) in counted.items():
            before = self._before.get(key, (0, 0))
            more_in, more_out = input_tokens - before[0], output_tokens - before[1]
            if not (more_in or more_out):
                continue
            self._before[key] = (input_tokens, output_tokens)
            if more_in < 0 or more_out < 0:
                continue  # whoever counted began anew: from here on it is known again
            line = self._line(key)
            line.input_tokens += more_in
            line.output_tokens += more_out
            weights.setdefault(key.model, []).append((line, more_in + weight * more_out))
        for model, shares in weights.items():
            self._share_out(model, shares)

    def _hold(self, replica: Running, elapsed_s: float) -> None:
        hours = self.hours.setdefault(replica.model, Hours())
        gpus = self.prices.of(replica.model).gpus
        if replica.starting:
            hours.starting_s += gpus * elapsed_s
            return
        busy = min(max(replica.busy_s, 0.0), elapsed_s)
        hours.busy_s += gpus * busy
        hours.waiting_s += gpus * busy
        hours.idle_s += gpus * (elapsed_s - busy)

    def _line(self, key: Key) -> Line:
        line = self.lines.get(key)
        if line is None:
            if len(self.lines) >= LINES_MAX:
                key = Key(NOBODY, key.model, NOBODY, key.use)
            line = self.lines.setdefault(key, Line())
        return line

    def _share_out(self, model: str, shares: list[tuple[Line, float]]) -> None:
        hours = self.hours.get(model)
        whole = sum(share for _, share in shares)
        if hours is None or not whole:
            return
        for line, share in shares:
            line.gpu_s += hours.waiting_s * share / whole
        hours.waiting_s = 0.0

    # --- money -----------------------------------------------------------------------------------

    def gpu_cost(self, model: str, gpu_s: float) -> float:
        """Return what so many GPU-seconds of this model cost, in the prices' currency.

        Books nothing.
        """
        return self.prices.of(model).gpu_hour * gpu_s / HOUR_S

    def charge(self, model: str, line: Line) -> float:
        """Return the price of a line's tokens for the client, by the price per million.

        Books nothing.
        """
        price = self.prices.of(model)
        asked = line.input_tokens * price.input_million + line.output_tokens * price.output_million
        return asked / MILLION

    def seconds(self) -> dict[tuple[str, str], float]:
        """Return total GPU-seconds by (model, use or span); they add up to all that were held."""
        found: dict[tuple[str, str], float] = {}
        for key, line in self.lines.items():
            place = (key.model, key.use.value)
            found[place] = found.get(place, 0.0) + line.gpu_s
        for model, hours in self.hours.items():
            found[model, Span.IDLE.value] = hours.idle_s
            found[model, Span.STARTING.value] = hours.starting_s
            found[model, Span.UNDER_WAY.value] = hours.waiting_s
        return found


__all__ = [
    "DIRECT",
    "HOUR_S",
    "LINES_MAX",
    "MILLION",
    "NOBODY",
    "Hours",
    "Key",
    "Ledger",
    "Line",
    "ModelPrice",
    "Prices",
    "Running",
    "Span",
    "Use",
]
