"""What differs between two pictures of the fleet, for whoever keeps the first.

Rows are compared by their place. One that is another replica than before differs in every field
and comes out right all the same; a table that is longer or shorter than before is sent whole. So
nobody has to know what makes a row the same row.
"""

from dataclasses import fields
from typing import Any, Final

from holdfast.core.view.snapshot import Snapshot

_HEAD: Final = ("at", "version", "calls", "took_s", "totals", "notes")
_TABLES: Final = tuple(one.name for one in fields(Snapshot) if one.name not in _HEAD)


def changes(before: Snapshot, after: Snapshot) -> dict[str, Any]:
    """``head``: all of it; ``rows``: by table and place, the fields that differ; ``whole`` tables.

    ``since`` is the version that must be there for the rest to make sense.
    """
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    whole: dict[str, Any] = {}
    for table in _TABLES:
        old, new = getattr(before, table), getattr(after, table)
        if len(old) != len(new):
            whole[table] = new
        elif differing := _rows(old, new):
            rows[table] = differing
    head = {name: getattr(after, name) for name in _HEAD}
    return {"since": before.version, "head": head, "rows": rows, "whole": whole}


def _rows(old: tuple[Any, ...], new: tuple[Any, ...]) -> dict[str, dict[str, Any]]:
    """Of two tables of one length."""
    names = [one.name for one in fields(new[0])] if new else []
    found: dict[str, dict[str, Any]] = {}
    for place, (was, now) in enumerate(zip(old, new, strict=True)):
        if was is now:
            continue
        differing = {
            name: value for name in names if (value := getattr(now, name)) != getattr(was, name)
        }
        if differing:
            found[str(place)] = differing
    return found


__all__ = ["changes"]
