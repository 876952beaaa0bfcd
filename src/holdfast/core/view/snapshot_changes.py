"""Computes the difference between two snapshots, for a client that has the first.

Rows are compared by their position. A row that holds another replica than before differs in every
field and still comes out right; a table of another length is sent whole. So no rule is needed for
what makes a row the same row.
"""

from dataclasses import fields
from typing import Any, Final

from holdfast.core.view.snapshot import Snapshot

_HEAD: Final = ("at", "version", "calls", "took_s", "totals", "notes")
_TABLES: Final = tuple(one.name for one in fields(Snapshot) if one.name not in _HEAD)


def changes(before: Snapshot, after: Snapshot) -> dict[str, Any]:
    """Return a dict of what a client must change to get from one snapshot to the next.

    ``head`` holds all fields that are not tables; ``rows`` the changed fields, by table and
    position; ``whole`` the tables of another length. ``since`` is the version that the client must
    have. Rows are compared by position.
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
