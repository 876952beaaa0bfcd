"""The roles of callers of the admin port, and which role each path needs.

    read     all questions: states, events, incidents, logs, figures
    operate  orders: drain, undrain, restart, scale, reload, close an incident, report facts
    chaos    faults on purpose: disturb

Whoever may give orders may read as well. ``chaos`` is apart from ``operate`` because a fault on
purpose can lead users' prompts to another process: who drains replicas at night needs no such
power. Both may end a disturbance.

Rejected: one right for each path. Nobody would keep such a table up to date, and three words fit
into a fleet file that is reviewed.
"""

from enum import StrEnum
from typing import Final


class Role(StrEnum):
    """What a caller of the admin port may do; ``operate`` and ``chaos`` include reading."""

    READ = "read"
    OPERATE = "operate"
    CHAOS = "chaos"


ALL_ROLES: Final = frozenset(Role)
OPEN: Final = "/livez"  # a supervisor that only wants to know whether control lives has no token
READY: Final = "/readyz"  # nor has a load balancer; it tells ready or not, and why
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
UI: Final = "/ui"  # pages, scripts and signing in
UI_LINK: Final = "/ui/link"
UI_SESSION: Final = "/ui/session"

_READ: Final = frozenset({Role.READ})
_OPERATE: Final = frozenset({Role.OPERATE})
_CHAOS: Final = frozenset({Role.CHAOS})
_EITHER: Final = frozenset({Role.OPERATE, Role.CHAOS})
_HARMLESS: Final = ("/whatif", UI_SESSION)  # a simulation; and whoever signed in may sign out
_NOBODY: Final[frozenset[Role]] = frozenset()


def roles_for(method: str, path: str) -> frozenset[Role]:
    """The roles that permit this request, any one of them; empty: it needs no role."""
    if is_open(method, path):
        return _NOBODY
    if method in READING or path in _HARMLESS:
        return _READ
    if path.startswith("/replicas/"):
        if path.endswith("/disturb"):
            return _CHAOS
        if path.endswith("/undisturb"):
            return _EITHER
    return _EITHER if path == UI_LINK else _OPERATE


def is_open(method: str, path: str) -> bool:
    """Whether a request needs no role: signs of life, the dashboard's files, signing in."""
    if path == UI_SESSION and method == "POST":
        return True
    if method not in READING:
        return False
    probe = path in (OPEN, READY) or path.startswith(f"{READY}/")
    return probe or path in ("/", UI) or path.startswith(f"{UI}/")


__all__ = [
    "ALL_ROLES",
    "OPEN",
    "READING",
    "READY",
    "UI",
    "UI_LINK",
    "UI_SESSION",
    "Role",
    "is_open",
    "roles_for",
]
