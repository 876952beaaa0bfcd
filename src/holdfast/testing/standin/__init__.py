"""A stand-in for an inference engine: deterministic answers, and faults on demand."""

from holdfast.testing.standin.faults import Ailment, FaultError, SocketKind, fault
from holdfast.testing.standin.options import Like, Options
from holdfast.testing.standin.server import StandIn
from holdfast.testing.standin.tasks import unit_vector
from holdfast.testing.standin.text import expected_text

__all__ = [
    "Ailment",
    "FaultError",
    "Like",
    "Options",
    "SocketKind",
    "StandIn",
    "expected_text",
    "fault",
    "unit_vector",
]
