"""State diagrams and their tables, from the transition tables of the core."""

# ruff: noqa: INP001 - beside the script that uses it, not in a package

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from config_keys import table

from holdfast.core.health import health, lifecycle

Transitions = Mapping[Any, StrEnum]  # by (state, signal)


def machine(transitions: Transitions, first: StrEnum, *, everywhere: bool = False) -> str:
    """A diagram of a table and the table itself; ``everywhere`` leaves out what all states do."""
    left_out = _from_everywhere(transitions) if everywhere else {}
    edges: dict[tuple[StrEnum, StrEnum], list[str]] = {}
    loops: dict[StrEnum, list[str]] = {}
    for (before, signal), after in transitions.items():
        if before is after:
            loops.setdefault(before, []).append(signal.value)
        elif signal not in left_out:
            edges.setdefault((before, after), []).append(signal.value)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first.value}"]
    lines += [f"    {a.value} --> {b.value}: {', '.join(s)}" for (a, b), s in edges.items()]
    lines += [f"    {end.value} --> [*]" for end in type(first) if _is_final(end, transitions)]
    lines.append("```")
    rows = [*_rows(edges), *((who, f"`{s.value}`", to) for s, (who, to) in left_out.items())]
    told = ["\n".join(lines), table(("from", "on", "to"), rows)]
    if left_out:
        told.append(f"The diagram leaves out {_code(s.value for s in left_out)}: see the table.")
    if loops and not everywhere:
        stays = "; ".join(f"{state.value} on {_code(s)}" for state, s in loops.items())
        told.append(f"Stays where it is: {stays}.")
    return "\n\n".join(told)


def _rows(edges: Mapping[tuple[StrEnum, StrEnum], list[str]]) -> list[tuple[str, str, str]]:
    """The edges as rows: signals that lead from the same states to the same one share theirs."""
    sources: dict[tuple[str, StrEnum], list[str]] = {}
    for (before, after), signals in edges.items():
        for signal in signals:
            sources.setdefault((signal, after), []).append(before.value)
    merged: dict[tuple[str, str], list[str]] = {}
    for (signal, after), states in sources.items():
        merged.setdefault((", ".join(states), after.value), []).append(signal)
    return [(states, _code(signals), after) for (states, after), signals in merged.items()]


def _code(signals: Iterable[str]) -> str:
    return ", ".join(f"`{signal}`" for signal in signals)


def _is_final(state: StrEnum, transitions: Transitions) -> bool:
    return all(before is not state for before, _ in transitions)


def _from_everywhere(transitions: Transitions) -> dict[StrEnum, tuple[str, str]]:
    """Signals that lead from most states to one and the same: who heeds them, and where to."""
    states = list(type(next(iter(transitions.values()))))
    sources: dict[tuple[StrEnum, StrEnum], list[StrEnum]] = {}
    for (before, signal), after in transitions.items():
        if before is not after:
            sources.setdefault((signal, after), []).append(before)
    found: dict[StrEnum, tuple[str, str]] = {}
    for (signal, after), heeding in sources.items():
        others = [s.value for s in states if s not in heeding and s is not after]
        if len(heeding) > len(states) / 2:
            *most, last = others or [""]
            but = f" but {' and '.join([', '.join(most), last] if most else [last])}"
            but = but if others else ""
            found[signal] = (f"every state{but}", after.value)
    return found


def verdicts_table() -> str:
    """What repeated evidence amounts to."""
    config = health.HealthConfig()
    rows = []
    for signal, (states, _, limit, verdict) in lifecycle.REPEATED.items():
        where = ", ".join(state.value for state in states)
        count = f"{getattr(config, limit)} (`{limit}`)"
        rows.append((f"`{signal.value}`", where, count, f"`{verdict.value}`"))
    return table(("signal", "while", "in a row", "verdict"), rows)
