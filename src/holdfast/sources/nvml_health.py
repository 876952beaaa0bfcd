"""Asks NVML for the health of one board: heat, slowdown, power limits and rows of bad memory.

A board that throttles says why by a set of bits. One of them is no trouble: a busy H200 draws
690 of 700 W and says that it is at its power limit for as long as it works.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from holdfast.core.gpu import HARDWARE, POWER_BRAKE, POWER_CAP, THERMAL

# Bits of NVML's clock event reasons. Idle, application clocks and sync boost are nobody's trouble.
_REASONS: Final = (
    (0x20 | 0x40, THERMAL),  # by the driver, and by the board itself
    (0x80, POWER_BRAKE),
    (0x4, POWER_CAP),
)
_HARDWARE: Final = 0x8  # set beside one of the board's own reasons; alone by older boards
_OF_HARDWARE: Final = 0x40 | 0x80
_MAX_OPERATING: Final = 3  # NVML_TEMPERATURE_THRESHOLD_GPU_MAX
_SLOWDOWN: Final = 1  # NVML_TEMPERATURE_THRESHOLD_SLOWDOWN

Ask = Callable[..., Any]


def read_health(ask: Ask) -> dict[str, Any]:
    """The members of ``Gpu`` that tell of a board's health; ``ask`` calls NVML about one board.

    ``ask`` returns None for what the board, the driver or the binding does not know.
    """
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons")
    if not isinstance(reasons, int):  # drivers and bindings of before 2023
        reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    rows = ask("nvmlDeviceGetRemappedRows")
    known = isinstance(rows, Sequence) and len(rows) >= 4
    hottest = _number(ask("nvmlDeviceGetTemperatureThreshold", _MAX_OPERATING))
    if hottest is None:
        hottest = _number(ask("nvmlDeviceGetTemperatureThreshold", _SLOWDOWN))
    limit = _number(ask("nvmlDeviceGetEnforcedPowerLimit"))
    default = _number(ask("nvmlDeviceGetPowerManagementDefaultLimit"))
    return {
        "temperature_max_c": hottest,
        "power_limit_w": limit / 1_000 if limit is not None else None,
        "power_default_w": default / 1_000 if default is not None else None,
        "remap_pending": bool(rows[2]) if known else None,
        "remap_failed": bool(rows[3]) if known else None,
        "throttle": throttle_reasons(reasons) if isinstance(reasons, int) else None,
    }


def throttle_reasons(reasons: int) -> tuple[str, ...]:
    """Why a GPU runs slower than it could, from NVML's bits; dcgm-exporters tell the same bits."""
    found = tuple(name for bits, name in _REASONS if reasons & bits)
    alone = reasons & _HARDWARE and not reasons & _OF_HARDWARE
    return (HARDWARE, *found) if alone else found


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


__all__ = ["read_health", "throttle_reasons"]
