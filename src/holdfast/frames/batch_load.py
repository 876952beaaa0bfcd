"""The datagram in which a gateway tells the batch process how busy each model is.

It goes straight from each gateway to the batch process, ten times a second, and not through
control: batch work has to give way within a moment, and with control gone, too. A datagram that is
lost is followed by the next; one that nobody reads costs the gateway one system call.
"""

from typing import Final

import msgspec

LOAD_SOCKET_FILE: Final = "batch-load.sock"  # in the run directory, as the two below
BATCH_SOCKET_FILE: Final = "batch.sock"
RUNNER_SECRET_FILE: Final = "batch.secret"  # noqa: S105 - a name of a file
MODELS_EACH: Final = 200  # rows of one datagram: about 20 KB, far below what the kernel takes


class LoadRow(msgspec.Struct, frozen=True, array_like=True):
    """One model at one gateway."""

    model: str
    waiting: int  # requests of people in its queue
    running: int  # attempts at replicas
    slots: int | None  # of routable replicas; None: no limit is known
    first_token_p95_s: float | None  # of streams
    ready: bool
    replicas: int = 0  # that are routable; 0: not said


class LoadDatagram(msgspec.Struct, frozen=True, array_like=True):
    """All models of one gateway, or a part of them where there are many."""

    gateway: str
    rows: list[LoadRow]


encode_load: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(LoadDatagram).decode


def decode_load(data: bytes) -> LoadDatagram | None:
    """Read a datagram; None for bytes that are none."""
    try:
        return _decode(data)
    except msgspec.DecodeError:
        return None


__all__ = [
    "BATCH_SOCKET_FILE",
    "LOAD_SOCKET_FILE",
    "MODELS_EACH",
    "RUNNER_SECRET_FILE",
    "LoadDatagram",
    "LoadRow",
    "decode_load",
    "encode_load",
]
