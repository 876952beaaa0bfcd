"""Generates the requests of a simulation: arrival times, tenants and token counts.

A workload is an iterator of arrivals in order of time. Rates may vary (bursts, the time of day);
the arrivals are then thinned from a Poisson process at the peak rate, so that the draws of one
stream do not depend on the shape. Traces are read line by line: what is not there is not invented.
"""

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import count, repeat
from math import cos, exp, log, pi, sqrt
from pathlib import Path
from random import Random
from statistics import NormalDist
from typing import Any, Final

from holdfast.core.types import SECOND, ConfigError, Priority, Request, nanos, require
from holdfast.sim.random_streams import stream

# What a line that is not what it should be can raise while it is read.
_BAD: Final = (AttributeError, KeyError, OverflowError, TypeError, ValueError)

_TINY: Final = 2.0**-54  # stands for a draw of exactly zero, which has no logarithm


@dataclass(slots=True, frozen=True)
class Lengths:
    """Distribution of the token counts of prompts or answers."""

    mean: float = 500.0  # tokens
    cv: float = 1.0  # standard deviation / mean; chat traces show 0.8 to 1.2
    law: str = "lognormal"  # or constant, exponential, hyperexponential
    maximum: int = 32_768  # tokens; longer draws are cut, as an engine would refuse them

    def __post_init__(self) -> None:
        require(self.mean >= 1, "lengths.mean", f"is {self.mean}", "use 1 token or more")
        require(self.cv >= 0, "lengths.cv", f"is {self.cv}", "use 0 or more")
        laws = "constant, exponential, lognormal, hyperexponential"
        require(self.law in laws.split(", "), "lengths.law", f"is {self.law!r}", f"use {laws}")
        spread = self.law != "hyperexponential" or self.cv > 1
        require(spread, "lengths.cv", f"is {self.cv}", "a hyperexponential law needs cv above 1")
        low = self.maximum < self.mean
        require(not low, "lengths.maximum", f"is {self.maximum}", "use at least the mean")

    def sampler(self, rng: Random) -> Callable[[], int]:
        """A function that draws the next length from this distribution."""
        mean, maximum = self.mean, self.maximum
        if self.law == "constant" or (self.law == "lognormal" and self.cv == 0):
            fixed = max(1, round(mean))
            return lambda: fixed
        if self.law == "exponential":
            # A geometric law on 1, 2, …: the whole-token counterpart, with exactly this mean.
            scale = 1.0 / log(1.0 - 1.0 / mean) if mean > 1 else 0.0
            draw = rng.random
            return lambda: min(maximum, 1 + int(log(1.0 - draw()) * scale))
        if self.law == "hyperexponential":
            return self._two_phases(rng)
        sigma = sqrt(log(1.0 + self.cv * self.cv))
        mu = log(mean) - sigma * sigma / 2.0
        draw = rng.random
        log_length = NormalDist(mu, sigma).inv_cdf

        def lognormal() -> int:
            tokens = int(exp(log_length(draw() or _TINY)) + 0.5)
            return tokens if 0 < tokens <= maximum else max(1, min(maximum, tokens))

        return lognormal

    def _two_phases(self, rng: Random) -> Callable[[], int]:
        """Two exponentials with balanced means: any cv above one."""
        square = self.cv * self.cv
        short = (1.0 + sqrt((square - 1.0) / (square + 1.0))) / 2.0
        rates = (2.0 * short / self.mean, 2.0 * (1.0 - short) / self.mean)

        def draw() -> int:
            rate = rates[0] if rng.random() < short else rates[1]
            return max(1, min(self.maximum, round(rng.expovariate(rate))))

        return draw


@dataclass(slots=True, frozen=True)
class WorkloadTenant:
    """One tenant of a workload: its share of the arrivals and their priority."""

    name: str = "default"
    share: float = 1.0
    batch: bool = False  # its requests wait behind everybody's interactive ones

    @property
    def priority(self) -> Priority:
        """The priority class of this tenant's requests."""
        return Priority.BATCH if self.batch else Priority.INTERACTIVE

    def __post_init__(self) -> None:
        require(bool(self.name), "tenant.name", "is empty", "name the tenant")
        require(self.share > 0, "tenant.share", f"is {self.share}", "use a share above 0")


@dataclass(slots=True, frozen=True)
class Workload:
    """Traffic settings: arrivals drawn from a distribution, or read from a trace file."""

    rate: float = 10.0  # requests per second, on average
    pattern: str = "poisson"  # or constant, bursts, diurnal
    peak: float = 3.0  # bursts: rate during a burst / mean rate; diurnal: peak / mean
    period_s: float = 60.0  # from burst to burst; one day, for diurnal
    burst_s: float = 5.0  # how long a burst lasts
    prompt: Lengths = Lengths()
    output: Lengths = Lengths(mean=200.0)
    stream: bool = True  # False: answers come in one piece, when their last token is there
    tenants: tuple[WorkloadTenant, ...] = (WorkloadTenant(),)
    trace: str = ""  # path of a CSV (Azure) or JSONL (Mooncake) trace instead of a law
    speed: float = 1.0  # trace: replay this many times as fast

    def __post_init__(self) -> None:
        require(self.rate > 0, "workload.rate", f"is {self.rate}", "use requests/s above 0")
        patterns = ("poisson", "constant", "bursts", "diurnal")
        known = self.pattern in patterns
        fix = f"use one of {', '.join(patterns)}"
        require(known, "workload.pattern", f"is {self.pattern!r}", fix)
        require(self.period_s > 0, "workload.period_s", f"is {self.period_s}", "use seconds > 0")
        inside = 0 < self.burst_s < self.period_s
        fix = "use seconds above 0 and below workload.period_s"
        require(inside, "workload.burst_s", f"is {self.burst_s}", fix)
        highest = self.period_s / self.burst_s if self.pattern == "bursts" else 2.0
        if self.pattern in ("bursts", "diurnal"):
            fits = 1 <= self.peak <= highest
            fix = f"use 1 to {highest:g}: the mean rate must stay what it is"
            require(fits, "workload.peak", f"is {self.peak}", fix)
        require(bool(self.tenants), "workload.tenants", "is empty", "name at least one tenant")
        require(self.speed > 0, "workload.speed", f"is {self.speed}", "use a factor above 0")

    def rate_at(self, t: float) -> float:
        """Arrival rate, in requests per second, at this second of the run."""
        if self.pattern == "bursts":
            if t % self.period_s < self.burst_s:
                return self.rate * self.peak
            quiet = (self.period_s - self.peak * self.burst_s) / (self.period_s - self.burst_s)
            return self.rate * quiet
        if self.pattern == "diurnal":
            return self.rate * (1.0 - (self.peak - 1.0) * cos(2.0 * pi * t / self.period_s))
        return self.rate


def arrivals(
    workload: Workload, model: str, seed: int, first_id: int = 0, id_step: int = 1
) -> Iterator[tuple[Request, int]]:
    """Yield requests in order of arrival, each with the number of tokens of its answer.

    Several workloads of one run number their requests ``first_id``, ``first_id + id_step``, …
    """
    source = _replay if workload.trace else _generate
    return source(workload, model, seed, count(first_id, id_step))


def _times(workload: Workload, rng: Random) -> Iterator[int]:
    if workload.pattern == "constant":
        gap = nanos(1.0 / workload.rate)
        time = 0
        while True:
            time += gap
            yield time
    shaped = workload.pattern in ("bursts", "diurnal")
    highest = workload.rate * workload.peak if shaped else workload.rate
    mean_gap = SECOND / highest
    draw = rng.random
    now = 0.0
    while True:
        now -= log(1.0 - draw()) * mean_gap
        if shaped and rng.random() * highest > workload.rate_at(now / SECOND):
            continue
        yield int(now)


def _generate(
    workload: Workload, model: str, seed: int, ids: Iterator[int]
) -> Iterator[tuple[Request, int]]:
    entity = f"workload/{model}"
    prompt = workload.prompt.sampler(stream(seed, entity, "prompt"))
    output = workload.output.sampler(stream(seed, entity, "output"))
    tenant = _tenants(workload, stream(seed, entity, "tenant"))
    for number, time in zip(ids, _times(workload, stream(seed, entity, "arrival")), strict=False):
        name, priority = tenant()
        tokens = output()
        request = Request(
            number,
            model,
            arrived=time,
            prompt_tokens=prompt(),
            max_tokens=tokens,
            whole=not workload.stream,
            tenant=name,
            priority=priority,
        )
        yield request, tokens


def _tenants(workload: Workload, rng: Random) -> Callable[[], tuple[str, Priority]]:
    tenants = [(tenant.name, tenant.priority) for tenant in workload.tenants]
    if len(tenants) == 1:
        return repeat(tenants[0]).__next__
    weights = [tenant.share for tenant in workload.tenants]
    return lambda: rng.choices(tenants, weights)[0]


def _replay(
    workload: Workload, model: str, seed: int, ids: Iterator[int]
) -> Iterator[tuple[Request, int]]:
    path = Path(workload.trace)
    tenant = _tenants(workload, stream(seed, f"workload/{model}", "tenant"))
    rows = _mooncake(path) if path.suffix == ".jsonl" else _azure(path)
    first: int | None = None
    last = 0
    for number, (time, prompt, output, prefix) in zip(ids, rows, strict=False):
        first = time if first is None else first
        if time - first < last:
            problem = f"{path} goes back in time {last / SECOND:.3f} s after its beginning"
            raise ConfigError("workload.trace", problem, "sort the trace by time")
        last = time - first
        name, priority = tenant()
        request = Request(
            number,
            model,
            arrived=round((time - first) / workload.speed),
            prompt_tokens=prompt,
            max_tokens=output,
            whole=not workload.stream,
            tenant=name,
            priority=priority,
            prefix=prefix,
        )
        yield request, max(1, output)


def _azure(path: Path) -> Iterator[tuple[int, int, int, tuple[int, ...]]]:
    """TIMESTAMP, ContextTokens, GeneratedTokens; timestamps carry 100 ns digits."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            for row in reader:
                try:
                    whole, _, fraction = row["TIMESTAMP"].partition(".")
                    at = datetime.fromisoformat(whole + "+00:00")
                    time = int(at.timestamp()) * SECOND + int(f"{fraction[:9]:0<9}")
                    yield time, _tokens(row["ContextTokens"]), _tokens(row["GeneratedTokens"]), ()
                except _BAD as bad:
                    raise _bad_line(path, reader.line_num, bad) from bad
    except (OSError, UnicodeDecodeError, csv.Error) as missing:
        raise _unreadable(path, missing) from missing


def _mooncake(path: Path) -> Iterator[tuple[int, int, int, tuple[int, ...]]]:
    """One JSON object a line: timestamp (ms), input_length, output_length, hash_ids."""
    try:
        with path.open(encoding="utf-8") as file:
            for line, text in enumerate(file, start=1):
                try:
                    row = json.loads(text)
                    time = int(row["timestamp"]) * 1_000_000
                    prefix = tuple(int(block) for block in row.get("hash_ids", ()))
                    yield time, _tokens(row["input_length"]), _tokens(row["output_length"]), prefix
                except _BAD as bad:
                    raise _bad_line(path, line, bad) from bad
    except (OSError, UnicodeDecodeError) as missing:
        raise _unreadable(path, missing) from missing


def _tokens(value: Any) -> int:
    count = int(value)
    if count < 0:
        raise ValueError(f"{count} tokens")
    return count


def _bad_line(path: Path, line: int, why: Exception) -> ConfigError:
    problem = f"line {line} of {path} cannot be read ({type(why).__name__}: {why})"
    return ConfigError("workload.trace", problem, "use an Azure CSV or a Mooncake JSONL trace")


def _unreadable(path: Path, why: Exception) -> ConfigError:
    problem = f"{path} cannot be read ({getattr(why, 'strerror', None) or why})"
    return ConfigError("workload.trace", problem, "give the path of a trace file")


__all__ = ["Lengths", "Workload", "WorkloadTenant", "arrivals"]
