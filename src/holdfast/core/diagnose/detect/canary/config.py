"""Settings of what canaries bring back: how many of a kind are a sign."""

from dataclasses import dataclass

from holdfast.core.types import require


@dataclass(slots=True, frozen=True)
class ProbingConfig:
    """Settings of ``ProbingDetector``: how many failed or slow canaries in a row are a sign.

    Checked when built: raises ``ConfigError``.
    """

    silent_row: int = 2  # one may have met a pause; two are ten seconds of silence
    errors_row: int = 2  # one error is chance
    refused_row: int = 2  # one meets every restart
    slow_row: int = 3  # noise doubles a latency now and then, not three times in a row
    steady_row: int = 2  # late all along, while a peer was in good time: noise comes in bursts
    slow_sum: float = 2.0  # of doublings beyond a neighbour's; one canary counts for 0.7 at most
    slow_s: float = 1_200.0  # less slow than that, for so long: a neighbour has left by then
    doubt_s: float = 3.0  # until a doubt about all is told: whether users fail is known by then
    fresh_s: float = 60.0  # how long a peer's slowness counts: a fleet is slow together or not

    def __post_init__(self) -> None:
        for name in ("silent_row", "errors_row", "refused_row", "slow_row", "steady_row"):
            value = getattr(self, name)
            require(1 <= value <= 100, f"probing.{name}", f"is {value}", "use 1 to 100 canaries")
        for name in ("doubt_s", "fresh_s", "slow_s"):
            value = getattr(self, name)
            fits = 0 < value <= 3_600
            require(fits, f"probing.{name}", f"is {value}", "use seconds above 0, up to an hour")
        least = self.slow_sum
        require(0 < least <= 100, "probing.slow_sum", f"is {least}", "use doublings above 0")


__all__ = ["ProbingConfig"]
