"""Reads EFS filesystems: their throughput mode, and what their metrics mean in that mode.

Bursting and provisioned filesystems have a ceiling of *metered* bytes, in which reads count less
than writes; use is metered against permitted. Elastic ones have none that concerns reads: a
percentage there would be invented, so the ceiling is unknown.
"""

from dataclasses import dataclass
from typing import Any, Final

from holdfast.core.view.layers import Disk
from holdfast.sources.aws.calls import AwsCaller
from holdfast.sources.aws.metrics import MINUTE_S, Metrics

ELASTIC: Final = "elastic"


@dataclass(slots=True, frozen=True)
class FileSystem:
    """One EFS filesystem, without its load."""

    id: str
    mode: str
    size_bytes: int | None

    @property
    def limited(self) -> bool:
        """Whether the filesystem's throughput has a ceiling."""
        return self.mode != ELASTIC


def read_filesystems(caller: AwsCaller) -> dict[str, FileSystem]:
    """Read all filesystems of the region with one operation.

    All, not only the mounted ones: which are mounted may change before the next refresh.
    """
    told = caller.items("describe_file_systems", "FileSystems", PaginationConfig={"PageSize": 100})
    return {one["FileSystemId"]: _filesystem(one) for one in told}


def _filesystem(told: dict[str, Any]) -> FileSystem:
    size = told.get("SizeInBytes", {}).get("Value")
    return FileSystem(told["FileSystemId"], told.get("ThroughputMode", ""), size)


def disk_of(filesystem: FileSystem, metrics: Metrics) -> Disk:
    """Build the row of a filesystem from its metrics; a value without a metric is None."""

    def value(metric: str, divisor: float = 1.0) -> float | None:
        found = metrics.get((filesystem.id, metric))
        return None if found is None else found / divisor

    clients = value("ClientConnections")
    limited = filesystem.limited
    return Disk(
        id=filesystem.id,
        mode=filesystem.mode,
        read_bytes_s=value("DataReadIOBytes", MINUTE_S),
        metered_bytes_s=value("MeteredIOBytes", MINUTE_S),
        permitted_bytes_s=value("PermittedThroughput") if limited else None,
        operations_share=value("PercentIOLimit", 100.0),
        burst_credit_bytes=value("BurstCreditBalance") if limited else None,
        clients=None if clients is None else int(clients),
        size_bytes=filesystem.size_bytes,
    )


__all__ = ["ELASTIC", "FileSystem", "disk_of", "read_filesystems"]
