"""How slowly an upload may come, in all: a slow line has its time, a trickle does not hold a place.

An upload may be hundreds of megabytes, and an honest one takes as long as its line is slow. So the
time that it has grows with what has come of it: whoever sends nothing has the grace alone.

Rejected: one whole time for every upload. One that fits the largest on a slow line is hours, and a
client that sends a byte a minute holds its place for all of them.
"""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class UploadPace:
    """How long an upload may take, by the bytes that have come of it."""

    grace_s: float = 60.0  # as long as a whole body that is no upload may take
    bytes_per_s: float = 32_768.0  # a quarter of a megabit: 512 MB then take four and a half hours

    def left_s(self, received: int, elapsed_s: float) -> float:
        """Return the seconds until an upload is too slow if nothing more comes; 0 or less: now.

        ``elapsed_s``: since its beginning, without the time in which nobody read it.
        """
        return self.grace_s + received / self.bytes_per_s - elapsed_s


__all__ = ["UploadPace"]
