"""Tells how old each kind of row of a reading is, and which errors its source has.

A source queries its platform for several things, and each kind of row needs some of them: a queue
one, a replica three. When one query fails its rows keep their values; this adds the source they
came from, how old they are and why they are not newer. Facts for detectors are made of fresh rows
only: a queue depth repeated because the query failed is not a queue that stands still.

Parts may name the rows they feed; else their names decide, since platforms have few words for them.
Rejected: one age for a whole reading. The oldest part would make everything else look old as well.
"""

import re
from typing import Final

from holdfast.core.view.layers import Part, Reading

GROUPS: Final = "groups"
HOSTS: Final = "hosts"
PLACED: Final = "placed"
QUEUES: Final = "queues"
DISKS: Final = "disks"
WISHES: Final = "wishes"
MEMORY: Final = "memory"  # what replicas really use
LOGS: Final = "logs"  # what replicas say, and when
POOLS: Final = "pools"  # which pods belong together

_WORD: Final = re.compile(r"[a-z0-9]+")
_ALL: Final = (GROUPS, HOSTS, PLACED, POOLS, QUEUES, DISKS, WISHES, MEMORY, LOGS)
_BY_WORD: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("all", "report", "credentials"), _ALL),
    **dict.fromkeys(("autoscaling", "asg", "groups", "nodegroups"), (GROUPS,)),
    **dict.fromkeys(("ec2", "instances", "host", "hosts", "gpus", "nvml", "pressure"), (HOSTS,)),
    **dict.fromkeys(("node", "nodes"), (GROUPS, HOSTS)),
    "ecs": (HOSTS, PLACED, WISHES),
    **dict.fromkeys(("tasks", "pods", "processes", "replicas", "taskdefinitions"), (PLACED,)),
    **dict.fromkeys(("services", "deployments", "events"), (WISHES,)),
    **dict.fromkeys(("sqs", "queues"), (QUEUES,)),
    **dict.fromkeys(("efs", "disks", "filesystems", "mounts"), (DISKS,)),
    **dict.fromkeys(("cloudwatch", "metrics"), (DISKS, MEMORY)),
    **dict.fromkeys(("insights", "memory", "cgroups"), (MEMORY,)),
    "dcgm": (HOSTS, MEMORY),
    "logs": (LOGS,),
    "pools": (POOLS,),
}


def feeds(part: Part) -> tuple[str, ...]:
    """Return the kinds of rows (hosts, queues …) that a part feeds: as it says, else by its name.

    Of several words in its name the one with fewest kinds counts; empty: no word is known.
    """
    if part.feeds:
        return part.feeds
    found = [_BY_WORD[word] for word in _WORD.findall(part.name.lower()) if word in _BY_WORD]
    return min(found, key=len, default=())


class Freshness:
    """When each kind of row of one reading was last read successfully, and its errors since.

    Computed once from the reading; a kind that no part feeds is as old as the reading itself.
    """

    __slots__ = ("_ages", "_errors", "_reading")

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._ages: dict[str, float | None] = {}
        self._errors: dict[str, list[str]] = {}
        for part in reading.parts:
            for kind in feeds(part):
                before = self._ages.get(kind, part.at)
                both = None if before is None or part.at is None else min(before, part.at)
                self._ages[kind] = both
                if part.error:
                    self._errors.setdefault(kind, []).append(f"{part.name}: {part.error}")

    def read_at(self, *kinds: str) -> float | None:
        """Return when the oldest of these kinds of rows was last read, seconds since 1970.

        None: one of them was never read successfully.
        """
        ages = [self._ages.get(kind, self._reading.at) for kind in kinds]
        known = [age for age in ages if age is not None]
        return min(known) if len(known) == len(ages) else None

    def errors(self, *kinds: str) -> tuple[str, ...]:
        """Return the error texts of the parts that feed these kinds, each once; empty: none."""
        return tuple(dict.fromkeys(one for kind in kinds for one in self._errors.get(kind, ())))

    def fresh(self, kind: str) -> bool:
        """Return whether rows of this kind were read for this reading, not kept from an earlier."""
        return kind not in self._errors and self._ages.get(kind, self._reading.at) is not None


__all__ = [
    "DISKS",
    "GROUPS",
    "HOSTS",
    "LOGS",
    "MEMORY",
    "PLACED",
    "POOLS",
    "QUEUES",
    "WISHES",
    "Freshness",
    "feeds",
]
