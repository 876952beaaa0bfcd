"""The two lines at the top: the state of the fleet, and whether the data shown is current."""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core.view.snapshot import Snapshot
from holdfast.ui.terminal.top.colours import Tone
from holdfast.ui.terminal.top.figure_format import (
    clock,
    cut,
    latency,
    rate,
    wide,
    words_span,
)
from holdfast.ui.terminal.top.table import Span
from holdfast.ui.terminal.untrusted_text import clean


@dataclass(slots=True)
class Contact:
    """State of the connection to control."""

    where: str = ""
    live: bool = True  # what is shown will change
    away: str = ""  # why control does not answer; empty: it does
    away_s: float = 0.0


def fleet_line(
    snapshot: Snapshot | None, contact: Contact, width: int, aside_s: float = 0.0
) -> list[Span]:
    """The first line: whether control answers, what is wrong, and the traffic.

    ``aside_s``: seconds since the snapshot came. Control sends none while nothing changes, so the
    time of day goes on by itself.
    """
    if snapshot is None:
        told = contact.away or "asking control …"
        return fitted([(f" holdfast top  {contact.where}: {told}", Tone.PLAIN)], width)
    if contact.away:
        told = f" ✗ control away for {words_span(contact.away_s)}"
        why = f" · picture of {clock(snapshot.at)} · trying again ({contact.away})"
        return fitted([(told, Tone.BAD), (why, Tone.WARN)], width)
    spans: list[Span] = [(" ✓ live", Tone.GOOD)] if contact.live else []
    spans.append((f" {clock(snapshot.at + aside_s)}", Tone.PLAIN))
    number = len(snapshot.incidents)
    if number:
        spans.append((f" · ! {number} incident{'s' if number > 1 else ''}", Tone.BAD))
    elif any(row.error for row in snapshot.sources):
        spans.append((" · no incident known", Tone.WARN))  # of what could be read
    else:
        spans.append((" · ✓ no incident", Tone.GOOD))
    gateways, well = snapshot.totals.get("gateways"), snapshot.totals.get("gateways_ready")
    if isinstance(gateways, int) and isinstance(well, int) and well < gateways:
        spans.append((f" · ! {well}/{gateways} gateways", Tone.BAD))
    routed = [row for row in snapshot.replicas if row.routed]
    if routed:
        ready = sum(row.state == "ready" for row in routed)
        tone = Tone.PLAIN if ready == len(routed) else Tone.WARN
        spans.append((f" · {ready}/{len(routed)} ready", tone))
    if snapshot.unmet:
        missing = sum(row.missing for row in snapshot.unmet)
        spans.append((f" · ! {missing} unplaced", Tone.BAD))
    spans += _traffic(snapshot)
    return fitted(spans, width)


def _traffic(snapshot: Snapshot) -> list[Span]:
    totals, spans = snapshot.totals, []
    for name, unit in (("requests_s", "req/s"), ("tokens_s", "tok/s")):
        if isinstance(totals.get(name), int | float):
            spans.append((f" · {rate(totals[name])} {unit}", Tone.PLAIN))
    return spans


def source_line(
    snapshot: Snapshot | None, aside_s: float, width: int, *, away: bool = False
) -> list[Span]:
    """The second line: the first source that fails, else the age of the oldest part.

    ``aside_s``: seconds since the snapshot came.
    """
    if snapshot is None:
        return []
    effort = f"{snapshot.calls} calls in {latency(snapshot.took_s)}"
    parts = snapshot.sources
    if not parts:
        return fitted([(f" no source but the fleet itself · {effort}", Tone.MUTED)], width)
    failing = [row for row in parts if row.error or row.age_s is None]
    if not failing:
        oldest = max(parts, key=lambda row: row.age_s or 0.0)
        age = words_span((oldest.age_s or 0.0) + aside_s)
        names = ", ".join(dict.fromkeys(row.source for row in parts))
        told = f"sources {names}: all {len(parts)} parts read, the oldest {age} ago"
        said = (f"   {told}", Tone.WARN) if away else (f" ✓ {told}", Tone.GOOD)
        return fitted([said, (f" · {effort}", Tone.MUTED)], width)
    first = failing[0]
    told = f" ! {first.source} {first.part}: {first.error or 'not read yet'}"
    age = (
        f", {words_span(first.age_s + aside_s)} old" if first.age_s is not None else ", never read"
    )
    more = f" · {len(failing) - 1} more fail" if len(failing) > 1 else ""
    rest = f" · {len(parts) - len(failing)} of {len(parts)} parts well"
    spans = [(told + age, Tone.BAD), (more, Tone.BAD), (rest, Tone.MUTED)]
    return fitted([*spans, (f" · {effort}", Tone.MUTED)], width)


def fitted(spans: Sequence[Span], width: int) -> list[Span]:
    """As many spans as fit into the width; faults are cut, other spans are left out."""
    found: list[Span] = []
    left = width
    for text, tone in spans:
        shown = clean(text)
        if wide(shown) > left:
            if not found or (left > 12 and tone in {Tone.BAD, Tone.WARN}):
                found.append((cut(shown, left), tone))
                break
            continue
        found.append((shown, tone))
        left -= wide(shown)
    return found


__all__ = ["Contact", "fitted", "fleet_line", "source_line"]
