"""Sockets to listen at, and the way to the stage that stands beside these tests."""

import sys
from pathlib import Path

import pytest

from holdfast.wire.sockets import open_listeners

HERE = str(Path(__file__).resolve().parent)
if HERE not in sys.path:
    sys.path.append(HERE)

from wire_stage import LOOPBACK  # noqa: E402 found by the path above


@pytest.fixture
def listeners():
    """Sockets that are closed whatever happens."""
    opened = []

    def make(address=LOOPBACK, number=1, *, takeover=False):
        sockets = open_listeners(address, number, takeover=takeover)
        opened.extend(sockets)
        return sockets

    yield make
    for sock in opened:
        sock.close()
