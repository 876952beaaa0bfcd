"""Decides on which port of a pod the engine listens: by the pod's own word, else by the rule.

    the pod says (annotation, label) ─► else the rule's port ─► a number, or a name of its ports

A name is looked up among the ports that the pod declares, as a Service does it: pods of one model
may then listen on different ports. A name that a pod does not have is told with those that it has;
another port of the pod is never taken in its place, since that may be its metrics page.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.core.types import require

PORT_MAX: Final = 65_535
PORT_FIX: Final = "use a number from 1 to 65535, or the name of a container port, such as http"
_NAMED_MAX: Final = 8  # ports named in one text

_NAME: Final = re.compile(r"(?=.{1,15}$)(?=.*[a-z])[a-z0-9]+(?:-[a-z0-9]+)*")
_NUMBER: Final = re.compile(r"[0-9]{1,5}")


@dataclass(slots=True, frozen=True)
class PodPort:
    """The port number of a pod's engine, or None with the problem why none can be chosen."""

    number: int | None
    problem: str = ""


def checked_port(port: int | str) -> int | str:
    """Return a port of a rule: a number, or a name of at most 15 characters.

    A number written as text is returned as a number. Raises ``ConfigError`` if it is neither.
    """
    if isinstance(port, str) and _NUMBER.fullmatch(port):
        port = int(port)
    if isinstance(port, int):
        require(1 <= port <= PORT_MAX, "port", f"is {port}", PORT_FIX)
    else:
        require(bool(_NAME.fullmatch(port)), "port", f"is {port[:40]!r}", PORT_FIX)
    return port


def port_of(said: str, usual: int | str, ports: Sequence[tuple[str, int]]) -> PodPort:
    """Return the ``PodPort`` of a pod's engine: what the pod itself says, else what the rule says.

    ``said``: the pod's own word, empty if none; ``usual``: the rule's port. A name is looked up
    among ``ports``, the (name, number) pairs that the pod declares; if it is not there, ``number``
    is None and ``problem`` says why. Raises nothing.
    """
    if said:
        try:
            wanted = checked_port(said)
        except ValueError:
            return PodPort(None, f"it asks for the port {said[:40]!r}; {PORT_FIX}")
    else:
        wanted = usual
    if isinstance(wanted, int):
        return PodPort(wanted)
    number = next((number for name, number in ports if name == wanted), None)
    if number is not None:
        return PodPort(number)
    names = [name for name, _ in ports if name][:_NAMED_MAX]
    has = f"it has {', '.join(names)}" if names else "it names none"
    return PodPort(None, f"it has no port of the name {wanted!r} ({has}); name one of them")


__all__ = ["PORT_FIX", "PORT_MAX", "PodPort", "checked_port", "port_of"]
