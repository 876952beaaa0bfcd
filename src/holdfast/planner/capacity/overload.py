"""What a sized fleet carries beyond its plan, dimension by dimension, in the operator's order."""

from typing import Any

from holdfast.core.plan.capacity import Traffic, batch_at, choose_batch
from holdfast.core.plan.engine_speeds import engine_speed
from holdfast.core.request.ladders.degrade import Dimension
from holdfast.core.types import ConfigError, require
from holdfast.planner.answer import PlanTable
from holdfast.planner.capacity.fleet_size import SizedFleet

_FIX = (
    "use quality=ENGINE*REPLICAS, completeness=TOKENS and latency=SECONDS, each once, by commas: "
    "quality=distserve-opt-13b*2,latency=30"
)


def overload_rows(text: str, plan: SizedFleet) -> list[dict[str, Any]]:
    """Read what is given up, in order; return what the fleet carries after each of them.

    ``requests_s`` is what it can carry for ever, all steps so far included; ``extra_requests`` is
    what a longer queue takes in once.
    """
    asked = plan.known.traffic
    output, smaller = asked.output, 0.0
    rows = [_row("nothing", "as asked", _carried(plan, output), 0.0)]
    for name, value in _parts(text):
        extra = 0.0
        if name is Dimension.QUALITY:
            engine, _, count = value.partition("*")
            replicas = _number(count or "1", value)
            smaller += replicas * choose_batch(engine_speed(engine), asked, None, None).requests_s
            what = f"{replicas:g} replicas of {engine} answer, too"
        elif name is Dimension.COMPLETENESS:
            output = min(output, _number(value, value))
            what = f"answers end after {output:g} tokens"
        else:
            waits_s = _number(value, value)
            extra = waits_s * (_carried(plan, output) + smaller)
            what = f"requests wait for up to {waits_s:g} s"
        rows.append(_row(name.value, what, _carried(plan, output) + smaller, extra))
    return rows


def overload_table(rows: list[dict[str, Any]], plan: SizedFleet) -> PlanTable:
    """The same as a table: how many times the planned traffic each step carries."""
    planned = plan.known.traffic.requests_s
    cells = tuple(
        (
            row["given_up"],
            row["what"],
            f"{row['requests_s']:.3g}",
            f"{row['requests_s'] / planned:.2f}",
            f"{row['extra_requests']:,.0f}" if row["extra_requests"] else "",
        )
        for row in rows
    )
    headings = ("given up", "so that", "requests/s", "x planned", "more, once")
    return PlanTable("Under overload", headings, cells, text_columns=2)


def _carried(plan: SizedFleet, output: float) -> float:
    traffic = plan.known.traffic
    shorter = Traffic(traffic.requests_s, traffic.prompt, output)
    return plan.need.replicas * batch_at(plan.speed, shorter, plan.need.batch.batch).requests_s


def _row(given_up: str, what: str, requests_s: float, extra: float) -> dict[str, Any]:
    return {"given_up": given_up, "what": what, "requests_s": requests_s, "extra_requests": extra}


def _parts(text: str) -> list[tuple[Dimension, str]]:
    parts: list[tuple[Dimension, str]] = []
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        known = name in {one.value for one in Dimension}
        new = known and Dimension(name) not in dict(parts)
        require(known and new and bool(value), "capacity.degrade", f"has {part!r}"[:80], _FIX)
        parts.append((Dimension(name), value))
    return parts


def _number(text: str, part: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise ConfigError("capacity.degrade", f"has {part!r}"[:80], _FIX)
    return number


__all__ = ["overload_rows", "overload_table"]
