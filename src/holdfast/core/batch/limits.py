"""The bounds of files and batches: of one, and of one tenant."""

from dataclasses import dataclass
from typing import Final

from holdfast.core.types import require

DAY_S: Final = 86_400.0


@dataclass(slots=True, frozen=True)
class BatchLimits:
    """Settings: bounds of one file, one batch and one tenant, and how long they run and are kept.

    Sizes in bytes, times in seconds. Raises ``ConfigError`` when built with a bad value.
    """

    file_bytes_max: int = 200 << 20  # of one file; OpenAI's own bound for batches
    lines_max: int = 50_000  # of one batch, empty ones included; OpenAI's own bound, too
    check_s: float = 60.0  # that the check of one file may take; 200 MB take two or three
    models_max: int = 16  # different models in one batch; each has a queue of its own
    tenant_bytes_max: int = 20 << 30  # files and results of one tenant; a hundred full uploads
    tenant_files_max: int = 10_000  # files of one tenant; listing them stays quick
    tenant_batches_max: int = 50  # batches of one tenant that have not ended
    tenant_batches_per_minute: int = 60  # that one tenant may create; each is a file to check
    disk_free_min: int = 1 << 30  # bytes that stay free: below, uploads are refused and items wait
    window_s: float = DAY_S  # for a batch to end; OpenAI offers "24h" alone
    keep_s: float = 30 * DAY_S  # ended batches, and files that name no end; as OpenAI does

    def __post_init__(self) -> None:
        for name in (
            *("file_bytes_max", "lines_max", "check_s", "models_max", "tenant_bytes_max"),
            *("tenant_files_max", "tenant_batches_max", "tenant_batches_per_minute"),
            *("window_s", "keep_s"),
        ):
            value = getattr(self, name)
            require(value > 0, f"batch.limits.{name}", f"is {value}", "use more than 0")
        free = self.disk_free_min
        require(free >= 0, "batch.limits.disk_free_min", f"is {free}", "use 0 bytes or more")
        fits = self.file_bytes_max <= self.tenant_bytes_max
        fix = f"use at most batch.limits.tenant_bytes_max, {self.tenant_bytes_max}"
        require(fits, "batch.limits.file_bytes_max", f"is {self.file_bytes_max}", fix)


__all__ = ["DAY_S", "BatchLimits"]
