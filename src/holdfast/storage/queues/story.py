"""The story of an item: what became of its failed receives, kept small.

A dead letter is read by a person, who asks "what happened to it": so each failed receive leaves one
entry, with the holder's own note (such as the replica that was lost). The first entries matter most
(that is when it began) and so do the last ones; what lies between is left out.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from holdfast.queue_port import NOTE_BYTES_MAX, STORY_ENTRIES_MAX

Story = tuple[Mapping[str, Any], ...]

NACKED = "nacked"
RAN_OUT = "lease ran out"
RECLAIMED = "owner ended"


def note_text(note: Mapping[str, Any] | None) -> str:
    """A note as JSON of bounded size; a longer one is kept as cut text, never refused.

    Losing the whole nack to a long note would lose what the note is about.
    """
    if not note:
        return "{}"
    text = orjson.dumps(note, default=str, option=orjson.OPT_NON_STR_KEYS)
    if len(text) <= NOTE_BYTES_MAX:
        return text.decode()
    cut = text[: NOTE_BYTES_MAX // 2].decode("utf-8", "ignore")
    return orjson.dumps({"cut": cut}).decode()


def entry(what: str, receive: int, owner: str, at: float, note: str = "{}") -> Mapping[str, Any]:
    """What became of one receive."""
    told: dict[str, Any] = {"what": what, "receive": receive, "at": round(at, 3)}
    if owner:
        told["owner"] = owner
    if note != "{}":
        told["note"] = orjson.loads(note)
    return told


def continued(story: str, happened: Mapping[str, Any]) -> str:
    """A stored story with one more entry: the first one and the last few are kept."""
    entries = [*orjson.loads(story), happened]
    if len(entries) > STORY_ENTRIES_MAX:
        entries = [entries[0], *entries[len(entries) - STORY_ENTRIES_MAX + 1 :]]
    return orjson.dumps(entries).decode()


def read(story: str) -> Story:
    """A stored story as values."""
    return tuple(orjson.loads(story))


def dumped(entries: Story) -> str:
    """A story as it is stored."""
    return orjson.dumps(entries).decode()


def dumped_texts(texts: Sequence[str]) -> str:
    """Texts as one JSON list, for statements that take many of them as one value."""
    return orjson.dumps(list(texts)).decode()


__all__ = [
    "NACKED",
    "RAN_OUT",
    "RECLAIMED",
    "Story",
    "continued",
    "dumped",
    "dumped_texts",
    "entry",
    "note_text",
    "read",
]
