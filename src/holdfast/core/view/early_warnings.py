"""Warns of what fills up before it is an incident: filesystems, and GPU memory that requests fill.

    below 75 % of what is permitted ─ nothing ─► from 75 % on ─ early warning ─► full ─ incident

A warning is a row of the view for people, and a gauge. It accuses nobody and nothing is done about
it; what an incident already names is not warned of as well.

Rejected: a warning of a GPU on which an engine took its memory at the start. It would be there for
as long as the engine is.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from holdfast.core.view.snapshot import DiskRow, ReplicaRow, WarningRow

EARLY: Final = 0.75  # of what is permitted: at a steady climb a quarter of the time is left


def early_warnings(
    disks: Sequence[DiskRow], replicas: Sequence[ReplicaRow], grows: Mapping[str, bool]
) -> list[WarningRow]:
    """Return a ``WarningRow`` for each limit used to 75 % or more on a row without an incident.

    Limits are a disk's bandwidth and operations, and a replica's GPU memory; ``grows`` says by
    replica id whether that memory goes with its work, others are not warned of. Empty: nothing
    fills up. Keeps nothing.
    """
    found: list[WarningRow] = []
    for disk in disks:
        if not disk.incidents:
            found += _of_disk(disk)
    for row in replicas:
        share = row.gpu.memory_share if row.gpu is not None else None
        if share is not None and share >= EARLY and grows.get(row.id) and not row.incidents:
            text = f"{share:.0%} of the GPU memory it could have is in use"
            found.append(WarningRow("replica", row.id, share, text))
    return found


def _of_disk(disk: DiskRow) -> Iterable[WarningRow]:
    for share, what in ((disk.used_share, "bandwidth"), (disk.operations_share, "operations")):
        if share is not None and share >= EARLY:
            text = f"{what} at {share:.0%} of what is permitted"
            yield WarningRow("filesystem", disk.id, share, text)


__all__ = ["EARLY", "early_warnings"]
