"""The stand-in engine: turns requests into jobs, gives them slots, and applies faults.

A request becomes a job; a job gets a slot or waits for one; a fault either acts before there is a
job, or changes how jobs go on. The health page shows no fault but a stalled start, and metrics
none but those that are about metrics, because those of real engines do not either.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from random import Random
from time import monotonic_ns
from typing import Any, Final

import orjson

from holdfast.core.plan.faults import FaultKind
from holdfast.core.types import MILLISECOND, nanos
from holdfast.testing.standin.ballast import Ballast
from holdfast.testing.standin.batch_loop import BatchLoop
from holdfast.testing.standin.connection import JSON, TEXT, StandInConnection, StandInRequest
from holdfast.testing.standin.faults import BREAKING, Ailment, SocketKind, fault
from holdfast.testing.standin.frames import EVENT_STREAM, Streamed, garbage, stream, whole
from holdfast.testing.standin.generation import (
    AnswerPlan,
    AnswerStyle,
    Generate,
    RequestRefused,
    note_ties,
    plan_chat,
    plan_completion,
    read_generate,
)
from holdfast.testing.standin.jobs import Job, Pacer, StreamJob, WholeJob, error_body
from holdfast.testing.standin.metrics import EngineCounters, EngineState, render
from holdfast.testing.standin.options import Like, Options
from holdfast.testing.standin.responses import (
    KeptResponses,
    ResponseObject,
    conversation_of,
    is_kept_response,
    plan_response,
    read_respond,
)
from holdfast.testing.standin.tasks import TASKS, WRONG, TaskAnswer, infer

WAITING_MAX: Final = 10_000  # requests in the queue; real ones have no bound, and die of it
GARBAGE_BYTES: Final = b"\x8f\xfe\x00 ~~ \xc3("
_MOODS: Final = {
    FaultKind.WRONG_OUTPUT: AnswerStyle.WRONG,
    FaultKind.EMPTY: AnswerStyle.EMPTY,
    FaultKind.GARBAGE: AnswerStyle.GARBAGE,
}
_GENERATION: Final = (b"/v1/chat/completions", b"/v1/completions")
_KILLED: Final = 137  # what a shell reports of a process killed for its memory
_SOUND: Final = AnswerStyle.SOUND  # looking a member up in its enum costs more than comparing it
_KEPT: Final = 512  # plans that are kept, for bodies up to
_KEPT_BYTES: Final = 65_536
_BUSY: Final = b"retry-after: 1\r\n"


class StandInEngine:
    """Answers the requests of all connections of the data port."""

    __slots__ = (
        "_ballast",
        "_batch",
        "_breaking",
        "_die",
        "_factor",
        "_kept",
        "_mood",
        "_pacer",
        "_parked",
        "_plans",
        "_rng",
        "_running",
        "_since",
        "_starved",
        "_timer",
        "_unreachable",
        "_waiting",
        "account",
        "connections",
        "fault",
        "frozen",
        "options",
        "pace",
        "reading",
    )

    def __init__(
        self,
        options: Options,
        die: Callable[[int], object],
        unreachable: Callable[[bool], None],
    ) -> None:
        self.options = options
        self._die = die  # with an exit status
        self._unreachable = unreachable  # True: from now on nobody gets through
        self.connections: set[StandInConnection] = set()
        self.reading = True
        self.account = EngineCounters()
        self._running: set[Job] = set()
        self._waiting: OrderedDict[Job, None] = OrderedDict()
        self._parked: dict[Job, None] = {}
        self._pacer = Pacer(asyncio.get_running_loop())
        self._batch = BatchLoop(options, self) if options.step_ms > 0 else None
        self._plans: dict[tuple[bytes, bytes], tuple[Generate, AnswerPlan]] = {}
        self._rng = Random(options.seed)
        self._timer: asyncio.TimerHandle | None = None
        self._ballast: Ballast | None = None
        self._kept = KeptResponses()
        self.fault: Ailment | None = None
        self._healthy()

    def _healthy(self) -> None:
        self.frozen = False
        self._starved = False  # what comes in is accepted, and never gets its turn
        self._factor = 1.0
        self._mood = AnswerStyle.SOUND
        self._breaking: Ailment | None = None
        self._since = 0  # of the fault
        options = self.options
        # In a batch a job is given one turn per step: it only must not take several at once.
        pace_ms = options.step_ms or options.tpot_ms
        self.pace = round(pace_ms * options.tokens_per_chunk * MILLISECOND)

    # --- requests

    def on_request(self, conn: StandInConnection, asked: StandInRequest) -> None:
        """Answer a request at once, or begin a job for it."""
        if asked.method == b"GET" and not is_kept_response(asked.path):
            self._tell(conn, asked.path)
            return
        if asked.method not in (b"GET", b"POST"):
            conn.respond(405, error_body(405, "use GET or POST", "MethodNotAllowed"))
            return
        try:
            self._infer(conn, asked)
        except RequestRefused as refused:
            self.account.refused += 1
            body = error_body(refused.status, refused.message, refused.kind, refused.param)
            conn.respond(refused.status, body)

    def _infer(self, conn: StandInConnection, asked: StandInRequest) -> None:
        make = self._maker(asked.path)
        if asked.path.decode("latin-1") in self.options.lacks:
            status = self.options.lacks_status
            text = "Not Found" if status == 404 else "This server does not support this task"
            raise RequestRefused(status, text, "NotFoundError")
        if is_kept_response(asked.path):
            conn.respond(200, self._kept.tell(asked.method, asked.path))
            return
        if make is None:
            raise RequestRefused(404, "there is no such path", "NotFoundError")
        account = self.account
        account.arrived(lone=not asked.keep_alive)
        breaking = self._breaking
        if self.fault is not None:
            if self._struck(conn, asked, self.fault):
                return
            if self.fault.known is FaultKind.WRONG_OUTPUT:
                wrong = self._rng.random() < self.fault.share
                self._mood = AnswerStyle.WRONG if wrong else _SOUND
            if self.fault.known is FaultKind.FLAKY and self._rng.random() < self.fault.probability:
                if self.fault.tokens == 0:
                    self._admit(self._failing(conn, 500), None)
                    return
                breaking = fault(FaultKind.CUT, tokens=self.fault.tokens)
        job = make(conn, asked)
        if job is not None:
            account.prompt_tokens += job.prompt_tokens
            self._admit(job, breaking)

    def _maker(
        self, path: bytes
    ) -> Callable[[StandInConnection, StandInRequest], Job | None] | None:
        if path in _GENERATION:
            return self._generation
        if path == b"/v1/responses":
            return self._response
        if path in TASKS or (path.startswith(b"/v2/models/") and path.endswith(b"/infer")):
            return self._task
        return None

    def _generation(self, conn: StandInConnection, asked: StandInRequest) -> Job | None:
        body, plan = self._planned(asked)
        if not body.stream:
            rendered = whole(body, plan)
            return self._whole(conn, plan.prompt_tokens, plan.longest(), rendered)
        per_chunk = self.options.tokens_per_chunk
        made = stream(body, plan, self.options.like, per_chunk)
        job = self._stream(conn, plan.prompt_tokens, made, body.limit())
        job.steps = -(-plan.longest() // per_chunk)
        return job

    def _planned(self, asked: StandInRequest) -> tuple[Generate, AnswerPlan]:
        """The answer to a body does not change: load generators repeat theirs, so keep some."""
        key = (asked.path, asked.body)
        tied = self._mood is _SOUND and self.options.tied > 0
        found = self._plans.get(key) if self._mood is _SOUND and not tied else None
        if found is not None:
            return found
        body = read_generate(asked.body)
        self._known(body.model)
        plan_it = plan_chat if asked.path == b"/v1/chat/completions" else plan_completion
        plan = plan_it(body, self.options, self._mood)
        if tied:
            other = plan_it(body, self.options, AnswerStyle.WRONG)
            if self._rng.random() < self.options.tied:
                plan, other = other, plan
            note_ties(plan, other)
            return body, plan
        if self._mood is _SOUND and len(asked.body) <= _KEPT_BYTES:
            if len(self._plans) >= _KEPT:
                self._plans.clear()
            self._plans[key] = (body, plan)
        return body, plan

    def _response(self, conn: StandInConnection, asked: StandInRequest) -> Job | None:
        body = read_respond(asked.body)
        self._known(body.model)
        messages = conversation_of(body, self._kept)
        plan = plan_response(body, messages, self.options, self._mood)
        answer = ResponseObject(body, messages, plan)
        self._kept.keep(answer)
        if not body.stream:
            return self._whole(conn, plan.prompt_tokens, plan.longest(), answer.whole())
        return self._stream(conn, plan.prompt_tokens, answer.streamed(), body.max_output_tokens)

    def _task(self, conn: StandInConnection, asked: StandInRequest) -> Job | None:
        twist = WRONG if self._mood is AnswerStyle.WRONG else b""
        task = TASKS.get(asked.path)
        done: TaskAnswer
        if task is not None:
            done = task(asked.body, asked.content_type, twist)
        else:
            name = asked.path[len(b"/v2/models/") : -len(b"/infer")].decode("latin-1")
            done = infer(name, asked.body, twist)
        self._known(done.model)
        body = done.body
        if self._mood is AnswerStyle.EMPTY:
            body = b"{}"
        elif self._mood is AnswerStyle.GARBAGE:
            body = GARBAGE_BYTES
        return self._whole(conn, 1, 1, body, done.content_type)

    def _known(self, model: str) -> None:
        if model not in self.options.models:
            raise _no_model()

    # --- jobs

    def _first(self, prompt_tokens: int) -> int:
        """Nanoseconds until the first token."""
        options = self.options
        us = options.ttft_ms * 1_000 + options.prefill_us_per_token * prompt_tokens
        return round(us * 1_000 * self._factor)

    def _whole(
        self,
        conn: StandInConnection,
        prompt: int,
        tokens: int,
        body: bytes,
        content_type: bytes = JSON,
    ) -> WholeJob | None:
        """A job; None where nothing lies between question and answer, which is then given."""
        wait = self._first(prompt)
        if tokens > 1:
            wait += self.pace * (tokens - 1) // self.options.tokens_per_chunk
        if wait == 0 and self.fault is None and self.options.slots == 0:
            account = self.account
            account.finished += 1
            account.prompt_tokens += prompt
            account.generated_tokens += tokens
            conn.respond(200, body, content_type)
            return None
        job = WholeJob(self, conn, wait, prompt, body, tokens=tokens, content_type=content_type)
        job.steps = max(1, tokens)
        return job

    def _failing(self, conn: StandInConnection, status: int) -> WholeJob:
        body = error_body(status, "injected", "InternalServerError")
        return WholeJob(self, conn, self._first(1), 1, body, status=status)

    def _stream(
        self, conn: StandInConnection, prompt: int, made: Streamed, limit: int | None
    ) -> StreamJob:
        opening = made.opening
        if self.options.like is Like.VLLM and not self.frozen:
            conn.write(EVENT_STREAM)  # before there is a token: status and tokens are apart in time
        else:
            opening = EVENT_STREAM + opening
        pieces = made.pieces
        ailing = self.fault if self._mood is AnswerStyle.GARBAGE else None
        if ailing is not None and (ailing.form or limit is None):
            # A limit ends a loop of tokens as it ends any answer, with its reason: as planned.
            pieces = garbage(ailing.form, made.degenerate)
            if limit is not None:
                pieces = islice(pieces, limit)
        return StreamJob(
            self,
            conn,
            self._first(prompt),
            prompt,
            opening,
            pieces,
            made.closing,
            degenerate=made.degenerate,
            per_piece=self.options.tokens_per_chunk,
        )

    def _admit(self, job: Job, breaking: Ailment | None) -> None:
        job.breaking = breaking
        job.conn.work = job
        slots = self.options.slots
        if self._batch is not None and len(self._waiting) < WAITING_MAX:
            self._waiting[job] = None
            self._batch.wake()
        elif (not slots or len(self._running) < slots) and not self._starved:
            self._begin(job)
        elif len(self._waiting) < WAITING_MAX:
            self._waiting[job] = None
        else:
            job.over = True
            self.account.refused += 1
            job.conn.respond(429, error_body(429, "queue full", "TooManyRequests"), JSON, _BUSY)

    def _begin(self, job: Job) -> None:
        self._running.add(job)
        now = monotonic_ns()
        job.due = now + job.wait
        if not job.wait:
            job.due = job.turn(now)
            if not job.due:
                return
        self._pacer.file(job)

    def leave(self, job: Job, reason: str) -> None:
        """End a job: its slot goes to the next one."""
        account = self.account
        account.left(reason, lone=job.conn.lone)
        account.generated_tokens += job.said
        self._running.discard(job)
        if self._parked:
            self._parked.pop(job, None)
        if self._waiting:
            self._promote(job)

    def _promote(self, gone: Job) -> None:
        self._waiting.pop(gone, None)
        self._seat()

    def next_waiting(self, running: int) -> Job | None:
        """The next job for the batch, which now holds a slot; None where none may join."""
        slots = self.options.slots
        if not self._waiting or self._starved or (slots and running >= slots):
            return None
        job = self._waiting.popitem(last=False)[0]
        self._running.add(job)
        return job

    def slowness(self) -> float:
        """Factor on every step of a batch."""
        return self._factor

    def _seat(self) -> None:
        if self._batch is not None:
            self._batch.wake()
            return
        slots = self.options.slots
        while self._waiting and (not slots or len(self._running) < slots) and not self._starved:
            self._begin(self._waiting.popitem(last=False)[0])

    def _starve(self) -> None:
        self._starved = True

    def park(self, job: Job) -> None:
        """Hold a job until the fault is cleared."""
        self._parked[job] = None

    def again(self, job: Job) -> None:
        """Give a job its next turn as soon as possible."""
        if self._batch is not None and self._batch.holds(job):
            return  # it gets one in every step
        job.due = monotonic_ns()
        self._pacer.file(job)

    # --- faults

    def _struck(self, conn: StandInConnection, asked: StandInRequest, ailment: Ailment) -> bool:
        """Faults at the door: answered, or died of, before there is a job."""
        kind = ailment.known
        status, extra = 500, b""
        if kind is FaultKind.OOM:
            return self._killed(asked, ailment)
        if kind is SocketKind.MODEL_MISSING:
            raise _no_model()
        if kind is FaultKind.REFUSE_BUSY:
            status, extra = 429, _BUSY
        elif kind is FaultKind.LOAD_STALL:
            status = 503
        elif kind is SocketKind.STATUS:
            status, extra = ailment.code, _BUSY if ailment.retry_after else b""
            if not ailment.instant:
                self._admit(self._failing(conn, status), None)
                return True
        elif kind is not FaultKind.BLACK_HOLE:
            return False
        self.account.failed += 1
        conn.respond(status, error_body(status, "injected", "InternalServerError"), JSON, extra)
        return True

    def _killed(self, asked: StandInRequest, ailment: Ailment) -> bool:
        """Out of memory: at once, or when the first token of a certain request was due."""
        if not ailment.marker:
            self._die(_KILLED)
        elif ailment.marker.encode() not in asked.body:
            return False
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.options.ttft_ms / 1_000, self._die, _KILLED)
        return True

    def _has(self, kind: SocketKind) -> bool:
        return self.fault is not None and self.fault.known is kind

    def set_fault(self, ailment: Ailment) -> None:
        """Activate a fault, in place of the one before."""
        self.clear_fault()
        self.fault = ailment
        self._since = monotonic_ns()
        kind = ailment.known
        if kind is FaultKind.CRASH:
            self._die(1)
        elif kind is FaultKind.HANG or kind is FaultKind.PARTITION:
            self.frozen = True
            if kind is FaultKind.PARTITION:
                self._reach(within=False)
        elif kind is FaultKind.SLOW:
            self._factor = ailment.factor
            self.pace = round(self.pace * ailment.factor)
        elif kind is FaultKind.DRIP:
            self.pace = nanos(ailment.interval_s)
        elif kind is FaultKind.LEAK and ailment.bytes_s:
            self._ballast = Ballast(ailment.bytes_s, ailment.bytes_max, self._starve)
        elif kind is FaultKind.LEAK or kind is FaultKind.SPOT_NOTICE:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(ailment.lead_s, self._die, _KILLED)
        elif kind in BREAKING:
            self._breaking = ailment
            for job in (*self._running, *self._waiting):
                job.breaking = ailment
        elif isinstance(kind, FaultKind) and kind in _MOODS:
            self._mood = _MOODS[kind]
            if ailment.under_way and kind is FaultKind.GARBAGE:
                for job in self._running:
                    if isinstance(job, StreamJob):
                        job.pieces = garbage(ailment.form, job.degenerate)

    def clear_fault(self) -> None:
        """End the fault; held jobs continue."""
        before, self.fault = self.fault, None
        self._healthy()
        self._heal()
        for job in (*self._running, *self._waiting):
            job.breaking = None
        if before is not None and before.known is FaultKind.PARTITION:
            self._reach(within=True)
        parked, self._parked = self._parked, {}
        for job in parked:
            self.again(job)
        self._seat()

    def _reach(self, *, within: bool) -> None:
        self.reading = within
        self._unreachable(not within)
        for conn in self.connections:
            conn.listen(reading=within)

    def stop(self) -> None:
        """Cancel all turns and timers."""
        self._pacer.stop()
        if self._batch is not None:
            self._batch.stop()
        self._heal()

    def _heal(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ballast is not None:
            self._ballast.let_go()
            self._ballast = None

    # --- what it says of itself

    def _tell(self, conn: StandInConnection, path: bytes) -> None:
        loading = self.fault is not None and self.fault.known is FaultKind.LOAD_STALL
        models = () if self._has(SocketKind.MODEL_MISSING) else self.options.models
        if path == b"/health":
            if loading:
                conn.respond(503, error_body(503, "Loading model", "unavailable_error"))
            elif self.options.like is Like.VLLM:
                conn.respond(200, b"")
            else:
                conn.respond(200, b'{"status":"ok"}')
        elif path == b"/metrics" and not self._has(SocketKind.METRICS_GONE):
            conn.respond(200, render(self.options.like, self.account, self.now()), TEXT)
        elif path == b"/v1/models":
            listed = [_card(model) for model in models]
            conn.respond(200, orjson.dumps({"object": "list", "data": listed}))
        elif path == b"/version" and self.options.like is Like.VLLM:
            conn.respond(200, b'{"version":"0.0.0+standin"}')
        elif path in (b"/v2/health/ready", b"/v2/health/live"):
            conn.respond(400 if loading and path.endswith(b"ready") else 200, b"")
        elif path in {b"/v2/models/%b/ready" % model.encode() for model in models}:
            conn.respond(400 if loading else 200, b"")
        elif path in {b"/v1/models/%b" % model.encode() for model in models}:
            conn.respond(200, orjson.dumps(_card(path.rpartition(b"/")[2].decode())))
        else:
            conn.respond(404, error_body(404, "there is no such path", "NotFoundError"))

    def now(self) -> EngineState:
        """The engine's current load."""
        held = sum(job.prompt_tokens + job.said for job in self._running)
        used = held / self.options.kv_tokens
        ailment = self.fault
        if ailment is not None and ailment.known is FaultKind.LEAK and not ailment.bytes_s:
            used += (monotonic_ns() - self._since) / (nanos(ailment.lead_s) or 1)
        elif ailment is not None and self._has(SocketKind.KV_FULL):
            used = max(used, ailment.share)
        used = used if used < 1.0 else 1.0
        return EngineState(self.options.models[0], len(self._running), len(self._waiting), used)

    def stats(self) -> dict[str, Any]:
        """Counters and state for tests and demos, served on the side port only."""
        now = self.now()
        account = {name: getattr(self.account, name) for name in EngineCounters.__slots__}
        return {
            **account,
            "running": now.running,
            "waiting": now.waiting,
            "kv_used": now.kv_used,
            "connections": len(self.connections),
            "held_bytes": 0 if self._ballast is None else self._ballast.held,
            "kept": len(self._kept),
            "fault": None if self.fault is None else self.fault.kind,
        }


def _no_model() -> RequestRefused:
    return RequestRefused(404, "the model does not exist", "NotFoundError", "model")


def _card(model: str) -> dict[str, Any]:
    return {"id": model, "object": "model", "created": 0, "owned_by": "stand-in"}


__all__ = ["StandInEngine"]
