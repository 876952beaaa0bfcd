"""The sections of an incident's page, of a request's page, and of the help.

An incident's sections are in the order in which an engineer on call asks: what is it, what should I
do, what was done, how do we know, what followed from it, when was what.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.core.view.snapshot import IncidentRow
from holdfast.ui.terminal.top.colours import Tone
from holdfast.ui.terminal.top.figure_format import clock, latency, share, words_span
from holdfast.ui.terminal.top.table import FieldsSection, Section, TextSection

KEYS: Final = (
    ("1 … 7", "overview, hosts, replicas, models, queues, incidents, sources"),
    ("↑ ↓ PgUp PgDn Home End", "move; j and k too"),
    ("Enter", "look into the row"),
    ("Esc Backspace", "back to where you came from"),
    ("/", "filter: rows that hold all the words; Esc ends it"),
    ("!", "only rows with something wrong, and back"),
    (":", "a command; Tab completes it"),
    ("s S", "sort by the next column; the other way round"),
    ("l", "the log of the replica in this row"),
    ("i", "the incident of this row"),
    ("r", "ask control now"),
    ("t", "light or dark"),
    ("?", "this page"),
    ("q Ctrl-C", "leave"),
)
COMMANDS: Final = (
    ("groups hosts replicas models", "a view"),
    ("queues disks incidents sources", "a view"),
    ("incident ID", "one incident; 7 means inc-000007"),
    ("log REPLICA", "its log, live"),
    ("story REQUEST", "what happened to a request: the id is its x-request-id"),
    ("drain REPLICA", "send it nothing new; undrain takes it back"),
    ("restart REPLICA", "drain it and start it anew"),
    ("quit", "leave"),
)
SIGNS: Final = (
    ("!7", "incident inc-000007 concerns this row"),
    ("!", "something is wrong with it, and no incident tells of it"),
    ("3.5G/1G!", "more in use than there may be, or was set aside"),
    ("–", "unknown; it is not zero"),
    ("13G/62G", "groups and hosts: reserved and all. Replicas: in use and their limit"),
    ("1/3", "free and all (gpu), left and all (cpu), ready and wanted (models)"),
    ("3+1", "tasks that run and tasks that wait for a place"),
)


def incident(told: Mapping[str, Any], now: float) -> list[Section]:
    """The sections of one incident, from the answer of ``GET /incidents/ID``."""
    opened = told.get("opened_at")
    since = words_span(now - opened) if isinstance(opened, int | float) else "an unknown time"
    sure = told.get("confidence")
    head = f"   {_word(told.get('class'))} failure, {_word(told.get('stage'))}, for {since}"
    if isinstance(opened, int | float):
        head += f" (since {clock(opened)})"
    if isinstance(sure, int | float):
        head += f", {share(sure)} sure"
    others = ", ".join(_word(cause) for cause in told.get("other_causes") or ())
    lines = [(head, Tone.PLAIN)]
    if others:
        lines.append((f"   it could also be: {others}", Tone.MUTED))
    title = told.get("title") or f"{_word(told.get('cause'))} of {_who(told.get('about'))}"
    parts: list[Section] = [TextSection(f"{told.get('id', '')}  {title}", lines)]
    for name, key, tone in (
        ("WHAT TO DO", "fix", Tone.STRONG),
        ("WHAT WAS DONE", "action", Tone.PLAIN),
    ):
        if told.get(key):
            parts.append(TextSection(name, [(f"   {told[key]}", tone)]))
    for name, key in (("HOW WE KNOW", "evidence"), ("WHAT FOLLOWED FROM IT", "consequences")):
        if told.get(key):
            parts.append(TextSection(name, _evidence(told[key], now), indent=10))
    if told.get("timeline"):
        parts.append(TextSection("TIMELINE", _timeline(told["timeline"]), indent=10))
    return parts


def told_by_row(row: IncidentRow, now: float) -> dict[str, Any]:
    """An incident as far as a row of the snapshot has it, until control sent the rest."""
    return {
        "id": row.id,
        "title": row.title,
        "class": row.failure_class,
        "stage": row.stage,
        "opened_at": now - row.opened_s,
        "confidence": row.confidence,
        "fix": row.fix,
        "action": row.action,
        "consequences": [{"text": text} for text in row.consequences],
    }


def _evidence(pieces: Sequence[Mapping[str, Any]], now: float) -> list[tuple[str, Tone]]:
    """Each with where it comes from and how old it is."""
    lines = []
    for piece in pieces:
        at = piece.get("at")
        age = f"{words_span(now - at)} ago" if isinstance(at, int | float) else ""
        source = ", ".join(part for part in (str(piece.get("source") or ""), age) if part)
        text = piece.get("text") or _word(piece.get("sign"))
        who = _who(piece.get("about"))
        named = f"{who}: " if who and who not in str(text) else ""
        behind = f"  ({source})" if source else ""
        lines.append((f"   {clock(at) or '–':<8}  {named}{text}{behind}", Tone.PLAIN))
    return lines


def _timeline(entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, Tone]]:
    lines = []
    for entry in entries:
        what, text = _word(entry.get("what")), str(entry.get("text") or "")
        who = str(entry.get("about") or "")
        named = f"{who}: " if who and who not in text else ""
        tone = Tone.STRONG if what in {"cause", "action", "closed"} else Tone.PLAIN
        lines.append((f"   {clock(entry.get('at')) or '–':<8}  {what}: {named}{text}", tone))
    return lines


def _who(about: Any) -> str:
    if not isinstance(about, Mapping):
        return str(about or "")
    found = (about.get(key) for key in ("replica", "filesystem", "host", "model"))
    return str(next((one for one in found if one), ""))


def _word(name: Any) -> str:
    return str(name or "").replace("_", " ")


def request(told: Mapping[str, Any]) -> list[Section]:
    """The sections of one request, from the answer of ``GET /explain/ID``."""
    status = told.get("status")
    well = status == 200
    pairs = [
        (name.replace("_", " "), str(told[name]), Tone.PLAIN)
        for name in ("asked_for", "served_by", "tenant", "replica", "attempts", "code", "reason")
        if told.get(name) not in {"", None}
    ]
    outcome = f"{status} {'answered' if well else 'failed'}"
    pairs.insert(0, ("status", outcome, Tone.GOOD if well else Tone.BAD))
    steps = []
    for step in told.get("story") or ():
        at = step.get("at_s")
        after = latency(at) if isinstance(at, int | float) else ""
        what, detail = _word(step.get("what")), str(step.get("detail") or "")
        bad = what in {"failed", "refused", "timeout"}
        line = f"   {after:>7}  {what:<10} {detail}"
        steps.append((line, Tone.BAD if bad else Tone.PLAIN))
    return [
        FieldsSection(pairs, f"REQUEST {told.get('request_id', '')}"),
        TextSection("STORY", steps, indent=20),
    ]


def help_text() -> list[Section]:
    """The sections of the help: keys, commands and signs."""

    def listed(entries: Sequence[tuple[str, str]], width: int) -> list[tuple[str, Tone]]:
        return [(f"   {name:<{width}}  {text}", Tone.PLAIN) for name, text in entries]

    return [
        TextSection("KEYS", listed(KEYS, 22), indent=24),
        TextSection("COMMANDS, after ':'", listed(COMMANDS, 30), indent=32),
        TextSection("SIGNS", listed(SIGNS, 9), indent=11),
    ]


__all__ = ["COMMANDS", "KEYS", "SIGNS", "help_text", "incident", "request", "told_by_row"]
