"""How many client connections a limit on open files carries, and what to do where it is too low.

Every client's request takes two descriptors: the client's connection and the one to a replica. The
rest of a process (event loop, pipes, log, the link to control) takes a few dozen at most.
"""

import errno
from enum import StrEnum
from typing import Final

RESERVE: Final = 24  # what a process has open besides connections, with room for a name lookup
CARRIED_MIN: Final = 8  # fewer connections at once serve nobody
ENOUGH: Final = 0.95  # of the connections that are allowed: nobody raises a limit for the rest


class OwnResource(StrEnum):
    """What a Holdfast process itself may run out of: open files, kernel memory, local ports."""

    DESCRIPTORS = "descriptors"  # open files, of the process or of the machine
    MEMORY = "memory"  # the kernel's, for sockets
    PORTS = "ports"  # local ones, for connections to replicas


_OWN_ERRORS: Final = {
    errno.EMFILE: OwnResource.DESCRIPTORS,
    errno.ENFILE: OwnResource.DESCRIPTORS,
    errno.ENOBUFS: OwnResource.MEMORY,
    errno.ENOMEM: OwnResource.MEMORY,
    errno.EADDRNOTAVAIL: OwnResource.PORTS,
}


def own_shortage(number: int | None) -> OwnResource | None:
    """Return what this process lacks, from the ``errno`` of a failed accept or connect.

    None: the error is not this process's own, but its peer's or the network's.
    """
    return _OWN_ERRORS.get(number or 0)


def is_scarce(limit: int, connections: int) -> bool:
    """Return whether a limit of open files is too low for so many client connections.

    It is where it is enough for fewer than 95 % of them.
    """
    return connections_carried(limit) < ENOUGH * connections


def connections_carried(limit: int) -> int:
    """Return how many client connections an open-file limit carries: two files each."""
    return max(0, (limit - RESERVE) // 2)


def descriptors_needed(connections: int) -> int:
    """Return the open-file limit for so many client connections: two each and a reserve."""
    return 2 * connections + RESERVE


__all__ = [
    "CARRIED_MIN",
    "ENOUGH",
    "RESERVE",
    "OwnResource",
    "connections_carried",
    "descriptors_needed",
    "is_scarce",
    "own_shortage",
]
