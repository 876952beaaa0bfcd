"""One seeded random stream per (entity, purpose), so that a new draw does not shift other draws.

Two variants of a scenario see the same arrivals, lengths and faults (common random numbers), and a
run is a function of its seed alone: on every supported Python version, in every process.
"""

from collections.abc import Callable
from hashlib import blake2b
from random import Random


def stream(seed: int, entity: str, purpose: str) -> Random:
    """The random generator for one purpose of one entity under this seed."""
    name = f"{seed}\x1f{entity}\x1f{purpose}".encode()
    return Random(int.from_bytes(blake2b(name, digest_size=16).digest(), "big"))


def streams_of(seed: int, entity: str) -> Callable[[str], Random]:
    """A function that returns an entity's generator by purpose, as ``Flow`` and ``Fleet`` need."""

    def named(purpose: str) -> Random:
        return stream(seed, entity, purpose)

    return named


__all__ = ["stream", "streams_of"]
