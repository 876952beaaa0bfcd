"""Hears from gateways how busy each model is, and adds their reports up."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic_ns
from typing import Final

from holdfast.core.batch.spare_capacity import ModelLoad
from holdfast.core.types import SECOND
from holdfast.frames.batch_load import LoadDatagram, LoadRow, decode_load

FRESH: Final = SECOND  # reports come ten times a second; an older one says nothing of now
_DATAGRAM_BYTES: Final = 256 << 10
_GATEWAYS_MAX: Final = 128  # two generations of the 64 that a file allows
_MODELS_MAX: Final = 1_024  # beyond that, those of which nobody reports are forgotten


class LoadReports:
    """Keeps the last report of each gateway, and joins those of one model."""

    def __init__(self, now_ns: Callable[[], int] = monotonic_ns) -> None:
        self._now_ns = now_ns
        # By model and gateway: what was said last, and when.
        self._rows: dict[str, dict[str, tuple[LoadRow, int]]] = {}
        self._socket: socket.socket | None = None
        self.leads_to: Mapping[str, tuple[str, ...]] = {}  # virtual names to models

    def listen(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        """Receive reports at this path."""
        path.unlink(missing_ok=True)
        own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        own.setblocking(False)
        own.bind(str(path))
        path.chmod(0o600)
        loop.add_reader(own.fileno(), self._read, own)
        self._socket = own

    def _read(self, own: socket.socket) -> None:
        for _ in range(_GATEWAYS_MAX):
            try:
                data = own.recv(_DATAGRAM_BYTES)
            except BlockingIOError:
                return
            told = decode_load(data)
            if told is not None:
                self.take(told)

    def take(self, told: LoadDatagram) -> None:
        """Keep one gateway's report."""
        now = self._now_ns()
        for row in told.rows:
            own = self._rows.get(row.model)
            if own is None:
                if len(self._rows) >= _MODELS_MAX:
                    self._forget(now)
                own = self._rows[row.model] = {}
            if len(own) >= _GATEWAYS_MAX and told.gateway not in own:
                own.clear()  # of gateways that came and went; the present ones report again
            own[told.gateway] = row, now

    def of(self, model: str) -> ModelLoad | None:
        """The load of a model over all gateways that reported just now; None: none did."""
        models = self.leads_to.get(model, (model,))
        now = self._now_ns()
        rows = [
            row
            for name in models
            for row, at in self._rows.get(name, {}).values()
            if now - at <= FRESH
        ]
        if not rows:
            return None
        slots: dict[str, int | None] = {}
        replicas: dict[str, int] = {}
        for row in rows:
            replicas[row.model] = max(replicas.get(row.model, 0), row.replicas)
            before = slots.get(row.model, 0)
            # Each gateway sees all slots of a replica: the sum would count them twice.
            known = row.slots is not None and before is not None
            slots[row.model] = max(before or 0, row.slots or 0) if known else None
        late = [row.first_token_p95_s for row in rows if row.first_token_p95_s is not None]
        of_models = slots.values()
        return ModelLoad(
            sum(row.waiting for row in rows),
            sum(row.running for row in rows),
            None if None in of_models else sum(one or 0 for one in of_models),
            max(late, default=None),
            any(row.ready for row in rows),
            sum(replicas.values()),
        )

    def models(self) -> set[str]:
        """Return the names for which ``of`` may know a load: reported models and virtual names."""
        return self._rows.keys() | self.leads_to.keys()

    def _forget(self, now: int) -> None:
        """Leave out the models of which nobody reports any more."""
        self._rows = {
            name: own
            for name, own in self._rows.items()
            if any(now - at <= FRESH for _, at in own.values())
        }

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop listening."""
        if self._socket is not None:
            loop.remove_reader(self._socket.fileno())
            self._socket.close()


__all__ = ["LoadReports"]
