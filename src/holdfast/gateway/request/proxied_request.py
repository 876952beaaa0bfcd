"""Serves one client's request: body, decision, attempts on replicas, judgement, answer.

Read from top to bottom, as a request goes:

    begin, read         the body is read and checked; refused here, or
    decide              handed to the flow, which queues it and chooses a replica
    dispatch            an attempt on one replica: first, repeated, or continuing another
    show, relay         a stream's content goes to the client as it comes
    finish              the flow's result: the answer is judged, and another model asked, or
    _succeed, _fail     the one answer: whole, the end of a stream, or an error

The route and the tenant were found before (``request_driver``). The flow decides; this module
handles the bytes. The text that is kept so that another replica can continue an answer is bounded,
is never logged and is dropped with the request.
"""

from collections.abc import Mapping
from typing import Final

from holdfast.core.failure import Kind
from holdfast.core.messages import Abort, ClientGone, Dispatch, Ended, Finish, Spent
from holdfast.core.plan.cost import DIRECT
from holdfast.core.request.answer_policy import failed_check, may_escalate
from holdfast.core.request.flow import Flow
from holdfast.core.types import Request
from holdfast.gateway.api import errors, routes
from holdfast.gateway.api.answers import Answer, AnswerKind
from holdfast.gateway.api.authentication import Tenant
from holdfast.gateway.api.bodies import ParsedRequest, parse
from holdfast.gateway.api.chunks import StreamApi
from holdfast.gateway.api.continuation import (
    CannotContinueError,
    Seam,
    continued_body,
    said_again,
    text_of,
)
from holdfast.gateway.api.degradation import capped, may_cap, may_degrade, needs_of
from holdfast.gateway.api.engine_body import upstream_body
from holdfast.gateway.api.errors import ApiError
from holdfast.gateway.api.response_ids import KeptResponse, ResponseIds
from holdfast.gateway.api.routes import Api, Route
from holdfast.gateway.api.virtual_models import ModelPath, RequestFacts, is_json
from holdfast.gateway.http.interfaces import Exchange
from holdfast.gateway.http.sse import MalformedStreamError, framed
from holdfast.gateway.request.attempts import Attempt, BytesAttempt, WholeAttempt
from holdfast.gateway.request.comparisons import Comparisons
from holdfast.gateway.request.flow_port import FlowPort
from holdfast.gateway.request.settings import Settings
from holdfast.gateway.request.stream_attempts import ResponseAttempt, StreamAttempt
from holdfast.gateway.request.targets import Target
from holdfast.gateway.request.token_ratios import TokenRatios
from holdfast.gateway.telemetry.counters import Counters
from holdfast.gateway.telemetry.observer import Observer
from holdfast.gateway.telemetry.trace import Trace

_JSON: Final = b"content-type: application/json\r\n"
_EVENTS: Final = b"content-type: text/event-stream\r\ncache-control: no-cache\r\n"
_COMMENT: Final = b": waiting for the model\n\n"
_COMMENT_READY: Final = b": waiting for the model, which may be ready in %d s\n\n"
_LAST: Final = b"data: [DONE]\n\n"
_GENERATED: Final = frozenset({AnswerKind.CHAT, AnswerKind.COMPLETIONS, AnswerKind.RESPONSES})
_LEFT: Final = frozenset({Kind.CLIENT_GONE, Kind.DEADLINE})  # ends that the flow cannot count
_RESPONSE: Final = Api.RESPONSE
_PREVIOUS: Final = "previous_response_id"
_OTHER_MODEL: Final = (
    "previous_response_id names an answer of another model. Name the model that gave it, or send"
    " the whole conversation as input."
)
_STREAM_APIS: Final = {Api.CHAT: StreamApi.CHAT, Api.COMPLETIONS: StreamApi.COMPLETIONS}


class RequestContext:
    """What all requests of a gateway process share; one object, not changed per request.

    Holds the port to the flow, the call targets by replica id, the observer, the learned bytes per
    token and the background comparisons.
    """

    __slots__ = ("comparisons", "observer", "port", "ratios", "response_ids", "targets")

    def __init__(
        self,
        port: FlowPort,
        targets: Mapping[str, Target],
        observer: Observer,
        ratios: TokenRatios,
        comparisons: Comparisons,
        response_ids: ResponseIds,
    ) -> None:
        self.port = port
        self.targets = targets  # by replica; follows the config
        self.observer = observer
        self.ratios = ratios
        self.comparisons = comparisons
        self.response_ids = response_ids


class ProxiedRequest:
    """One client's request from its complete body to its one answer, over any number of attempts.

    Listens to the client's exchange, and carries out what the flow decides: it starts and cancels
    attempts on replicas, relays content, and answers or fails. It makes no routing or retry
    decision itself.
    """

    __slots__ = (
        "_answer",
        "_context",
        "_continued",
        "_degradable",
        "_empty",
        "_held",
        "_keeps",
        "_memory",
        "_memory_left",
        "_path",
        "_said_again",
        "_said_least",
        "_said_tokens",
        "answer_bytes_max",
        "ask",
        "attempts",
        "capped_at",
        "died_at",
        "end_doubted",
        "escalated",
        "exchange",
        "finish_reason",
        "first_at",
        "flow",
        "observer",
        "port",
        "refusal",
        "repetition_rejected",
        "request",
        "request_id",
        "route",
        "serial",
        "slow",
        "spent",
        "tenant",
        "trace",
        "via",
    )
    ask: ParsedRequest
    request: Request

    def __init__(
        self,
        context: RequestContext,
        exchange: Exchange,
        route: Route,
        tenant: Tenant,
        serial: int,
        request_id: bytes,
    ) -> None:
        self._context = context
        self.port = port = context.port
        self.observer = context.observer
        self.exchange = exchange
        self.route = route
        self.tenant = tenant
        self.request_id = request_id
        self.flow: Flow | None = None  # None = not there yet
        self.serial = serial  # the flow's name for it
        self.attempts: dict[int, Attempt] = {}
        limits = port.settings.stream
        self.answer_bytes_max = limits.answer_bytes_max
        self.finish_reason: str | None = None
        self.refusal: tuple[int, bytes] | None = None  # an engine's own 4xx
        self.died_at = 0  # when a connection last died under it
        self.slow = False
        self.via = DIRECT  # or the virtual name that was asked for
        self.spent = ("", 0, 0)  # model and tokens of its last answer, of a virtual name's
        self.first_at = 0  # when the client was shown the beginning of its answer
        self.trace: Trace | None = None  # its attempts, where it is traced
        self.escalated = False  # a second model was asked
        self.end_doubted = False  # of a continued answer, without a word; the next such is believed
        self.repetition_rejected = False  # one token over and over; the next such is believed
        self.capped_at = 0  # tokens, where the ladder capped the answer; 0 = as long as asked for
        self._degradable = False  # the ladder of its path may answer with another model
        self._path: ModelPath | None = None
        self._answer: tuple[bytes, Answer, bytes] | None = None
        self._keeps = False  # payloads are remembered
        self._memory: list[bytes] = []  # those the client has seen, for whoever goes on or compares
        self._memory_left = limits.memory_bytes_max
        self._said_tokens = 0  # of attempts that ended after they had shown content
        self._said_least = 0  # of those, by what was counted and not estimated
        self._said_again = 0  # of those, as the attempt that goes on counts them once more
        self._continued = 0
        self._held: list[bytes] | None = None  # payloads kept until the answer was checked
        self._empty = b""  # the events of the last stream that ended without a word

    # --- read the body ---------------------------------------------------------------------------

    def begin(self) -> None:
        """Check a request whose body is complete; hand it to the flow, or answer an error."""
        if self.read():
            self.decide()

    def read(self) -> bool:
        """Parse and check the complete body; return False if the request was refused.

        A refusal (bad body, model unknown to this tenant, blocked content) is answered and counted
        here. Otherwise the parsed request is stored in ``ask``; the flow is not told yet: see
        ``decide``.
        """
        exchange, port = self.exchange, self.port
        settings = port.settings
        try:
            ask = parse(
                self.route,
                exchange.headers.get(b"content-type", b""),
                exchange.path,
                exchange.body,
                settings.limits,
                prefix_blocks=settings.prefix_blocks,
                headers=exchange.headers,
            )
            path, degradable = None, False
            if ask.api is not Api.RESPONSE:  # its id leads to a model
                path = _resolve(settings, ask, self.tenant, exchange.headers)
                degradable = bool(path and path.ladder) and may_degrade(ask, exchange.headers)
            if ask.response_id:
                path = self._find_kept(ask, path)
                degradable = False  # only its holder can answer
            deadly = self.observer.deadly
            if deadly.blocked and deadly.refuses(ask, port.now_ns()):
                raise errors.blocked()
        except ApiError as error:
            refuse(exchange, error, self.request_id, self.observer.counters)
            return False
        self.ask = ask
        self._path = path
        self._degradable = degradable
        if path is not None:
            self.via = ask.model
            if path.checks and ask.stream:
                self._held = []
        return True

    def _find_kept(self, ask: ParsedRequest, path: ModelPath | None) -> ModelPath | None:
        """Find the replica that keeps the answer a request is about; return the path to its model.

        Raises ``ApiError`` for an answer that this tenant never got, or that another model gave.
        """
        tenant, route = self.tenant, self.route
        param = None if route.api is _RESPONSE else _PREVIOUS
        kept = self._context.response_ids.read(ask.response_id, tenant.name)
        if kept is None:
            raise errors.unknown_response(param)
        target = self._context.targets.get(kept.replica_id)
        if target is None:
            raise errors.from_code(404, "response_lost", "")
        ask.kept = kept
        if param is None:
            if b"stream=true" in self.exchange.query:
                raise errors.invalid("stream is not supported here; leave it out.", "stream")
            ask.model = target.model
            return None
        if path is None:
            leads = ask.model == target.model
        else:
            leads = self.port.settings.virtual.leads_to(ask.model, target.model)
        if not leads:
            raise errors.invalid(_OTHER_MODEL, param)
        ask.keep_to(kept.engine_id)
        if path is None:
            return None
        return ModelPath(target.model, (), None, "the conversation began with it", "")

    def list_models(self) -> None:
        """Answer with the list of models that this tenant may use, or with the one in the path.

        Virtual names are listed, too. Answered at once, without the flow; a name that does not
        exist for this tenant is refused and counted.
        """
        exchange, tenant = self.exchange, self.tenant
        names = [name for name in self.port.settings.public_models if tenant.may_use(name)]
        try:
            body = routes.models_body(self.route, exchange.path, names)
        except ApiError as error:
            refuse(exchange, error, self.request_id, self.observer.counters)
            return
        exchange.listener = None
        exchange.respond(200, _JSON + b"x-request-id: %b\r\n" % self.request_id, body)

    # --- decide ----------------------------------------------------------------------------------

    def decide(self) -> None:
        """Build the flow's ``Request`` from what ``read`` parsed, and hand it to the flow.

        The model is the one that the client named, or the one chosen for a virtual name. Called a
        second time, with a new serial, when the answer failed a check and a stronger model is
        asked.
        """
        ask, tenant, path = self.ask, self.tenant, self._path
        port, context = self.port, self._context
        model = ask.model if path is None else path.model
        now = port.now_ns()
        continuable = ask.continuable and port.settings.continues(self.route.api, model)
        self._keeps = continuable
        if ask.stream and context.comparisons.models:
            self._keeps = continuable or context.comparisons.keeps(ask, model)
        deadline = port.deadline(model, tenant.priority, now)
        prompt_tokens = context.ratios.of(model).prompt.tokens(ask.prompt_bytes)
        self.request = request = Request(
            self.serial, model, now, deadline, prompt_tokens, ask.max_tokens, not ask.stream
        )
        request.choices = ask.choices
        request.tenant = tenant.name
        request.priority = tenant.priority
        request.prefix = ask.prefix
        request.session = ask.session
        request.hedgeable = ask.hedgeable
        if tenant.by_runner:  # it may cost one replica, and the runner finds out whose fault it was
            request.deaths_max = 1
            request.hedgeable = False
        request.continuable = continuable
        request.regions = tenant.region_names
        request.degradable = self._degradable
        if self._degradable:
            request.needs, request.cappable = needs_of(ask), may_cap(ask)
        request.stores = ask.stores
        request.content = ask.body
        request.path = self.route.task
        if ask.kept is not None:
            request.holder = ask.kept.replica_id
        self.observer.saw_submission(self)
        port.open(self, now, streams=ask.stream)

    # --- the client, while it waits --------------------------------------------------------------

    def on_client_gone(self, *, by_itself: bool = True) -> None:
        """Tell the flow that the client left, so that it cancels all attempts.

        Nothing before ``decide``. ``by_itself``: the gateway did not part from it.
        """
        if self.flow is not None:
            generates = by_itself and self.route.answer in _GENERATED
            self.port.tell(self.flow, ClientGone(self.serial, generates))

    def on_client_slow(self) -> None:
        """Stop reading from the replicas that answer, until ``on_client_ready``."""
        self.slow = True
        for attempt in self.attempts.values():
            attempt.pause()

    def on_client_ready(self) -> None:
        """Read from the replicas again; the pause does not count as their silence."""
        self.slow = False
        now = self.port.now_ns()
        for attempt in self.attempts.values():
            attempt.resume(now)

    # --- attempt ---------------------------------------------------------------------------------

    def dispatch(self, action: Dispatch) -> None:
        """Send the request to the replica that the flow chose, anew or to continue a stream.

        Where the replica is not in the config, or the text so far cannot be continued, nothing is
        sent and the flow is told in the next turn of the event loop that the attempt ended.
        """
        target = self._context.targets.get(action.replica_id)
        if target is None:  # the view is ahead of the config; the flow will try another
            gone = Ended(self.serial, action.attempt, Kind.REFUSED)
            self.port.soon(self.flow, gone)
            return
        if action.output_max and not self.capped_at:
            self.capped_at = action.output_max
            self.ask = capped(self.ask, action.output_max)
        ask = self.ask
        attempt: Attempt
        if action.resume_tokens:
            try:
                attempt, body = self._continuation(action, target)
            except (CannotContinueError, MalformedStreamError):
                self.cannot_continue()
                # Not the fault of the replica that was to go on: the flow ends it with an error.
                self.port.soon(self.flow, Ended(self.serial, action.attempt, Kind.DRAINED))
                return
        else:
            attempt = self._attempt(action, target)
            body = self._body(target)
        self.attempts[action.attempt] = attempt
        attempt.started = attempt.last = self.port.now_ns()
        route = self.route
        if route.api is _RESPONSE and ask.kept is not None:
            path = routes.response_path(self.exchange.path, ask.kept.engine_id)
        else:
            path = route.upstream_path(target.served_as, ask.version)
        headers = ask.type_line + target.headers + ask.headers
        if self.trace is not None:
            headers += self.trace.line(action.attempt)
        attempt.call = target.upstream.call(attempt, route.method, path, headers, body)
        if self.slow:
            attempt.pause()

    def _attempt(self, action: Dispatch, target: Target) -> Attempt:
        ask = self.ask
        if not ask.stream:
            if ask.opaque:
                return BytesAttempt(self, action, target)
            return WholeAttempt(self, action, target)
        api = _STREAM_APIS.get(self.route.api)
        if api is None:
            return ResponseAttempt(self, action, target)
        return StreamAttempt(self, action, target, api, None)

    def _continuation(self, action: Dispatch, target: Target) -> tuple[StreamAttempt, bytes]:
        """An attempt that goes on where the client's text ends."""
        ask, memory = self.ask, self._memory
        api = _STREAM_APIS[self.route.api]
        said = text_of(memory, api)
        self._said_again = said_again(memory, api)
        limit, least = ask.max_tokens, self._said_least
        dialect = target.dialect
        body = continued_body(
            self._body(target),
            api,
            dialect.chat_continuation,
            said,
            max(0, least - self._said_again),
            dialect.prompt_continuation,
        )
        self._continued += 1
        seam = Seam(
            memory[0],
            said,
            self.said_tokens,
            ask.stop,
            self._continued,
            limit,
            max(0, limit - least),
        )
        return StreamAttempt(self, action, target, api, seam), body

    def _body(self, target: Target) -> bytes:
        """The request as this engine wants it."""
        ask, dialect = self.ask, target.dialect
        if not ask.stream:
            return upstream_body(ask, target.served_as, ask_usage=False, running_usage=False)
        # Whether a continuation would have to know how many tokens were said before it.
        counts = self.request.continuable and (ask.max_tokens > 0 or ask.wants_usage)
        return upstream_body(
            ask,
            target.served_as,
            ask_usage=dialect.final_usage,
            running_usage=dialect.running_usage and counts,
        )

    def abort(self, action: Abort) -> None:
        """Cancel an attempt because the flow says so, and record its end with the observer.

        The flow gets no ``Ended`` for it. If the client left or its deadline passed, the tenant is
        charged for the tokens that had been sent. Unknown attempts are ignored.
        """
        attempt = self.attempts.get(action.attempt)
        if attempt is not None:
            said = attempt.tokens()
            if attempt.begun:
                self.broke_off(said, attempt.counted())
                if action.kind in _LEFT and self.port.metered:
                    self._charge(said, attempt.read_tokens())
            self.observer.saw_end(attempt, action.kind, said)
            attempt.cancel()

    def _charge(self, said: int, read: int) -> None:
        """Charge the tenant for what its client got of an answer that it did not wait for."""
        more = said if not read else said + read - self.request.prompt_tokens
        self.port.soon(self.flow, Spent(self.request.tenant, more))

    def forget(self, attempt: Attempt) -> None:
        """Remove an attempt that is over from this request and from the watch for silence."""
        self.attempts.pop(attempt.number, None)
        self.port.streaming.pop(attempt, None)

    def broke_off(self, tokens: int, least: int) -> None:
        """Add to ``said_tokens`` what the client got from an attempt that ended early.

        ``least`` of them were counted, and lower the limit of a continuation. Tokens of earlier
        attempts that the engine counted again for a continuation are subtracted.
        """
        self._said_tokens = max(0, self._said_tokens + tokens - self._said_again)
        self._said_least = max(0, self._said_least + least - self._said_again)
        self._said_again = 0

    @property
    def said_tokens(self) -> int:
        """How many tokens the client got from attempts that ended early.

        The present attempt's not included.
        """
        return max(0, self._said_tokens - self._said_again)

    def cannot_continue(self) -> None:
        """Rule out continuing this answer elsewhere, and drop the text kept for it.

        Called when the answer holds more than plain text, exceeds the memory limit or cannot be
        rebuilt. The present attempt goes on.
        """
        self.request.continuable = self._keeps = False
        self._memory.clear()

    def learn(self, prompt_tokens: int, text_bytes: int, tokens: int) -> None:
        """Use an engine's token counts to improve later token estimates for the model."""
        self._context.ratios.learn(
            self.request.model,
            self.serial,
            self.ask.prompt_bytes,
            prompt_tokens,
            text_bytes,
            tokens,
        )

    def tokens_of(self, model: str, text_bytes: int) -> int:
        """Return an estimate of the tokens in so many bytes of this model's answers."""
        return self._context.ratios.of(model).answer.tokens(text_bytes)

    def move(self, replica_id: str, now: int, *, stalled: bool) -> None:
        """Fail the streams on a replica that is leaving, so that the flow continues them elsewhere.

        Only attempts that have begun, or that continue another: those of which the client has seen
        nothing are moved by the flow itself. ``stalled``: only streams that are stuck.
        """
        for attempt in list(self.attempts.values()):
            if attempt.replica_id != replica_id or attempt.over:
                continue
            if not (attempt.begun or attempt.continues):
                continue
            kind = attempt.stuck(now) if stalled else Kind.DRAINED
            if kind is not None:
                attempt.fail(kind, attempt.tokens())

    def cut(self) -> None:
        """End the request now, because the gateway stops and its time to drain is over.

        One that still waits in the queue gets a 503; attempts under way are cancelled and end as
        past their deadline.
        """
        self.request.continuable = False
        if not self.attempts:
            self._give_up()
            self.port.tell(self.flow, ClientGone(self.serial))
        for attempt in list(self.attempts.values()):
            attempt.cancel()
            self.port.tell(self.flow, Ended(self.serial, attempt.number, Kind.DEADLINE))

    # --- what attempts bring ---------------------------------------------------------------------

    def take_answer(self, body: bytes, answer: Answer, content_type: bytes) -> None:
        """Keep a whole (not streamed) answer with its parsed form; ``finish`` sends it or drops it.

        A later answer replaces it.
        """
        self._answer = (body, answer, content_type)

    def with_our_ids(self, text: bytes, ids: tuple[str, ...], replica_id: str) -> bytes:
        """Return JSON of a replica with the engine's ids of kept answers replaced by ours.

        A whole string of JSON between quotes is found by its bytes: within another string its
        quotes would be escaped.
        """
        for engine_id in ids:
            kept = KeptResponse(replica_id, engine_id)
            name = self._context.response_ids.name(kept, self.tenant.name)
            text = text.replace(b'"%b"' % engine_id.encode(), b'"%b"' % name.encode())
        return text

    def took_empty(self, events: bytes) -> None:
        """Keep the events of a stream without content, which are sent if that is the answer."""
        self._empty = events

    def show(self, attempt: Attempt, content_type: bytes) -> None:
        """Send the 200 head of the client's response, unless sent; it names this attempt's replica.

        Records the time of the first content and ends the waiting comments; writes no content
        itself. Does nothing while the answer is held for the check of a virtual model.
        """
        if self._held is not None:
            return  # kept until it was checked; meanwhile signs of life go on
        self.port.answers(self)
        if not self.first_at:
            self.observer.saw_first(self, attempt)
        if self.exchange.started:
            return
        head = b"content-type: %b\r\ncache-control: no-cache\r\n" % content_type
        self.exchange.start(200, head + self._labels(attempt.target, attempt.number + 1))

    def relay(self, event: bytes, payload: bytes) -> None:
        """Send one event to the client; ``payload`` is the data within ``event``.

        While the answer is held for a check, it is stored instead. The payload is also kept if the
        answer may be continued or compared.
        """
        if self._keeps:
            self._remember(payload)
        if self._held is not None:
            self._held.append(payload)
        else:
            self.exchange.write(event)

    def relay_payloads(self, payloads: list[bytes]) -> None:
        """Send payloads to the client, each framed as one event; like ``relay`` otherwise."""
        if not payloads:
            return
        if self._keeps:
            for payload in payloads:
                self._remember(payload)
        if self._held is not None:
            self._held += payloads
        else:
            self.exchange.write(b"".join(map(framed, payloads)))

    def _remember(self, payload: bytes) -> None:
        self._memory.append(payload)
        self._memory_left -= len(payload)
        if self._memory_left < 0:
            self.cannot_continue()

    def _give_up(self) -> None:
        """Answer 503 to a request that still waits in the queue, because the gateway stops."""
        leaving = Finish(self.serial, 503, "overloaded", "the gateway leaves", retry_after_s=1.0)
        self.exchange.listener = None
        self._fail(leaving)

    def sign_of_life(self) -> None:
        """Send a comment line to a client that waits for its stream, so that it keeps waiting.

        Begins the 200 response if none was begun, so that a later failure can only be an event. The
        comment says in how many seconds the model may be ready, if known.
        """
        exchange = self.exchange
        if not exchange.started:
            exchange.start(200, _EVENTS + b"x-request-id: %b\r\n" % self.request_id)
        ready_in_s = None
        if self.flow is not None:
            ready_in_s = self.flow.ready_in_s(self.serial, self.port.now_ns())
        exchange.write(_COMMENT if ready_in_s is None else _COMMENT_READY % round(ready_in_s))

    # --- judge -----------------------------------------------------------------------------------

    def finish(self, finish: Finish) -> None:
        """Carry out the flow's result: send the answer or the error, or ask a stronger model first.

        A stronger model is asked where a virtual name's check fails and nothing was sent. Nothing
        is sent to a client that left (499). A complete answer may be compared with a second
        replica's afterwards.
        """
        if self.ask.stream:
            self.port.answers(self)
        self.observer.saw_finish(self, finish)
        if finish.status == 499:
            self.exchange.listener = None
            return
        if finish.status == 200 and self._path is not None and self._escalates(self._path, finish):
            return
        self.exchange.listener = None
        if finish.status == 200:
            self._succeed(finish)
            comparisons = self._context.comparisons
            if comparisons.models:
                comparisons.consider(self, finish)
        else:
            self._fail(finish)

    def said(self) -> tuple[str, str | None]:
        """Return the text of the complete answer and its finish reason, for a comparison.

        The text is empty if it was not kept, which depends on the request and on its length.
        """
        if not self.ask.stream:
            return ("", None) if self._answer is None else self._answer[1].said
        memory = self._memory if self._keeps else ()
        return text_of(memory, _STREAM_APIS[self.route.api]), self.finish_reason

    def _escalates(self, path: ModelPath, finish: Finish) -> bool:
        """Whether a check of the cheap answer failed and the strong model is asked instead."""
        stronger = path.escalate
        if stronger is None or not may_escalate(stronger, shown=self.exchange.started):
            return False
        if self._held is not None:
            text = text_of(self._held, _STREAM_APIS[self.route.api])
            reason = self.finish_reason
        elif self._answer is not None:
            text, reason = self._answer[1].text, self._answer[1].finish_reason
        else:
            return False
        failed = failed_check(
            path.checks,
            finish_reason=reason,
            text=text,
            json_expected=self.ask.json_expected,
            is_json=is_json,
        )
        if failed is None:
            return False
        self.observer.saw_escalation(self, failed)
        reason = f"the answer of {finish.model} failed a check: {failed}"
        self._path, self._degradable = ModelPath(stronger, (), None, reason, ""), False
        self._held = None
        self._answer = None
        self._memory, self._said_tokens, self._said_least, self._said_again = [], 0, 0, 0
        self._memory_left = self.port.settings.stream.memory_bytes_max
        self.finish_reason = None
        self.escalated = True
        self.serial = self.port.next_serial()
        self.decide()
        return True

    # --- answer ----------------------------------------------------------------------------------

    def _succeed(self, finish: Finish) -> None:
        exchange = self.exchange
        target = self._context.targets.get(finish.replica_id)
        if not self.ask.stream and self._answer is not None:
            body, _, content_type = self._answer
            head = _type_line(content_type) + self._labels(target, finish.attempts, finish)
            exchange.respond(200, head, body)
            return
        if not exchange.started:
            exchange.start(200, _EVENTS + self._labels(target, finish.attempts, finish))
        if self._held:
            held, self._held = self._held, None
            exchange.write(b"".join(map(framed, held)))
        elif not self.first_at:  # nobody had a word to say
            exchange.write(self._empty)
        if self.route.api in _STREAM_APIS:
            exchange.write(_LAST)
        exchange.end()

    def _fail(self, finish: Finish) -> None:
        exchange = self.exchange
        error = errors.from_finish(finish, self.refusal)
        if exchange.started:
            if self.ask.opaque:
                exchange.abort()  # no event can stand in such bytes: only a broken end is honest
                return
            exchange.fail(errors.error_event(error, self.request_id.decode()))
            return
        head = _JSON + errors.error_headers(error) + self._labels(None, finish.attempts, finish)
        exchange.respond(error.status, head, errors.error_body(error, self.request_id.decode()))

    def _labels(self, target: Target | None, attempts: int, finish: Finish | None = None) -> bytes:
        """The response headers that say who answered and how."""
        label = b"" if target is None else target.label
        lines = b"x-request-id: %b\r\nx-holdfast-attempts: %d\r\n%b" % (
            self.request_id,
            attempts,
            label,
        )
        if target is not None and target.model != self.request.model:
            lines += b"x-holdfast-degraded: %b\r\n" % target.model.encode()
        if self.capped_at and target is not None:
            lines += b"x-holdfast-capped: %d\r\n" % self.capped_at
        if finish is not None and finish.continued:
            lines += b"x-holdfast-continued: %d\r\n" % finish.continued
        if self._path is not None:
            lines += b"x-holdfast-model: %b\r\n" % self.request.model.encode()
        if self.port.metered:
            lines += self._rate_limits()
        return lines

    def _rate_limits(self) -> bytes:
        """The headers that tell a tenant what is left; none for who has no limit."""
        quota = self.port.flow.quota(self.tenant.name)
        if quota is None:
            return b""
        return errors.rate_limit_headers(quota.headers(self.port.now_ns()))


def refuse(exchange: Exchange, error: ApiError, request_id: bytes, counters: Counters) -> None:
    """Answer with an error before the request reaches the flow, and count it by its code."""
    counters.refused(error.status, error.code)
    exchange.listener = None
    head = _JSON + b"x-request-id: %b\r\n" % request_id
    body = errors.error_body(error, request_id.decode())
    exchange.respond(error.status, head + errors.error_headers(error), body)


def _resolve(
    settings: Settings, ask: ParsedRequest, tenant: Tenant, headers: Mapping[bytes, bytes]
) -> ModelPath | None:
    """The path of a virtual name; refuses models that do not exist for this tenant."""
    virtual = settings.public_models.get(ask.model)
    if virtual is None or not tenant.may_use(ask.model):
        raise errors.unknown_model()
    if not virtual:
        return None
    facts = RequestFacts(
        tenant=tenant.name,
        prompt_tokens=ask.prompt_tokens,
        tools=ask.tools,
        json=ask.json_expected,
        stream=ask.stream,
        headers=headers,
    )
    return settings.virtual.resolve(ask.model, facts)


def _type_line(content_type: bytes) -> bytes:
    """The header line of a type; nearly always the same."""
    if content_type == b"application/json":
        return _JSON
    return b"content-type: %b\r\n" % content_type


__all__ = ["ProxiedRequest", "RequestContext", "refuse"]
