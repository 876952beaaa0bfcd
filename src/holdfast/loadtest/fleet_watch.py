"""Reads a Holdfast fleet beside a benchmark: GPU use, and how many replicas are in service.

It can also take replicas out of service for a while and back in, to measure how throughput grows
with their number. Whatever it drained is undrained at the end, whatever happens in between.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any, Final
from urllib.parse import quote

import msgspec

from holdfast.control.fetch import FetchError, fetch
from holdfast.loadtest.records import FleetState, GpuReading

_POLL_S: Final = 2.0
_DEADLINE_S: Final = 5.0
_READINGS_MAX: Final = 50_000
_IN_SERVICE: Final = frozenset({"ready", "suspect"})


class FleetError(Exception):
    """The fleet did not do what was asked; the text says what to do."""


class FleetWatch:
    """The admin port of a fleet, as a benchmark of one of its models uses it."""

    def __init__(
        self,
        admin: str,
        model: str,
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        change_s: float = 120.0,
    ) -> None:
        self._admin = admin.rstrip("/")
        self._model = model
        self._token = token
        self._tls = tls
        self._change_s = change_s  # how long a replica may take to drain, or to be ready again
        self._drained: list[str] = []
        self._gpus: list[GpuReading] = []
        self._seen = 0  # readings of replicas that came without figures of GPUs
        self._replicas: int | None = None
        self._problem = ""

    async def rows(self) -> list[dict[str, Any]]:
        """The replicas of the model, as the status page has them; raises ``FleetError``."""
        told = await self._ask("/status")
        rows = told.get("replicas") if isinstance(told, Mapping) else None
        if not isinstance(rows, list):
            raise FleetError(f"{self._admin}: /status is not that of a Holdfast fleet")
        return [row for row in rows if isinstance(row, dict) and row.get("model") == self._model]

    async def begin(self) -> None:
        """Look once: how many replicas are in service now. Never raises; unknown stays unknown."""
        try:
            rows = await self.rows()
        except FleetError as error:
            self._problem = str(error)
            return
        self._replicas = sum(row.get("state") in _IN_SERVICE for row in rows)

    async def read_gpus(self, zero: float) -> None:
        """Read the GPUs of the model's replicas again and again, until cancelled."""
        while True:
            try:
                rows = await self.rows()
            except FleetError as error:
                self._problem = str(error)
            else:
                at = round(perf_counter() - zero, 3)
                for row in rows:
                    self._note(row, at)
            await asyncio.sleep(_POLL_S)

    def _note(self, row: Mapping[str, Any], at: float) -> None:
        gpu = row.get("gpu")
        if not isinstance(gpu, Mapping) or len(self._gpus) >= _READINGS_MAX:
            self._seen += 1
            return
        self._gpus.append(
            GpuReading(
                at_s=at,
                replica=str(row.get("id")),
                device=f"{gpu.get('count') or 1} GPU",
                busy_share=_share(gpu.get("utilisation")),
                memory_share=_share(gpu.get("memory_share")),
            )
        )

    def state(self) -> FleetState:
        """What was learned of the fleet."""
        why = ""
        if not self._gpus:
            why = self._problem or (
                "the fleet tells no GPU of these replicas" if self._seen else "nothing was read"
            )
        return FleetState(replicas=self._replicas, gpus=tuple(self._gpus), gpus_why=why)

    # --- replicas in service ----------------------------------------------------------------------

    async def in_service(self) -> list[str]:
        """The names of the model's replicas that are in service."""
        return sorted(str(row["id"]) for row in await self.rows() if row["state"] in _IN_SERVICE)

    @asynccontextmanager
    async def only(self, count: int) -> AsyncIterator[None]:
        """Keep ``count`` replicas in service while the block runs; drain the others."""
        serving = await self.in_service()
        if len(serving) < count:
            raise FleetError(
                f"{count} replicas of {self._model} are wanted, and {len(serving)} are in service"
            )
        leaving = serving[count:]
        try:
            for name in leaving:
                self._drained.append(name)
                await self._order(name, "drain")
            await self._until(leaving, out=True)
            yield
        finally:
            await asyncio.shield(self._restore())

    async def _restore(self) -> None:
        failed: list[str] = []
        back, self._drained = self._drained, []
        for name in back:
            try:
                await self._order(name, "undrain")
            except FleetError:
                failed.append(name)
        if failed:
            raise FleetError(f"not taken back into service: {', '.join(failed)}; holdfast undrain")
        await self._until(back, out=False)

    async def _until(self, names: list[str], *, out: bool) -> None:
        """Wait until these replicas are all out of service and idle, or all in service."""
        deadline = perf_counter() + self._change_s
        while names:
            rows = {str(row["id"]): row for row in await self.rows()}
            late = [name for name in names if _arrived(rows.get(name), out=out) is False]
            if not late:
                return
            if perf_counter() > deadline:
                wanted = "out of service" if out else "in service again"
                raise FleetError(f"not {wanted} within {self._change_s:g} s: {', '.join(late)}")
            await asyncio.sleep(0.2)

    async def _order(self, name: str, what: str) -> None:
        await self._ask(f"/replicas/{quote(name, safe='')}/{what}", method="POST")

    async def _ask(self, path: str, method: str | None = None) -> Any:
        body = b"" if method is not None else None
        try:
            answer = await fetch(
                self._admin,
                path,
                _DEADLINE_S,
                bearer=self._token,
                tls=self._tls,
                method=method,
                body=body,
            )
        except FetchError as error:
            raise FleetError(f"{self._admin}: {error}") from error
        try:
            told = msgspec.json.decode(answer.body)
        except msgspec.DecodeError:
            told = None
        if answer.status not in {200, 202}:
            why = told.get("error") if isinstance(told, dict) else None
            raise FleetError(f"{self._admin}: {path}: {str(why)[:200] if why else answer.status}")
        return told


def _arrived(row: Mapping[str, Any] | None, *, out: bool) -> bool:
    if row is None:
        return out
    if out:
        return row.get("state") not in _IN_SERVICE and not row.get("inflight")
    return row.get("state") in _IN_SERVICE


def _share(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value <= 1.5 else None


__all__ = ["FleetError", "FleetWatch"]
