"""Plans cold starts: in which order replicas should load, and when they are ready."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from holdfast.core.plan.coldstart import (
    Filesystem,
    LoadSchedule,
    bytes_read,
    cold_reads,
    readers_that_fill,
    schedule_loads,
    share_bytes_per_s,
)
from holdfast.planner.answer import (
    ChartKind,
    ChartSeries,
    PlanAnswer,
    PlanChart,
    PlanSnippet,
    PlanStep,
    PlanTable,
)
from holdfast.planner.question import FieldKind, PlanField, PlanKind, needs
from holdfast.planner.units import gb

_REPLICAS_MAX: Final = 5_000
_WAVES: Final = (1, 2, 4, 8, 16)
_FILES, _FLEET = "Filesystem", "Fleet"

FIELDS: Final = (
    PlanField(
        "replicas",
        FieldKind.COUNT,
        "Replicas that start.",
        least=1,
        most=_REPLICAS_MAX,
        group=_FLEET,
    ),
    PlanField("size", FieldKind.SIZE, "Weights of one replica.", group=_FLEET),
    PlanField("bandwidth", FieldKind.SIZE, "Bytes per second of the filesystem.", group=_FILES),
    PlanField("burst", FieldKind.SIZE, "Bytes per second while credits last.", 0.0, group=_FILES),
    PlanField(
        "credits", FieldKind.SIZE, "Bytes that can be read beyond the baseline.", 0.0, group=_FILES
    ),
    PlanField(
        "reader_rate",
        FieldKind.SIZE,
        "Bytes per second that one loader can read; default: no bound.",
        group=_FILES,
    ),
    PlanField("models", FieldKind.COUNT, "Different weights among them.", least=1, group=_FLEET),
    PlanField("hosts", FieldKind.COUNT, "Hosts that they run on.", least=1, group=_FLEET),
    PlanField(
        "packed_hosts", FieldKind.COUNT, "Fewer hosts, to compare with.", least=1, group=_FLEET
    ),
    PlanField(
        "start", FieldKind.DURATION, "From the last byte to ready.", 0.0, least=0, group=_FLEET
    ),
    PlanField("saturated", FieldKind.DURATION, "How long the filesystem was saturated, if seen."),
)


@dataclass(slots=True, frozen=True)
class _Way:
    """One order of loading."""

    name: str
    schedule: LoadSchedule
    reads: int
    packed: bool = False


def coldstart(values: Mapping[str, Any]) -> PlanAnswer:
    """Answer a cold start question; ``values`` has all of ``FIELDS``."""
    files = Filesystem(
        values["bandwidth"], values["burst"], values["credits"], values["reader_rate"] or inf
    )
    replicas = values["replicas"]
    models = values["models"] or replicas
    hosts = values["hosts"] or replicas
    reads = cold_reads(replicas, models, hosts)
    fill = readers_that_fill(files)
    ways = _ways(values, files, reads, fill)
    if values["packed_hosts"] is not None:
        packed = cold_reads(replicas, models, values["packed_hosts"])
        sizes = _sizes(replicas, packed, values["size"])
        loaded = schedule_loads(sizes, fill, files, values["start"])
        ways.append(_Way(f"packed on {values['packed_hosts']} hosts", loaded, packed, packed=True))
    apart = [way for way in ways if not way.packed]
    best = min(apart, key=lambda way: (way.schedule.mean_s, way.schedule.parallel))
    together = apart[0]
    saved = 1.0 - best.schedule.mean_s / together.schedule.mean_s
    parallel = best.schedule.parallel
    figures: dict[str, Any] = {
        "parallel_cold": parallel,
        "reads": reads,
        "share_bytes_per_s": share_bytes_per_s(files, min(replicas, max(1, reads))),
        "ways": [
            {
                "way": way.name,
                "parallel": way.schedule.parallel,
                "reads": way.reads,
                "first_s": way.schedule.first_s,
                "half_s": way.schedule.half_s,
                "mean_s": way.schedule.mean_s,
                "last_s": way.schedule.last_s,
            }
            for way in ways
        ],
    }
    remarks = [
        f"All at once each reads {figures['share_bytes_per_s'] / 1e6:.3g} MB/s.",
        f"In turn a replica is ready {saved:.0%} sooner on average, the last no later.",
    ]
    if values["saturated"] is not None:
        figures["read_while_saturated"] = bytes_read(files, values["saturated"])
        remarks.append(
            f"Saturated for {values['saturated']:,.0f} s it delivered "
            f"{gb(figures['read_while_saturated'])}."
        )
    return PlanAnswer(
        plan="coldstart",
        opening=f"{replicas} replicas of {gb(values['size'])} from "
        f"{values['bandwidth'] / 1e6:,.4g} MB/s",
        verdict=f"Load {parallel} at a time: half are ready after {_time(best.schedule.half_s)}, "
        f"all after {_time(best.schedule.last_s)}.",
        tables=(_table(ways, best),),
        remarks=tuple(remarks),
        notes=_notes(values, fill),
        steps=_steps(values, files, reads, best, together),
        snippets=(_snippet(values, files, parallel),),
        charts=(_chart(ways, best),),
        figures=figures,
    )


def _sizes(replicas: int, reads: int, size: float) -> list[float]:
    """What each replica reads: nothing, where its host has the weights in its page cache."""
    return [size] * reads + [0.0] * (replicas - reads)


def _ways(values: Mapping[str, Any], files: Filesystem, reads: int, fill: int) -> list[_Way]:
    replicas = values["replicas"]
    sizes = _sizes(replicas, reads, values["size"])
    widths = sorted({*_WAVES, fill} - set(range(replicas, 1000)))
    names = {1: "one by one"}
    ways = [_Way("all at once", schedule_loads(sizes, replicas, files, values["start"]), reads)]
    for width in widths:
        name = names.get(width, f"{width} at a time")
        ways.append(_Way(name, schedule_loads(sizes, width, files, values["start"]), reads))
    return ways


def _table(ways: list[_Way], best: _Way) -> PlanTable:
    rows = tuple(
        (
            way.name,
            str(way.reads),
            _time(way.schedule.first_s),
            _time(way.schedule.half_s),
            _time(way.schedule.mean_s),
            _time(way.schedule.last_s),
        )
        for way in ways
    )
    headings = ("loading", "reads", "first", "half", "mean", "last")
    return PlanTable("Ready", headings, rows, ways.index(best), text_columns=1)


def _time(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.1f} min"


def _notes(values: Mapping[str, Any], fill: int) -> tuple[str, ...]:
    notes = [
        (
            "Readers share the bandwidth evenly and nobody else reads. More bandwidth (elastic "
            "throughput, a local disk, an image with the weights) shortens every line; the "
            "order costs "
            "nothing."
        )
    ]
    if fill > 1:
        notes.append(
            f"One loader cannot fill the filesystem: it takes {fill} of them, and more only wait."
        )
    if values["hosts"] is not None and values["hosts"] > 1:
        notes.append(
            "Holdfast's launches keep this order on each host; hosts do not know of each other, so "
            "as many loads run at once as there are hosts that start replicas."
        )
    return tuple(notes)


def _steps(
    values: Mapping[str, Any], files: Filesystem, reads: int, best: _Way, together: _Way
) -> tuple[PlanStep, ...]:
    size, rate = values["size"], files.bytes_per_s
    share = share_bytes_per_s(files, max(1, reads))
    return (
        PlanStep(
            "share of a reader",
            "bandwidth / readers",
            f"{rate / 1e6:g} / {max(1, reads)} = {share / 1e6:g} MB/s",
        ),
        PlanStep(
            "all at once",
            "size / share",
            f"{gb(size)} / {share / 1e6:g} MB/s = {size / share:,.0f} s; with bursts and start "
            f"{together.schedule.last_s:,.0f} s",
        ),
        PlanStep(
            "in turn",
            "mean of the k-th wave's k x width x size / bandwidth",
            f"{best.schedule.parallel} at a time: mean {best.schedule.mean_s:,.0f} s, last "
            f"{best.schedule.last_s:,.0f} s",
        ),
        PlanStep(
            "reads",
            "models x min(copies, hosts)",
            f"{reads} of {values['replicas']} replicas read; the others find the page cache",
        ),
    )


def _snippet(values: Mapping[str, Any], files: Filesystem, parallel: int) -> PlanSnippet:
    longest = values["size"] / share_bytes_per_s(files, parallel)
    text = f"launches:\n  parallel_cold: {parallel}\n"
    text += f"  load_max_s: {max(1200, round(2 * longest + values['start']))}"
    return PlanSnippet("Fleet file", "yaml", text)


def _chart(ways: list[_Way], best: _Way) -> PlanChart:
    shown = [ways[0], *(way for way in ways[1:] if way is best or way.packed)]
    series = []
    for way in shown:
        points = [(0.0, 0.0)]
        for number, at in enumerate(way.schedule.ready_s, 1):
            points.append((at, float(number)))
        series.append(ChartSeries(way.name, tuple(points)))
    return PlanChart(
        "Replicas that are ready", "time, s", "ready replicas", tuple(series), ChartKind.STEPS
    )


COLDSTART: Final = PlanKind(
    name="coldstart",
    title="When replicas have loaded, by the order of their loads",
    fields=FIELDS,
    answer=coldstart,
    missing=needs("replicas", "size", "bandwidth"),
)

__all__ = ["COLDSTART", "coldstart"]
