"""Parses the commands that can be typed after ``:``."""

from dataclasses import dataclass
from typing import Final

from holdfast.core.view.snapshot import Snapshot
from holdfast.ui.terminal.top.views import MORE_VIEWS, VIEWS

ORDERS: Final = ("drain", "undrain", "restart")
_NAMED: Final = ("log", "story", "incident", *ORDERS)
_QUIT: Final = ("quit", "q", "exit")


@dataclass(slots=True, frozen=True)
class Command:
    """A parsed command."""

    word: str  # view, log, story, incident, drain, undrain, restart, help, quit
    about: str = ""


class CommandError(Exception):
    """A command cannot be executed; the text says which ones can."""


def parse(text: str, snapshot: Snapshot | None, chosen: str = "") -> Command:
    """Parse a command. ``chosen``: the replica under the cursor, used where none is named."""
    word, _, about = text.strip().lstrip(":").partition(" ")
    word, about = word.lower(), about.strip()
    if word in _QUIT:
        return Command("quit")
    if word in {"help", "?"}:
        return Command("help")
    if word in {*VIEWS, *MORE_VIEWS}:
        return Command("view", word)
    if word not in _NAMED:
        known = ", ".join((*VIEWS, *MORE_VIEWS, *_NAMED, "quit"))
        raise CommandError(f"no command {word!r}; there are {known}" if word else "nothing typed")
    if word in {"log", *ORDERS}:
        return Command(word, _replica(word, about or chosen, snapshot))
    if not about:
        what = "an incident: 'incident 7'" if word == "incident" else "a request: 'story req_…'"
        raise CommandError(f"{word} needs the id of {what}")
    return Command(word, _incident(about) if word == "incident" else about)


def _replica(word: str, name: str, snapshot: Snapshot | None) -> str:
    if not name:
        raise CommandError(f"{word} needs a replica: '{word} ID', or choose its row first")
    known = [row.id for row in snapshot.replicas] if snapshot is not None else []
    if name in known or not known:
        return name
    near = [one for one in known if name in one] or known
    shown = ", ".join(near[:6]) + (" …" if len(near) > 6 else "")
    raise CommandError(f"no replica {name!r}; there are {shown}")


def _incident(name: str) -> str:
    return f"inc-{int(name):06d}" if name.isascii() and name.isdecimal() else name


def suggestions(snapshot: Snapshot | None) -> list[str]:
    """All commands that can be completed for this snapshot, shorter ones first."""
    words = [*VIEWS, *MORE_VIEWS, "help", "quit"]
    if snapshot is not None:
        words += [f"incident {row.id}" for row in snapshot.incidents]
        names = [row.id for row in snapshot.replicas]
        words += [f"{word} {name}" for word in ("log", *ORDERS) for name in names]
    return words


__all__ = ["ORDERS", "Command", "CommandError", "parse", "suggestions"]
