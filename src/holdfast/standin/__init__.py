"""A stand-in for an inference engine: the same answers everywhere, and every fault on demand."""

from holdfast.standin.faults import Ailment, FaultError, SocketKind, fault
from holdfast.standin.options import Like, Options
from holdfast.standin.server import StandIn
from holdfast.standin.tasks import unit_vector
from holdfast.standin.text import expected_text

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
