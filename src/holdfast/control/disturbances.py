"""What a game day does to control's own picture of a replica, each with an end.

    detour        gateways and canaries reach it through another address: a proxy that hurts
    silence       nothing of its log, its metrics and its tokens is heard
    skew          it is said to run on another CUDA version
    spot_notice   the platform is said to take it away
    probe_blind   its canaries fail, whatever it answers

One at a time for a replica, and each ends by itself: whoever asked for it may be gone by then. They
are told as events, so that a history shows which trouble was made on purpose.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from holdfast.core.types import nanos

SECONDS_MAX: Final = 3_700.0  # an hour, and what the one who asks adds for its own undoing
DISTURBED_MAX: Final = 256
DETOUR: Final = "detour"
SILENCE: Final = "silence"
SKEW: Final = "skew"
SPOT_NOTICE: Final = "spot_notice"
PROBE_BLIND: Final = "probe_blind"
KINDS: Final = (DETOUR, SILENCE, SKEW, SPOT_NOTICE, PROBE_BLIND)
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(slots=True, frozen=True)
class Disturbance:
    """One of them."""

    kind: str
    until: int  # core time
    url: str = ""  # of a detour


class Disturbances:
    """Which replicas are disturbed, how, and until when."""

    def __init__(self) -> None:
        self._by_replica: dict[str, Disturbance] = {}

    def begin(
        self, replica: str, kind: str, seconds: float, now: int, url: str = ""
    ) -> tuple[bool, str]:
        """Whether it was begun, and why (not)."""
        if kind not in KINDS:
            return False, f"kind is one of {', '.join(KINDS)}"
        if not 0 < seconds <= SECONDS_MAX:
            return False, f"seconds are above 0 and at most {SECONDS_MAX:g}"
        if kind == DETOUR and not _is_loopback(url):
            return False, "url is http://127.0.0.1:PORT: a detour leads through this machine only"
        if replica in self._by_replica:
            return False, f"{replica} is disturbed already: {self._by_replica[replica].kind}"
        if len(self._by_replica) >= DISTURBED_MAX:
            return False, f"{DISTURBED_MAX} replicas are disturbed already"
        self._by_replica[replica] = Disturbance(kind, now + nanos(seconds), url)
        return True, f"{replica}: {kind} for {seconds:g} s at most"

    def end(self, replica: str) -> Disturbance | None:
        """Take it back; ``None``: there was none."""
        return self._by_replica.pop(replica, None)

    def over(self, now: int) -> list[tuple[str, Disturbance]]:
        """Those whose time is up; they are forgotten."""
        done = [(name, one) for name, one in self._by_replica.items() if now >= one.until]
        for name, _ in done:
            del self._by_replica[name]
        return done

    def is_so(self, replica: str, kind: str) -> bool:
        """Whether a replica is disturbed in this way."""
        one = self._by_replica.get(replica)
        return one is not None and one.kind == kind

    def url_of(self, replica: str) -> str:
        """Where it is reached while it is detoured; empty: where it always is."""
        one = self._by_replica.get(replica)
        return one.url if one is not None else ""

    def detours(self) -> dict[str, str]:
        """All that lead elsewhere now."""
        return {name: one.url for name, one in self._by_replica.items() if one.kind == DETOUR}

    def snapshot(self) -> dict[str, str]:
        """For status: who is disturbed on purpose, and how."""
        return {name: one.kind for name, one in self._by_replica.items()}


def _is_loopback(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "http" and parts.hostname in _LOOPBACK and bool(parts.port)
    except ValueError:  # a port that is none
        return False


__all__ = [
    "DETOUR",
    "KINDS",
    "PROBE_BLIND",
    "SILENCE",
    "SKEW",
    "SPOT_NOTICE",
    "Disturbance",
    "Disturbances",
]
