"""Tells the batch process, ten times a second, how many people wait and how many slots are free."""

import contextlib
import socket
from collections.abc import Iterable

from holdfast.core.request.candidate import UNLIMITED
from holdfast.core.request.flow import Flow
from holdfast.core.request.lane import Lane
from holdfast.core.types import seconds
from holdfast.frames.batch_load import MODELS_EACH, LoadDatagram, LoadRow, encode_load


class BatchLoads:
    """Sends the load of every model from a gateway to the batch process, as datagrams.

    Never waits and never raises; what cannot be sent is dropped.
    """

    def __init__(self, gateway_id: str, path: str) -> None:
        self._gateway_id = gateway_id
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)

    def send(self, flows: Iterable[Flow], now: int) -> None:
        """Send each model's waiting and running requests, capacity and first-token time.

        Over all of these flows; ``now`` in ns. If nobody listens, it is dropped: the next call
        sends anew.
        """
        lanes: dict[str, list[Lane]] = {}
        for flow in flows:
            for model, lane in flow.lanes.items():
                lanes.setdefault(model, []).append(lane)
        rows = [_row(model, own, now) for model, own in lanes.items()]
        for begin in range(0, len(rows), MODELS_EACH):
            told = LoadDatagram(self._gateway_id, rows[begin : begin + MODELS_EACH])
            with contextlib.suppress(OSError):  # it restarts, or has not read yet: the next will do
                self._socket.sendto(encode_load(told), self._path)

    def close(self) -> None:
        """Close the socket; ``send`` must not be called afterwards."""
        self._socket.close()


def _row(model: str, lanes: list[Lane], now: int) -> LoadRow:
    newest = lanes[-1].pool
    ready = newest.ready(now)
    late = [p95 for lane in lanes if (p95 := lane.first_token_p95(now)) is not None]
    return LoadRow(
        model,
        sum(lane.queue.waiting_interactive for lane in lanes),
        sum(lane.pool.inflight for lane in lanes),
        newest.capacity if 0 < newest.capacity < UNLIMITED else None,
        round(seconds(int(max(late))), 4) if late else None,
        ready,
        newest.routable,
    )


__all__ = ["BatchLoads"]
