"""Adds up gateways' counters and renders all figures as Prometheus text.

Gateways send counters under their Prometheus names with labels; here they are only added. When a
gateway ends, what it counted is kept in a sum, so that no counter ever falls: a scraper would take
that for a restart and see a spike. Names that do not fit the format, and series beyond the bound,
are left out and counted.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Final

SERIES_MAX: Final = 32_768  # of all gateways together
_SERIES: Final = re.compile(r'([a-z][a-z0-9_]*)(\{(?:[a-z_]+="[^"\\\n]*",?)+\})?')
_PARTS: Final = ("_bucket", "_sum", "_count")
_LARGEST: Final = "first_token_p95_seconds"  # of several gateways the worst; a sum says nothing


class Totals:
    """Sums of all gateways' counters; what ended gateways counted stays in them."""

    __slots__ = ("_ended", "left_out")

    def __init__(self) -> None:
        self._ended: dict[str, float] = {}
        self.left_out = 0  # series beyond the bound, at the last look

    def keep(self, counters: Mapping[str, float]) -> None:
        """Add the counters of a gateway that ended to the sums for good, so that no sum falls."""
        _add(self._ended, counters)

    def with_those_of(self, living: Iterable[Mapping[str, float]]) -> dict[str, float]:
        """A new dict of the sums over ended gateways and these living ones.

        At most 32,768 series; ``left_out`` is set to how many were beyond that.
        """
        sums = dict(self._ended)
        self.left_out = sum(_add(sums, counters) for counters in living)
        return sums

    def only(
        self, beginnings: tuple[str, ...], living: Iterable[Mapping[str, float]]
    ) -> dict[str, float]:
        """Sums over ended and living gateways, of series whose names start with ``beginnings``."""
        sums: dict[str, float] = {}
        for counters in (self._ended, *living):
            for series, value in counters.items():
                if series.startswith(beginnings):
                    sums[series] = sums.get(series, 0) + value
        return sums


def _add(sums: dict[str, float], more: Mapping[str, float]) -> int:
    """Add series to sums; returns how many were left out because there are too many."""
    left_out = 0
    for series, value in more.items():
        if series in sums or len(sums) < SERIES_MAX:
            sums[series] = sums.get(series, 0) + value
        else:
            left_out += 1
    return left_out


def gateway_gauges(living: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The gauges of all gateways added up; of the 95th percentiles the largest."""
    together: dict[str, float] = {}
    for gauges in living:
        for series, value in gauges.items():
            before = together.get(series)
            if before is None:
                together[series] = value
            elif series.startswith(_LARGEST):
                together[series] = max(before, value)
            else:
                together[series] = before + value
    return together


def fleet_gauges(replicas: Iterable[Mapping[str, str | float]]) -> dict[str, float]:
    """Prometheus gauges of replicas by model and state, and each replica's share and load."""
    states: Counter[str] = Counter()
    gauges: dict[str, float] = {}
    for row in replicas:
        labels = f'model="{row["model"]}",replica="{row["id"]}"'
        states[f'replicas{{model="{row["model"]}",state="{row["state"]}"}}'] += 1
        gauges[f"replica_share{{{labels}}}"] = float(row["share"])
        gauges[f"replica_inflight{{{labels}}}"] = float(row["inflight"])
    return {**states, **gauges}


def render(counters: Mapping[str, float], gauges: Mapping[str, float]) -> str:
    """Render counters and gauges as Prometheus text, prefixed ``holdfast_``, grouped by name.

    Series with an unusable name or value are left out; counters that end in _bucket, _sum or _count
    become histograms.
    """
    families: dict[str, tuple[str, list[str]]] = {}
    for kind, series in (("counter", counters), ("gauge", gauges)):
        for key, value in series.items():
            match = _SERIES.fullmatch(key)
            if match is None or not isfinite(value):
                continue  # one line that a scraper cannot read would cost it all the others
            name, family_kind = f"holdfast_{match[1]}", kind
            family = name
            suffix = next((part for part in _PARTS if name.endswith(part)), "")
            if suffix and kind == "counter":
                family, family_kind = name.removesuffix(suffix), "histogram"
            known = families.setdefault(family, (family_kind, []))
            known[1].append(f"{name}{match[2] or ''} {_number(value)}")
    lines = []
    for family, (kind, samples) in families.items():
        lines.append(f"# TYPE {family} {kind}")
        lines += samples
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


__all__ = ["SERIES_MAX", "Totals", "fleet_gauges", "gateway_gauges", "render"]
