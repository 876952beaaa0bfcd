"""Runs the batch process: its API on a unix socket, its desk, and its runner.

One process per state directory: a lock on the folder is held while it runs. A successor (after a
takeover, or while the predecessor drains) waits for it.
"""

import asyncio
import contextlib
import fcntl
import os
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic_ns
from typing import Any, Final

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.batch.api_answers import json_answer
from holdfast.batch.api_errors import ApiRefusalError, disk_full
from holdfast.batch.backlog import BacklogApi
from holdfast.batch.batch_desk import LOOK_S, BatchDesk
from holdfast.batch.batches_api import BatchesApi
from holdfast.batch.consumers.consumer import Consumer
from holdfast.batch.consumers.consumer_group import ConsumerGroup
from holdfast.batch.consumers.ended_messages import EndedMessages
from holdfast.batch.file_store import FileStore
from holdfast.batch.files_api import FilesApi
from holdfast.batch.gateway_client import GatewayClient, pinned_context
from holdfast.batch.items import LongResults
from holdfast.batch.load_reports import LoadReports
from holdfast.batch.runner import BatchRunner
from holdfast.config.batch import ConsumerSection
from holdfast.config.fleet_file import FleetFile
from holdfast.frames.authentication import is_same_user
from holdfast.frames.batch_load import BATCH_SOCKET_FILE, LOAD_SOCKET_FILE, RUNNER_SECRET_FILE
from holdfast.queue_port import QueueError, QueueFullError, RecordStore
from holdfast.queue_port.messages import Inbox, Outbox
from holdfast.storage.batch_records import BatchRecords, RecordsFullError

LOCK_FILE: Final = "lock"
_LOCK_S: Final = 0.5  # between two tries while a predecessor drains
_DISK_THREADS: Final = 96  # each may wait for a sync; gateways pass 64 requests on at once
_log = structlog.get_logger("holdfast.batch")


@dataclass(slots=True, frozen=True)
class BatchPlace:
    """Where a batch process runs: its own folder, the folder of this run, and the gateway."""

    folder: Path  # files, records and queue: outlives all processes
    run_dir: Path  # sockets and the secret of this run
    gateway_url: str


def build_app(*apis: Any) -> Starlette:
    """The ASGI application of these APIs; every error has OpenAI's shape."""
    return Starlette(
        routes=[route for api in apis for route in api.routes()],
        exception_handlers={
            ApiRefusalError: _refused,
            HTTPException: _unknown,
            QueueFullError: _full,
            RecordsFullError: _full,
            QueueError: _away,
        },
    )


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiRefusalError)
    answer = json_answer(error.body(), error.status)
    if error.retry_after_s is not None:
        answer.headers["retry-after"] = str(error.retry_after_s)
    return answer


async def _unknown(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    wrong = error.status_code == 405
    code = "method_not_allowed" if wrong else "unknown_url"
    message = "This path has no such method." if wrong else "There is nothing at this path."
    return json_answer(ApiRefusalError(error.status_code, code, message).body(), error.status_code)


async def _full(_: Request, __: Exception) -> Response:
    return json_answer(disk_full().body(), 507)


async def _away(_: Request, error: Exception) -> Response:
    _log.warning("queue away", reason=str(error)[:200])
    told = ApiRefusalError(503, "overloaded", "The store of batches is away. Try again.")
    answer = json_answer(told.body(), 503)
    answer.headers["retry-after"] = "2"
    return answer


class BatchProcess:
    """Joins the parts of one batch process and runs them."""

    def __init__(
        self,
        place: BatchPlace,
        file: FleetFile,
        make_queue: Callable[[Path], RecordStore],
        make_boxes: Callable[[ConsumerSection], tuple[Inbox, Outbox]] | None = None,
    ) -> None:
        self._make_boxes = make_boxes
        self._place = place
        self._file = file
        self._make_queue = make_queue
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Make ``run`` give back what it has and return."""
        self._stop.set()

    async def run(self, ready: Callable[[], object]) -> None:
        """Serve and work until ``stop``."""
        folder = self._place.folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = await self._locked(folder / LOCK_FILE)
        if lock is None:
            return
        try:
            await self._run(ready)
        finally:
            os.close(lock)

    async def _locked(self, path: Path) -> int | None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        told = False
        while not self._stop.is_set():
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not told:
                    _log.info("another batch process has this folder; waiting", path=str(path))
                    told = True
                await asyncio.sleep(_LOCK_S)
            else:
                return fd
        os.close(fd)
        return None

    async def _run(self, ready: Callable[[], object]) -> None:
        place, section = self._place, self._file.batch
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(_DISK_THREADS, "disk"))
        records = BatchRecords(place.folder / "batches.sqlite")
        queue = self._make_queue(place.folder)
        store = FileStore(place.folder / "files", section.limits)
        results = LongResults(place.folder / "results", store.check_room)
        desk = BatchDesk(records, store, queue, results)
        loads = LoadReports()
        loads.leads_to = _virtual_models(self._file)
        loads.listen(place.run_dir / LOAD_SOCKET_FILE, loop)
        secret = (place.run_dir / RUNNER_SECRET_FILE).read_bytes()
        client = GatewayClient(place.gateway_url, secret, _tls(self._file))
        runner = BatchRunner(
            desk, queue, store, results, client, loads, pace=section.pace, items=section.items
        )
        consumers = self._consumers(queue, results, client, loads, runner)
        app = build_app(
            FilesApi(records, store, desk.held),
            BatchesApi(desk),
            BacklogApi(desk, queue, runner, monotonic_ns, consumers),
        )
        server, listener = _server(app, place.run_dir / BATCH_SOCKET_FILE)
        await desk.start()
        serving = loop.create_task(server.serve(sockets=[listener]))
        working = loop.create_task(runner.run())
        looking = loop.create_task(_look(desk, runner))
        consuming = loop.create_task(consumers.run())
        ready()
        _log.info("batch process serves", folder=str(place.folder), open=len(desk.open))
        try:
            stopping = loop.create_task(self._stop.wait())
            awaited = {stopping, working, serving, consuming}
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
        finally:
            looking.cancel()
            server.should_exit = True
            runner.stop()
            consumers.stop()
            await asyncio.gather(working, serving, looking, consuming, return_exceptions=True)
            await desk.stop()
            await queue.close()
            client.close()
            loads.close(loop)
            records.close()
        for task in (working, consuming):
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise task.exception() or RuntimeError("the runner ended")

    def _consumers(
        self,
        queue: RecordStore,
        results: LongResults,
        client: GatewayClient,
        loads: LoadReports,
        runner: BatchRunner,
    ) -> ConsumerGroup:
        section = self._file.batch
        made = []
        for one in self._file.consumers:
            assert self._make_boxes is not None, "whoever builds this process opens queues"
            inbox, outbox = self._make_boxes(one)
            records = EndedMessages(one.called, queue, results)
            made.append(Consumer(one, inbox, outbox, records, client, section.items))
        return ConsumerGroup(made, loads, runner, section.pace)


class _OwnPeers(HttpToolsProtocol):
    """HTTP with processes of this user alone: whoever connects here may name any tenant."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close the connection of another user's process before anything is read from it."""
        super().connection_made(transport)
        if not is_same_user(transport):
            _log.warning("connection refused", reason="it is another user's process")
            transport.abort()


class _ApiServer(uvicorn.Server):
    """uvicorn that leaves signals to the process and, idle, wakes once a second."""

    def capture_signals(self) -> Any:
        """Leave signals alone: the process handles them."""
        return contextlib.nullcontext()

    async def main_loop(self) -> None:
        """Wait for the end."""
        while not self.should_exit:
            await asyncio.sleep(0.5)
            await self.on_tick(0)


async def _look(desk: BatchDesk, runner: BatchRunner) -> None:
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            await desk.look()
        except (QueueError, RecordsFullError, ApiRefusalError, OSError) as error:
            _log.warning("batches cannot be looked after", reason=str(error)[:200])
        runner.wake()


def _server(app: Starlette, path: Path) -> tuple[uvicorn.Server, socket.socket]:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(256)
    config = uvicorn.Config(
        app,
        http=_OwnPeers,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    return _ApiServer(config), listener


def _tls(file: FleetFile) -> Callable[[], ssl.SSLContext] | None:
    section = file.gateway.tls
    return None if section is None else partial(pinned_context, str(section.certificate))


def _virtual_models(file: FleetFile) -> dict[str, tuple[str, ...]]:
    """For each virtual name the models that it may lead to; ladders of rules included."""
    own = {model.name for model in file.models}
    leads = {one.name: [model for _, model in one.leads_to()] for one in file.virtual_models}
    found: dict[str, tuple[str, ...]] = {}
    for name, targets in leads.items():
        reached = {model for model in targets if model in own}
        for target in targets:
            reached |= {model for model in leads.get(target, ()) if model in own}
        found[name] = tuple(sorted(reached))
    return found


__all__ = ["BatchPlace", "BatchProcess", "build_app"]
