"""Judges, inside a gateway, whether control has fallen silent.

    frames from control, own ticks ─► silent or not, since when ─► /readyz detail, counters, log

Control sends its view again every ``heartbeat_s`` even where nothing changed, so a gateway that has
heard nothing for several of these knows that control is gone, frozen or late. The gateway serves
on; it only says so. A gateway that was itself late has missed frames without control's fault, so
its own pauses do not count.
"""

from dataclasses import dataclass

from holdfast.core.types import nanos, require, seconds


@dataclass(slots=True, frozen=True)
class ControlSilenceConfig:
    """Settings: after how long without a frame from control a gateway calls it silent."""

    heartbeats: float = 2.5  # two missed in a row, and time for a third that is on its way
    silent_s: float = 5.0  # and at least so long, whatever the heartbeat is
    own_late_s: float = 1.0  # a pause of the gateway's own, after which it listens anew

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            fix = "use a number above 0, up to 3,600"
            require(0 < value <= 3_600, f"control_silence.{name}", f"is {value}", fix)


class ControlSilence:
    """Whether control is silent, as one gateway hears it; counts silences and their ns in all.

    It only measures; the gateway serves on.
    """

    __slots__ = ("_config", "_heard_at", "_limit", "_looked_at", "_silent", "silences", "total")

    def __init__(self, config: ControlSilenceConfig, now: int) -> None:
        self._config = config
        self._limit = nanos(config.silent_s)
        self._heard_at = self._looked_at = now
        self._silent = False
        self.silences = 0  # that began
        self.total = 0  # ns, from the moment each silence was noticed

    def expect(self, heartbeat_s: float) -> None:
        """Set how often control speaks; a silence is several times that."""
        self._limit = nanos(max(self._config.silent_s, self._config.heartbeats * heartbeat_s))

    def heard(self, now: int) -> None:
        """Note that something came from control: a silence ends with it."""
        self._heard_at = now
        self._silent = False

    def look(self, now: int) -> bool:
        """Return whether control is silent now, and count its silences.

        Call it several times a second. After a pause of the gateway's own it listens anew.
        """
        passed, self._looked_at = now - self._looked_at, now
        if passed > nanos(self._config.own_late_s) and not self._silent:
            self._heard_at = now
            return False
        if self._silent:
            self.total += passed
        elif now - self._heard_at >= self._limit:
            self._silent = True
            self.silences += 1
        return self._silent

    def silent_s(self, now: int) -> float | None:
        """Seconds since control was last heard, if it counts as silent; else None."""
        return seconds(now - self._heard_at) if self._silent else None


__all__ = ["ControlSilence", "ControlSilenceConfig"]
