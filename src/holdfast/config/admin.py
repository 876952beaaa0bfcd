"""Config of the admin port's connections: bounds and timeouts, each with its reason."""

from dataclasses import dataclass

from holdfast.core.types import require


@dataclass(slots=True, frozen=True)
class AdminConnectionConfig:
    """Bounds and timeouts of operators' connections."""

    connections_max: int = 2_000  # scrapers, agents and dashboards; those that stand still go first
    newcomers_max: int = 128  # without a whole request head; the oldest is closed for the next
    header_bytes_max: int = 65_536  # of an incomplete head; cookies and tokens need a twentieth
    header_s: float = 10.0  # from connecting, or a request's first byte, to the end of its headers
    body_stall_s: float = 10.0  # no byte of a body for so long: it will not come
    slow_reader_s: float = 60.0  # nothing of an answer was read for so long: it is let go
    handshake_s: float = 10.0  # a TLS handshake
    handshakes_max: int = 1_000  # unfinished at once, 75 KB each; beyond it, connections wait

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            require(value > 0, f"connections.{name}", f"is {value}", "use more than 0")


__all__ = ["AdminConnectionConfig"]
