"""Writes the report of a game day: a page of Markdown and a timeline as SVG.

The picture has a lane for each replica (its height is the share of traffic it gets, its colour its
state), the windows of the faults behind them, a lane of own requests with the harmed ones in red,
and a mark for each incident when it was opened. It is plain SVG, written here: a plotting library
for one picture would be the largest dependency of all.
"""

from collections.abc import Callable
from html import escape
from typing import Final

from holdfast.chaos.gameday import GameDayRecord, InjectedFault
from holdfast.chaos.target import begun_at

WIDTH: Final = 960
_LEFT: Final = 130
_RIGHT: Final = 20
_LANE: Final = 44
_TOP: Final = 40
_COLOURS: Final = {
    "ready": "#2f9e6e",
    "suspect": "#d9a21b",
    "quarantined": "#d1495b",
    "dead": "#8d2636",
    "draining": "#6c8ebf",
}
_OTHER: Final = "#9aa5b1"  # on its way
_KEY: Final = 26  # the height of the line that says what colours mean
_STRIP: Final = 4.0  # of a lane: its state is seen where it has no share, too
Place = Callable[[float], float]  # of a moment, on the picture
_STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#1d2733}.dim{fill:#66727f}"
    ".fault{fill:#d1495b;fill-opacity:.10}.edge{stroke:#d1495b;stroke-dasharray:3 3}"
    ".axis{stroke:#c4ccd4}.harm{fill:#d1495b}.well{fill:#2f9e6e}"
    "@media(prefers-color-scheme:dark){text{fill:#e6ebf0}.dim{fill:#9aa5b1}"
    ".axis{stroke:#46525e}}"
)


def picture(record: GameDayRecord) -> str:
    """The timeline of a game day as SVG."""
    names = sorted({name for look in record.looks for name in look.replicas})
    lanes = len(names) + 2
    height = _TOP + lanes * _LANE + 30 + _KEY
    length = max([record.plan.length_s, *(look.at_s for look in record.looks)]) or 1.0
    scale = (WIDTH - _LEFT - _RIGHT) / length

    def x(at_s: float) -> float:
        return round(_LEFT + max(0.0, at_s) * scale, 1)

    label = f"{escape(record.plan.name)}: states, requests and incidents over time"
    size = f'viewBox="0 0 {WIDTH} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">',
        f"<style>{_STYLE}</style>",
        f'<text x="10" y="20" font-weight="600">{escape(record.plan.name)}</text>',
    ]
    bottom = _TOP + lanes * _LANE
    parts += [_window(one, x(one.begun_s), x(one.ended_s), bottom) for one in record.struck]
    for place, name in enumerate(names):
        parts += _replica_lane(record, name, _TOP + place * _LANE, x)
    parts += _request_lane(record, _TOP + len(names) * _LANE, x)
    parts += _incident_lane(record, _TOP + (len(names) + 1) * _LANE, x)
    parts += _axis(length, bottom, x)
    parts += _key(record, bottom + 30 + _KEY // 2)
    return "\n".join([*parts, "</svg>", ""])


def _window(struck: InjectedFault, left: float, right: float, bottom: int) -> str:
    width = max(1.0, right - left)
    name = escape(f"{struck.fault} on {struck.replica}")
    return (
        f'<rect class="fault" x="{left}" y="{_TOP}" width="{width:.1f}" '
        f'height="{bottom - _TOP}"><title>{name}</title></rect>'
        f'<line class="edge" x1="{left}" x2="{left}" y1="{_TOP}" y2="{bottom}"/>'
        f'<text class="dim" x="{left + 3}" y="{_TOP - 4}">{escape(struck.fault)}</text>'
    )


def _replica_lane(record: GameDayRecord, name: str, top: int, x: Place) -> list[str]:
    base = top + _LANE - 6
    parts = [f'<text x="10" y="{base - 8}">{escape(name[:16])}</text>']
    looks = record.looks
    for this, following in zip(looks, [*looks[1:], looks[-1]], strict=True):
        state, share = this.replicas.get(name, ("gone", 0.0))
        height = max(_STRIP, share * (_LANE - 12))
        width = max(0.5, x(following.at_s) - x(this.at_s))
        colour = _COLOURS.get(state, _OTHER)
        parts.append(
            f'<rect x="{x(this.at_s)}" y="{base - height:.1f}" width="{width:.1f}" '
            f'height="{height:.1f}" fill="{colour}" shape-rendering="crispEdges"/>'
        )
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{base}" y2="{base}"/>')
    return parts


def _request_lane(record: GameDayRecord, top: int, x: Place) -> list[str]:
    middle = top + _LANE // 2
    parts = [f'<text x="10" y="{middle + 4}">requests</text>']
    for one in record.asked:
        kind, y = ("harm", middle + 6) if one.harm else ("well", middle - 6)
        told = f"<title>{escape(one.harm)}</title>" if one.harm else ""
        mark = f'<circle class="{kind}" cx="{x(one.at_s)}" cy="{y}" r="2.2">{told}</circle>'
        parts.append(mark)
    return parts


def _incident_lane(record: GameDayRecord, top: int, x: Place) -> list[str]:
    middle = top + _LANE // 2
    parts = [f'<text x="10" y="{middle + 4}">incidents</text>']
    for place, one in enumerate(record.incidents):
        at = x(begun_at(one) - record.began_at)
        y = middle - 8 + 14 * (place % 3)
        parts.append(f'<path class="harm" d="M{at} {y - 5}l5 8h-10z"/>')
        cause = escape(str(one["cause"]).replace("_", " "))
        parts.append(f'<text x="{at + 8}" y="{y + 3}">{cause}</text>')
    return parts


def _axis(length: float, bottom: int, x: Place) -> list[str]:
    step = next((s for s in (5, 10, 30, 60, 300, 600) if length / s <= 14), 3_600)
    marks = range(0, int(length) + 1, step)
    return [
        f'<text class="dim" x="{x(mark)}" y="{bottom + 18}" text-anchor="middle">{mark} s</text>'
        for mark in marks
    ]


def _key(record: GameDayRecord, y: int) -> list[str]:
    """What the colours of the lanes mean, of those states that were seen."""
    seen = {state for look in record.looks for state, _ in look.replicas.values()}
    told = [(name, colour) for name, colour in _COLOURS.items() if name in seen]
    told += [("on its way", _OTHER)] if seen - _COLOURS.keys() else []
    parts, at = [f'<text class="dim" x="{_LEFT}" y="{y + 4}">height: share of traffic</text>'], 320
    for name, colour in told:
        parts.append(f'<rect x="{at}" y="{y - 5}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text class="dim" x="{at + 15}" y="{y + 4}">{name}</text>')
        at += 110
    return parts


def markdown(record: GameDayRecord, picture_name: str) -> str:
    """The report of a game day as Markdown."""
    plan, asked = record.plan, record.asked
    lines = [f"# {plan.name}", "", f"![timeline]({picture_name})", ""]
    verdict = "held" if record.held else "did not hold"
    share, most = f"{record.harmed_share:.2%}", f"{plan.harmed_max:.2%}"
    lines.append(f"The fleet **{verdict}**: {share} of {len(asked)} requests harmed, bound {most}.")
    for harm, count in record.harmed.most_common():
        lines.append(f"- {count} × {harm}")
    lines += [
        "",
        "| fault | replica | from | to | first incident about it |",
        "|---|---|---|---|---|",
    ]
    for one in sorted(record.struck, key=lambda each: each.begun_s):
        told = one.problem or _detection(record, one)
        row = (one.fault, one.replica, f"{one.begun_s:.1f} s", f"{one.ended_s:.1f} s", told)
        lines.append(f"| {' | '.join(row)} |")
    if record.incidents:
        lines += ["", "| incident | class | cause | who | what was done |", "|---|---|---|---|---|"]
        for found in record.incidents:
            who = ", ".join(found["replicas"]) or found["about"].get("model", "")
            row = (found["id"], found["class"], found["cause"], who, found.get("action") or "–")
            lines.append(f"| {' | '.join(str(cell).replace('|', '/') for cell in row)} |")
    return "\n".join([*lines, ""])


def _detection(record: GameDayRecord, struck: InjectedFault) -> str:
    """The first incident about this replica after the fault began."""
    for one in sorted(record.incidents, key=begun_at):
        after = begun_at(one) - record.began_at - struck.begun_s
        if struck.replica in one["replicas"] and after >= -1.0:
            return f"{one['id']} {one['cause']} after {max(0.0, after):.1f} s"
    return "none"


__all__ = ["markdown", "picture"]
