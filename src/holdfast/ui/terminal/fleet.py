"""Prints the state of a fleet as a table: which replicas serve, which do not, and why.

The reason of a replica's state stands below its row and not beside it: reasons are sentences, and
a column of sentences does not fit into 80 columns. Members that the admin port does not send are
left out; an older or newer control may send fewer or more.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast.core.canary import CanaryVerdict
from holdfast.ui.terminal.console import duration, stdout

EVENTS_SHOWN: Final = 8
STYLES: Final = {
    "ready": "green",
    "suspect": "yellow",
    "draining": "yellow",
    "quarantined": "red",
    "dead": "red",
    "stopped": "dim",
}
_DEFAULT_STYLE: Final = "cyan"  # it is on its way

Row = Mapping[str, Any]  # of a replica, as /status has it


def show_status(status: Mapping[str, Any], events: Sequence[Row]) -> None:
    """Print a fleet's status as tables for people."""
    console = stdout()
    rows: list[Row] = status.get("replicas") or []
    for problem in status.get("config_problems") or []:
        console.print(Text(f"the fleet file was refused: {problem}", "red"), soft_wrap=True)
    for model in status.get("panic") or []:
        told = f"{model}: too few replicas are well, so all are tried (panic)"
        console.print(Text(told, "red"), soft_wrap=True)
    overruled: Any = status.get("breakers_overruled")
    for model, names in overruled.items() if isinstance(overruled, Mapping) else ():
        told = f"{model}: users' requests fail on most replicas; still tried: {', '.join(names)}"
        console.print(Text(told, "red"), soft_wrap=True)
    for line in _models(status):
        console.print(line, soft_wrap=True)
    if rows:
        _show_replicas(console, rows)
    else:
        console.print("no replicas yet")
    for text in _gpus(status, rows):
        console.print(text, soft_wrap=True)
    console.print(_gateways(status.get("gateways") or []), soft_wrap=True)
    for line in _processes(status.get("processes") or []):
        console.print(line, soft_wrap=True)
    if events:
        console.print("lately")
        console.print(Padding(_events(events[-EVENTS_SHOWN:]), (0, 0, 0, 2)))


def _models(status: Mapping[str, Any]) -> list[Text]:
    """One line for each model of which there is more to say than its replicas."""
    found: Any = status.get("models")
    lines = []
    for name, model in found.items() if isinstance(found, Mapping) else ():
        rows = [row for row in status.get("replicas") or [] if row.get("model") == name]
        ready = sum(row.get("state") == "ready" for row in rows)
        told = f"{name}: {ready} ready of {model.get('wished', len(rows))} wanted"
        if model.get("reason"):
            told += f" ({model['reason']})"
        lines.append(Text(told))
        rollout: Any = model.get("rollout")
        halted = rollout.get("halted") if isinstance(rollout, Mapping) else None
        if halted:
            lines.append(Text(f"  its rollout was halted: {halted}", "red"))
    return lines


# --- replicas -------------------------------------------------------------------------------------

_COLUMNS: Final = ("id", "model", "rev", "state", "zone", "pid", "busy", "canary")
_GPU_COLUMNS: Final = ("gpu mem", "gpu", "°C")  # where the GPU of any replica is known


def _show_replicas(console: Console, rows: Sequence[Row]) -> None:
    """Rows with their reasons between them; so the widths are worked out here."""
    known = any(row.get("gpu") for row in rows)
    columns = (*_COLUMNS, *_GPU_COLUMNS) if known else _COLUMNS
    cells = [[*_cells(row), *(_gpu_cells(row) if known else ())] for row in rows]
    widths = [
        max(len(heading), *(len(line[place]) for line in cells))
        for place, heading in enumerate(columns)
    ]
    console.print(Text(_joined(columns, widths), "bold"), soft_wrap=True)
    for row, line in zip(rows, cells, strict=True):
        text = Text(_joined(line, widths))
        begin = sum(widths[:3]) + 2 * 3
        text.stylize(style_of(row), begin, begin + len(line[3]))
        console.print(text, soft_wrap=True)
        why = _reason(row)
        if why:
            console.print(Padding(Text(why, "dim"), (0, 0, 0, 2)))


def _joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def _cells(row: Row) -> list[str]:
    return [
        str(row.get("id", "")),
        str(row.get("model", "")),
        str(row.get("revision", "")),
        str(row.get("state", "")),
        str(row.get("zone", "")),
        str(row.get("pid") or "–"),
        str(row.get("inflight", "–")),
        _canary(row),
    ]


def _gpu_cells(row: Row) -> tuple[str, str, str]:
    """What it holds of its GPUs, how busy and how hot they are."""
    use: Any = row.get("gpu")
    if not isinstance(use, Mapping):
        return "–", "–", "–"
    used = use.get("held_bytes")
    used = use.get("memory_used_bytes") if used is None else used
    whole, busy, heat = (
        use.get(name) for name in ("memory_total_bytes", "utilisation", "temperature_c")
    )
    memory = "–" if used is None or not whole else f"{used / 1e9:.1f}/{whole / 1e9:.0f} GB"
    return memory, "–" if busy is None else f"{busy:.0%}", "–" if heat is None else f"{heat:.0f}"


def _gpus(status: Mapping[str, Any], rows: Sequence[Row]) -> list[Text]:
    """What is wrong with GPUs of replicas; where no GPU is known anywhere, that and why."""
    known = [row for row in rows if isinstance(row.get("gpu"), Mapping)]
    if known:
        told = [(row.get("id", ""), fault) for row in known for fault in row["gpu"]["faults"]]
        return [Text(f"{name}: {fault}", "red") for name, fault in told]
    own: Any = status.get("gpus")
    if not isinstance(own, Mapping):  # an older control
        return []
    if own.get("available"):
        return [Text(f"{own.get('reason', '')} on control's host; no replica is known on them")]
    return [Text(f"no GPU on control's host: {own.get('reason', '')}", "dim")]


def _canary(row: Row) -> str:
    """The last one's verdict, and how long its answer took."""
    canary: Any = row.get("canary")
    if not isinstance(canary, Mapping) or not canary.get("verdict"):
        return "–"
    latency = canary.get("latency_s")
    return f"{canary['verdict']} {duration(latency)}" if latency else str(canary["verdict"])


def _reason(row: Row) -> str:
    """Why it is in this state, and what its canary found if that was not a pass."""
    said = [str(row.get("reason") or "")]
    if row.get("state") in {"starting", "loading"}:
        said.append(str(row.get("phase") or ""))
    canary: Any = row.get("canary")
    if isinstance(canary, Mapping) and canary.get("verdict") not in {None, CanaryVerdict.PASS}:
        said.append(f"canary: {canary.get('detail') or canary['verdict']}")
    return "; ".join(dict.fromkeys(part for part in said if part))


def style_of(row: Row) -> str:
    """The colour of a replica's state."""
    return STYLES.get(str(row.get("state")), _DEFAULT_STYLE)


# --- the rest -------------------------------------------------------------------------------------


def _gateways(gateways: Sequence[Row]) -> Text:
    if not gateways:
        return Text("no gateway is connected", "red")
    text = Text("gateways: ")
    for place, one in enumerate(gateways):
        well = bool(one.get("ready"))
        why = "ready" if well else str(one.get("refusal") or one.get("reason") or "not ready")
        name = one.get("name") or one.get("id") or ""
        text.append(", " if place else "")
        text.append(f"{name} {why}", "green" if well else "yellow")
    return text


def _processes(processes: Sequence[Row]) -> list[Text]:
    """One line for each process of Holdfast that is late or stopped."""
    return [
        Text(
            f"{one.get('name', '')} (pid {one.get('pid', '–')}) has been {one['condition']} for "
            f"{duration(one.get('for_s') or 0.0)}",
            "red",
        )
        for one in processes
        if one.get("condition") not in {None, "turning", "starting"}
    ]


def _events(events: Sequence[Row]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for column in ("when", "who", "what", "why"):
        table.add_column(column, no_wrap=column != "why", overflow="fold")
    for one in events:
        who = str(one.get("replica") or one.get("model") or "")
        table.add_row(_clock(one.get("at")), who, str(one.get("what", "")), one.get("reason") or "")
    return table


def _clock(at: Any) -> str:
    if not isinstance(at, int | float):
        return ""
    return datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")


__all__ = ["EVENTS_SHOWN", "STYLES", "Row", "show_status", "style_of"]
