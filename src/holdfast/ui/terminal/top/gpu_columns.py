"""Columns and facts of GPUs, of a replica and of a host alike.

A column that has nothing to show is left out of its table, so a fleet without a known GPU has none
of these. On the page of one replica or host it is said in words: no GPU, or unknown.
"""

from typing import Any, Final

from holdfast.core.gpu import POWER_CAP, GpuUse
from holdfast.ui.terminal.top.colours import Tone
from holdfast.ui.terminal.top.columns import fill_tone
from holdfast.ui.terminal.top.figure_format import UNKNOWN, of_total, share
from holdfast.ui.terminal.top.table import Column

NO_GPU: Final = "no GPU"
_HOT_C: Final = 85.0  # as the detector has it for boards that do not say where they are too hot


def memory_of(use: GpuUse | None) -> tuple[int | None, int | None]:
    """What a replica itself holds, or else what is used on its devices; and what there is."""
    if use is None:
        return None, None
    used = use.memory_used_bytes if use.held_bytes is None else use.held_bytes
    return used, use.memory_total_bytes


def _memory_tone(row: Any) -> Tone:
    return fill_tone(row.gpu.memory_share) if row.gpu is not None else Tone.PLAIN


def _heat_tone(row: Any) -> Tone:
    if row.gpu is None or row.gpu.temperature_c is None:
        return Tone.PLAIN
    return Tone.WARN if row.gpu.temperature_c >= _HOT_C else Tone.PLAIN


def _degrees(use: GpuUse | None) -> str:
    return UNKNOWN if use is None or use.temperature_c is None else f"{use.temperature_c:.0f}"


def _watts(use: GpuUse | None) -> str:
    return UNKNOWN if use is None or use.power_w is None else f"{use.power_w:.0f}"


def gpu_columns(first_rank: int) -> tuple[Column, ...]:
    """The columns of GPUs; ``first_rank`` is that of the memory, which is needed most."""
    return (
        Column(
            "gpu mem",
            lambda row: of_total(*memory_of(row.gpu)),
            rank=first_rank,
            tone=_memory_tone,
            wide=8,
            order=lambda row: memory_of(row.gpu)[0],
        ),
        Column(
            "gpu",
            lambda row: share(row.gpu.utilisation) if row.gpu is not None else UNKNOWN,
            rank=first_rank + 1,
            wide=4,
            order=lambda row: row.gpu.utilisation if row.gpu is not None else None,
        ),
        Column(
            "°C",
            lambda row: _degrees(row.gpu),
            rank=15,
            tone=_heat_tone,
            order=lambda row: row.gpu.temperature_c if row.gpu is not None else None,
        ),
        Column(
            "watt",
            lambda row: _watts(row.gpu),
            rank=17,
            order=lambda row: row.gpu.power_w if row.gpu is not None else None,
        ),
    )


def gpu_facts(use: GpuUse | None, gpus: int | None) -> tuple[tuple[str, str, Tone], ...]:
    """Names and values for the page of one replica or host; ``gpus`` is how many it has."""
    if use is None:
        return (
            ("gpus", NO_GPU if gpus == 0 else UNKNOWN if gpus is None else str(gpus), Tone.PLAIN),
        )
    slowed = [reason for reason in use.throttle or () if reason != POWER_CAP]
    ecc = "" if use.ecc_uncorrected is None else f"{use.ecc_uncorrected} uncorrected"
    return (
        ("gpus", str(use.count), Tone.PLAIN),
        ("gpu memory", of_total(*memory_of(use)), fill_tone(use.memory_share)),
        ("gpu busy", share(use.utilisation), Tone.PLAIN),
        ("gpu heat", f"{_degrees(use)} °C", Tone.PLAIN),
        ("gpu power", f"{_watts(use)} W", Tone.PLAIN),
        ("gpu ecc", ecc, Tone.BAD if use.ecc_uncorrected else Tone.PLAIN),
        ("gpu xid", "" if use.xid is None else str(use.xid), Tone.BAD),
        ("gpu slowed by", ", ".join(slowed), Tone.WARN),
    )


__all__ = ["NO_GPU", "gpu_columns", "gpu_facts", "memory_of"]
