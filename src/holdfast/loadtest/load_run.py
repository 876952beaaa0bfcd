"""Sends the requests of a plan, in an open or a closed loop, and notes what came back.

Open loop: requests are sent when the plan says, whether or not answers come, and their latency
counts from that moment. A server that falls behind cannot slow its own load down, and so cannot
hide how long its users wait (coordinated omission). Closed loop: so many users, each of whom asks
again when the answer is there.

Everything runs on one event loop and one core, over the gateway's own connections to replicas
(``gateway.http.upstream``): that client is fast enough, and tested.
"""

import asyncio
import contextlib
import gc
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic_ns, perf_counter
from typing import Final

from holdfast.config.gateway import UpstreamConfig
from holdfast.core.types import require
from holdfast.gateway.http.upstream import Endpoint, Upstream
from holdfast.loadtest.client_check import TICK_S, ClientLimits, ClientWatch, why_refused
from holdfast.loadtest.measured_call import MeasuredCall
from holdfast.loadtest.records import BenchOutcome, BenchRecord, BenchStep
from holdfast.loadtest.request_plan import PlannedRequest, RequestPlan

_SWEEP_S: Final = 0.1  # how often overdue answers are looked for
_SENT_AT_ONCE: Final = 32  # requests that are due together, before answers are read again
_RAMP_PER_S: Final = 500.0  # users that begin in one second: a full backlog would refuse them
_FAILURE_PAUSE_S: Final = 0.05  # of a user after a failure, so that nobody is hammered
_STALE: Final = "stale_socket"


@dataclass(slots=True, frozen=True)
class StepLoad:
    """One load to hold: an open loop at the plan's rate, or a closed loop of ``users``."""

    name: str
    users: int | None = None  # None: open loop
    warmup_s: float = 5.0  # caches, connections and batches fill; arrivals in it do not count
    seconds: float = 30.0  # long enough for a p95 of 20 requests/s
    requests_max: int = 20_000  # an end, whatever the rate
    timeout_s: float = 120.0  # of one answer; longer ones have failed
    think_s: float = 0.0  # closed loop: from an answer to the user's next request
    replicas: int | None = None  # in service, where this step sets it

    def __post_init__(self) -> None:
        require(self.seconds > 0, "--duration", f"is {self.seconds}", "use seconds above 0")
        require(self.warmup_s >= 0, "--warmup", f"is {self.warmup_s}", "use 0 or more seconds")
        require(self.requests_max >= 1, "--requests", f"is {self.requests_max}", "use 1 or more")
        require(self.timeout_s > 0, "--timeout", f"is {self.timeout_s}", "use seconds above 0")
        require(self.think_s >= 0, "--think", f"is {self.think_s}", "use 0 or more seconds")
        some = self.users is None or self.users >= 1
        require(some, "--users", f"is {self.users}", "use 1 or more")


@dataclass(slots=True, frozen=True)
class LoadProgress:
    """How far a step is, for whoever shows it."""

    name: str
    share: float  # of the time or of the requests, 0 to 1
    sent: int
    under_way: int
    ended: int
    failed: int


class LoadClient:
    """Holds loads against one server, one after the other."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        tls: ssl.SSLContext | None = None,
        limits: ClientLimits | None = None,
        on_progress: Callable[[LoadProgress], None] = lambda _: None,
    ) -> None:
        self.limits = limits or ClientLimits()
        self.zero = perf_counter()
        self._on_progress = on_progress
        self._loop = asyncio.get_running_loop()
        config = UpstreamConfig(connect_s=10.0, idle_max=self.limits.streams_max)
        self._upstream = Upstream(
            Endpoint(url), config, self._loop, ssl_context=tls, now_ns=monotonic_ns
        )
        bearer = b"" if key is None else b"authorization: Bearer %b\r\n" % key.encode("ascii")
        self._headers = b"content-type: application/json\r\naccept: text/event-stream\r\n" + bearer

    def close(self) -> None:
        """Close all connections."""
        self._upstream.abandon()

    async def probe(self, path: bytes, body: bytes, timeout_s: float) -> MeasuredCall:
        """Send one request and wait for its end."""
        over: asyncio.Future[None] = self._loop.create_future()
        planned = PlannedRequest(0.0, body, 0, 0)
        call = MeasuredCall(
            planned, perf_counter(), lambda _: None if over.done() else over.set_result(None)
        )
        self._send(call, path)
        watched = self._loop.create_task(self._sweep_connections())
        try:
            async with asyncio.timeout(timeout_s):
                await over
        except TimeoutError:
            call.give_up("timeout")
        finally:
            watched.cancel()
        return call

    async def hold(
        self, load: StepLoad, plan: RequestPlan, number: int
    ) -> tuple[BenchStep, list[BenchRecord]]:
        """Hold one load; returns the step, which may be refused, and the records of its requests.

        ``number`` is the place of this step; it also draws other requests than earlier steps had.
        """
        step = _RunningStep(self, load, plan, number)
        gc.collect()
        gc.freeze()
        gc.disable()  # a pause of the collector would be taken for one of the server
        try:
            return await step.run()
        finally:
            gc.enable()
            gc.unfreeze()

    async def _sweep_connections(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._upstream.sweep(monotonic_ns())

    # --- for the running step ---------------------------------------------------------------------

    def _send(self, call: MeasuredCall, path: bytes) -> None:
        call.sent = perf_counter()
        call.call = self._upstream.call(call, b"POST", path, self._headers, call.planned.body)

    def sweep(self) -> None:
        """Look after the connections; called several times a second."""
        self._upstream.sweep(monotonic_ns())

    def send(self, call: MeasuredCall, path: bytes) -> None:
        """Send the request of a call now."""
        self._send(call, path)

    def progress(self, told: LoadProgress) -> None:
        """Tell how far a step is."""
        self._on_progress(told)


class _RunningStep:
    """One load while it is held."""

    def __init__(self, client: LoadClient, load: StepLoad, plan: RequestPlan, number: int) -> None:
        self._client = client
        self._load = load
        self._plan = plan
        self._number = number
        self._path = plan.form.path
        self._requests: Iterator[PlannedRequest] = plan.requests(number)
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[MeasuredCall, None] = {}  # in order of sending
        self._over: list[MeasuredCall] = []
        self._unsent: list[BenchRecord] = []
        self._sent = self._failed = self._streams_max = 0
        self._begin = self._from = self._until = 0.0
        self._idle = asyncio.Event()
        self._no_more = asyncio.Event()  # requests ran out before the time did
        self._watch: ClientWatch | None = None

    async def run(self) -> tuple[BenchStep, list[BenchRecord]]:
        load = self._load
        self._begin = perf_counter()
        self._from = self._begin + max(load.warmup_s, (load.users or 0) / _RAMP_PER_S)
        self._until = self._from + load.seconds
        helpers = [self._loop.create_task(work()) for work in (self._sweep, self._look)]
        try:
            await (self._open_loop() if load.users is None else self._closed_loop(load.users))
            await self._drain()
        finally:
            for helper in helpers:
                helper.cancel()
        return self._result()

    # --- open loop --------------------------------------------------------------------------------

    async def _open_loop(self) -> None:
        for count, planned in enumerate(self._requests):
            due = self._begin + planned.at_s
            if due >= self._until or self._sent >= self._load.requests_max:
                break
            now = perf_counter()
            if due > now:
                await asyncio.sleep(due - now)
                now = perf_counter()
            elif count % _SENT_AT_ONCE == 0:
                await asyncio.sleep(0)  # answers are read even where requests are late
            # Within the resolution of the timer the plan is what the timer made of it.
            self._start(planned, now if now - due < TICK_S else due)
        self._close_window()

    # --- closed loop ------------------------------------------------------------------------------

    async def _closed_loop(self, users: int) -> None:
        for number in range(users):
            begin = self._begin + number / _RAMP_PER_S
            await asyncio.sleep(max(0.0, begin - perf_counter()))
            self._next_of_user()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._until - perf_counter())):
                await self._no_more.wait()
        self._close_window()

    def _next_of_user(self) -> None:
        now = perf_counter()
        if now >= self._until:
            return
        planned = next(self._requests, None) if self._sent < self._load.requests_max else None
        if planned is None:
            self._no_more.set()
        else:
            self._start(planned, now)

    # --- requests ---------------------------------------------------------------------------------

    def _start(self, planned: PlannedRequest, due: float) -> None:
        if len(self._under_way) >= self._client.limits.streams_max:
            self._unsent.append(
                BenchRecord(
                    step=self._number,
                    arrived_s=round(due - self._client.zero, 6),
                    asked_prompt_tokens=planned.prompt_tokens,
                    asked_output_tokens=planned.output_tokens,
                    outcome=BenchOutcome.CANCELLED,
                    problem="too many answers under way",
                )
            )
            return
        call = MeasuredCall(planned, due, self._ended)
        self._sent += 1
        self._under_way[call] = None
        self._streams_max = max(self._streams_max, len(self._under_way))
        self._client.send(call, self._path)

    def _ended(self, call: MeasuredCall) -> None:
        if call.problem == _STALE and not call.retried:
            # The server closed an idle connection as this request was on its way: no failure.
            call.retried = True
            call.problem = ""
            call.restart()
            self._client.send(call, self._path)
            return
        self._under_way.pop(call, None)
        self._over.append(call)
        failed = bool(call.problem) or call.status != 200
        self._failed += failed
        if self._load.users is not None:
            pause = self._load.think_s or (_FAILURE_PAUSE_S if failed else 0.0)
            if pause:
                self._loop.call_later(pause, self._next_of_user)
            else:
                self._next_of_user()
        if not self._under_way:
            self._idle.set()

    async def _drain(self) -> None:
        """Wait for the answers that are under way; ``_sweep`` ends those that take too long."""
        while self._under_way:
            self._idle.clear()
            await self._idle.wait()

    # --- beside it --------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        """End overdue answers, look after connections, tell how far we are."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._client.sweep()
            overdue_before = perf_counter() - self._load.timeout_s
            overdue = []
            for call in self._under_way:
                if call.sent >= overdue_before:
                    break
                overdue.append(call)
            for call in overdue:
                call.give_up("timeout")
            self._client.progress(self._progress())

    async def _look(self) -> None:
        """Watch the client itself, from the end of the warm-up on."""
        await asyncio.sleep(max(0.0, self._from - perf_counter()))
        self._watch = watch = ClientWatch()
        while watch.running:
            asked_at = perf_counter()
            await asyncio.sleep(watch.pause())
            watch.looked(asked_at)

    def _progress(self) -> LoadProgress:
        span = self._until - self._begin
        by_time = (perf_counter() - self._begin) / span
        by_count = self._sent / self._load.requests_max
        return LoadProgress(
            self._load.name,
            min(1.0, max(by_time, by_count)),
            self._sent,
            len(self._under_way),
            len(self._over),
            self._failed,
        )

    def _close_window(self) -> None:
        """End the load: now, if requests ran out before the time did. Answers may still come."""
        self._until = min(self._until, perf_counter())
        self._from = min(self._from, self._until)
        if self._watch is not None:
            self._watch.stop()

    def _result(self) -> tuple[BenchStep, list[BenchRecord]]:
        zero, load = self._client.zero, self._load
        records = [call.record(self._number, zero) for call in self._over] + self._unsent
        records.sort(key=lambda record: record.arrived_s)
        begun = self._from - zero
        counted = [record for record in records if record.arrived_s >= begun]
        watch = self._watch or ClientWatch()
        client = watch.state(counted, streams_max=self._streams_max, unsent=len(self._unsent))
        span = max(1e-6, self._until - self._begin)
        rate = self._plan.rate if self._plan.rate is not None else self._sent / span
        asked, unit = (rate, "requests/s") if load.users is None else (load.users, "users")
        refused = why_refused(client, self._client.limits, counted, asked, unit)
        if not counted:
            refused = refused or (
                "no request arrived after the warm-up: load longer, or shorten --warmup"
            )
        step = BenchStep(
            name=load.name,
            mode="open" if load.users is None else "closed",
            rate=round(rate, 6) if load.users is None else None,
            users=load.users,
            replicas=load.replicas,
            began_s=round(self._begin - zero, 6),
            counted_from_s=round(begun, 6),
            counted_to_s=round(self._until - zero, 6),
            refused=refused,
            client=client,
        )
        return step, records


__all__ = ["LoadClient", "LoadProgress", "StepLoad"]
