"""One attempt of a request on one replica: receives the response, judges it, reports to the flow.

    WholeAttempt    collects a whole answer and judges it before the client gets it
    StreamAttempt   reads every event, holds the first ones back, relays the rest
                    (stream_attempts.py)
    BytesAttempt    relays what cannot be read, such as audio

An attempt knows what was received; the flow decides what becomes of the request. So each attempt
reports at most three things to the flow: first content, silence, and its end with what was
observed.
"""

from abc import ABC, abstractmethod
from typing import Final, Protocol

from holdfast.core.failure import Kind, kind_of_status
from holdfast.core.health.answers.degenerate import (
    DegenerateConfig,
    DegenerateDetector,
    suspicious_opening,
)
from holdfast.core.messages import (
    Answered,
    Dispatch,
    Ended,
    FirstContent,
    Measured,
    Quiet,
    Silent,
)
from holdfast.core.request.answer_policy import (
    Opening,
    empty_is_asked_for,
    judge_opening,
    kind_of_error_status,
    kind_when_stalled,
)
from holdfast.core.request.flow import Flow
from holdfast.gateway.api.answers import Answer, MalformedAnswerError, read_answer
from holdfast.gateway.http.interfaces import Call
from holdfast.gateway.request.flow_port import FlowPort
from holdfast.gateway.request.targets import Target
from holdfast.gateway.telemetry.answer_statistics import measured_logprob, measured_norm
from holdfast.gateway.telemetry.observed_request import ObservedRequest
from holdfast.gateway.telemetry.observer import Observer
from holdfast.gateway.telemetry.output_numbers import measured_score, measured_tensors

_ERROR_BYTES_MAX: Final = 65_536  # of an engine's error; only a message is taken from it
_TAIL: Final = 60  # characters: every cycle of up to six, and many longer, fits into it evenly
_JSON_BYTES: Final = b"inference-header-content-length"  # KServe: how much of a body is JSON


class AttemptOwner(ObservedRequest, Protocol):
    """The request of an attempt, as attempts see it; implemented by ``ProxiedRequest``."""

    flow: Flow | None
    attempts: "dict[int, Attempt]"
    finish_reason: str | None
    refusal: tuple[int, bytes] | None
    repetition_rejected: bool
    end_doubted: bool

    @property
    def port(self) -> FlowPort:
        """The port through which events are reported to the flow; shared by all requests."""

    @property
    def observer(self) -> Observer:
        """The observer that counts and records events."""

    @property
    def serial(self) -> int:
        """The number that identifies the request in the flow."""

    @property
    def answer_bytes_max(self) -> int:
        """The longest whole answer that is accepted, in bytes; a longer one fails as malformed."""

    def forget(self, attempt: "Attempt") -> None:
        """Remove an attempt that is over from the request and from the watch for silence."""

    def broke_off(self, tokens: int, least: int) -> None:
        """Add the tokens that the client got from an attempt that ended after its first content.

        ``tokens`` may be an estimate; ``least`` were counted.
        """

    def cannot_continue(self) -> None:
        """Rule out continuing the answer on another replica; the present attempt goes on."""

    def learn(self, prompt_tokens: int, text_bytes: int, tokens: int) -> None:
        """Use an engine's token counts to improve later token estimates for the model."""

    def tokens_of(self, model: str, text_bytes: int) -> int:
        """Return an estimate of the tokens in so many bytes of this model's answers."""

    def take_answer(self, body: bytes, answer: Answer, content_type: bytes) -> None:
        """Keep a whole answer with its parsed form until the flow decides whether it is sent."""

    def took_empty(self, events: bytes) -> None:
        """Keep the events of a stream without content, which are sent if that is the answer."""

    def with_our_ids(self, text: bytes, ids: tuple[str, ...], replica_id: str) -> bytes:
        """Return JSON of a replica with the engine's ids of kept answers replaced by the client's.

        In those ids the replica is named: see ``api.response_ids``.
        """

    def show(self, attempt: "Attempt", content_type: bytes) -> None:
        """Send the head of the client's response, if none was sent; writes no content."""

    def relay(self, event: bytes, payload: bytes) -> None:
        """Send one event to the client, or hold it for a check.

        ``payload`` is the data within ``event``.
        """

    def relay_payloads(self, payloads: list[bytes]) -> None:
        """Send payloads to the client, each framed as one event, or hold them for a check."""


class Attempt(ABC):
    """Base of all attempts: one call of a request to one replica, and its report to the flow.

    Collects the body and reads error responses; subclasses judge and pass on the answer.
    """

    __slots__ = (
        "_failing",
        "_pieces",
        "_retry_after_s",
        "_size",
        "begun",
        "call",
        "continues",
        "excused",
        "first",
        "last",
        "number",
        "over",
        "paused",
        "proxied",
        "silence_max",
        "started",
        "status",
        "target",
        "worst",
    )

    def __init__(self, proxied: AttemptOwner, dispatch: Dispatch, target: Target) -> None:
        self.proxied = proxied
        self.number = dispatch.attempt
        self.target = target
        self.silence_max = dispatch.silence_max
        self.call: Call | None = None
        self.status = 0
        self.continues = False  # it goes on where another attempt broke off
        self.begun = False  # content came, and the flow knows
        self.over = False  # its end was reported, or nobody wants to hear of it
        self.paused = False  # its client reads too slowly: silence is not the replica's
        self.started = 0  # when it was sent
        self.first = 0  # when its first content came
        self.last = 0  # when the last byte came, or the flow had patience with its silence
        self.excused = 0  # the last time it had
        self.worst = 0  # longest silence between two pieces of content
        self._failing = False  # the status is an error: the body is a message
        self._pieces: list[bytes] = []
        self._size = 0
        self._retry_after_s = 0.0

    # --- what the replica says -------------------------------------------------------------------

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        """Take the response status; anything but 2xx makes the body an error message.

        Keeps the Retry-After of an error. Nothing is reported to the flow yet.
        """
        self.status = status
        if status != 200:
            if 200 < status < 300:
                return
            self._failing = True
            self._retry_after_s = _seconds(headers.get(b"retry-after"))

    def on_data(self, data: bytes) -> None:
        """Collect a piece of the body.

        A whole answer beyond ``answer_bytes_max`` fails as malformed. Of an error body only the
        first 64 KiB are kept.
        """
        if self.over:
            return
        self._size += len(data)
        if self._size > (_ERROR_BYTES_MAX if self._failing else self.proxied.answer_bytes_max):
            if self._failing:
                return
            self.fail(Kind.MALFORMED)
            return
        self._pieces.append(data)

    def on_end(self) -> None:
        """Judge the complete response and report the end of the attempt to the flow.

        An error status decides the failure here; answers are judged by the subclass. Nothing if the
        attempt is over.
        """
        if self.over:
            return
        if self._failing:
            self._refused()
        else:
            self._complete()

    def on_failure(self, kind: Kind, detail: str) -> None:  # noqa: ARG002 - the kind says it all
        """End the attempt with the failure of its connection, unless it is over.

        ``detail`` is not used.
        """
        if not self.over:
            self._broken(kind)

    @abstractmethod
    def _complete(self) -> None:
        """Judge a response that came whole."""

    def _broken(self, kind: Kind) -> None:
        self.end(kind)

    def _refused(self) -> None:
        status, body = self.status, b"".join(self._pieces)
        proxied, dialect = self.proxied, self.target.dialect
        flow, canary_paths = proxied.flow, proxied.port.settings.canary_paths
        kind = kind_of_error_status(
            status,
            retry_after=self._retry_after_s > 0,
            says_busy=dialect.says_busy(status, body),
            serves_path=flow is None
            or flow.expects_path(
                proxied.serial, self.number, canary_paths.get(self.target.model, "")
            )
            or dialect.says_no_model(status, body),
        )
        if kind is Kind.BAD_REQUEST:
            proxied.refusal = (status, body)
        self.end(kind, retry_after_s=self._retry_after_s)

    # --- what the flow is told -------------------------------------------------------------------

    def content(self, *, alike: bool = False) -> bool:
        """Report the first content to the flow, which then aborts rival attempts of the request.

        ``alike``: an earlier attempt was rejected for the same. Return whether this attempt may go
        on; False: it was ended upon the report. To be called once.
        """
        self.begun = True
        proxied = self.proxied
        self.first = proxied.port.now_ns()
        proxied.port.tell(proxied.flow, FirstContent(proxied.serial, self.number, alike))
        return not self.over

    def end(self, kind: Kind | None, tokens: int = 0, retry_after_s: float = 0.0) -> None:
        """Report the end of this attempt to the flow and the observer; ``kind`` None: success.

        Does not cancel the call: ``fail`` does. ``tokens``: those that the client got.
        ``retry_after_s``: how long the replica asked to be left alone, 0 if it did not.
        """
        self.over = True
        proxied = self.proxied
        proxied.forget(self)
        event = Ended(proxied.serial, self.number, kind, tokens, self.worst, retry_after_s)
        event.prompt_tokens = self.read_tokens()
        event.status = self.status
        if kind is None:
            event.finish = proxied.finish_reason or ""
            event.measured = self.measured()
        proxied.observer.saw_end(self, kind, tokens)
        if kind is not None and self.begun:
            proxied.broke_off(tokens, self.counted())
        proxied.port.tell(proxied.flow, event)

    def fail(self, kind: Kind, tokens: int = 0) -> None:
        """Cancel the call because of what the replica sent, and report the end with this kind.

        ``tokens``: those of the answer that the client got. The flow may then try another replica.
        """
        if self.call is not None:
            self.call.cancel()
        self.end(kind, tokens)

    def cancel(self) -> None:
        """Cancel the call and forget the attempt; neither the flow nor the observer is told."""
        self.over = True
        self.proxied.forget(self)
        if self.call is not None:
            self.call.cancel()

    def close(self) -> None:
        """Cancel the call if it is still under way; changes and reports nothing else.

        Used for a response that does not end by itself after its last event.
        """
        if self.call is not None:
            self.call.cancel()

    def on_silence(self, now: int) -> None:
        """Handle that nothing came for ``silence_max``: report ``Silent``, and the flow decides.

        An attempt whose answer is complete is ended as a success instead. The time of silence
        starts anew, in case the flow waits on.
        """
        if not self.over and not self.conclude():
            self.last = self.excused = now  # patience, if any, lasts as long again
            proxied = self.proxied
            silent = Silent(proxied.serial, self.number, self.tokens())
            proxied.port.tell(proxied.flow, silent)

    def on_pause(self) -> None:
        """Report to the flow that the stream has paused for long, unless the attempt is over.

        It fails nothing: control then checks the replica.
        """
        if not self.over:
            proxied = self.proxied
            proxied.port.tell(proxied.flow, Quiet(proxied.serial, self.number))

    @property
    def replica_id(self) -> str:
        """The id of the replica that the attempt was sent to."""
        return self.target.replica_id

    def conclude(self) -> bool:
        """End the attempt as a success if its answer is complete though its response is not.

        Return whether it was ended; the base never does.
        """
        return False

    def measured(self) -> Measured | None:
        """Return a statistic of the answer's numbers, such as the mean log probability, or None.

        The base has none.
        """
        return None

    def tokens(self) -> int:
        """Return the answer's tokens so far, by the engine's count or an estimate.

        In the base 0.
        """
        return 0

    def counted(self) -> int:
        """Return how many tokens the answer has so far at the least: counted, never estimated.

        In the base 0.
        """
        return 0

    def prompt_tokens(self) -> int:
        """Return the prompt's tokens: the engine's count if it came, else an estimate."""
        return self.proxied.request.prompt_tokens

    def read_tokens(self) -> int:
        """Return the tokens of the client's prompt by the engine's count; 0 if it did not say.

        No estimate.
        """
        return 0

    def stuck(self, now: int) -> Kind | None:
        """Return how this attempt fails, given that its replica is known to be stalled.

        None while it has not waited long enough, for answers that are not streams, and while its
        client does not read. Ends nothing itself.
        """
        return kind_when_stalled(
            now - self.last,
            self.prompt_tokens(),
            streams=self.proxied.ask.stream,
            begun=self.begun,
            paused=self.paused,
        )

    def empty_asked_for(self, finish_reason: str | None, tokens: int | None) -> bool:
        """Whether the request explains an answer without content, so that no replica is at fault.

        So it is with a stop string, a limit of one token, or constrained tokens.
        """
        ask = self.proxied.ask
        return empty_is_asked_for(
            finish_reason,
            tokens,
            stops=bool(ask.stop),
            max_tokens=ask.max_tokens,
            shaped=ask.shaped,
        )

    def chunks(self) -> int:
        """Return how many chunks with content arrived; 0 in attempts that do not count them."""
        return 0

    def pause(self) -> None:
        """Stop reading from the replica, because the client reads too slowly.

        Silence is not counted then.
        """
        if self.call is not None and not self.paused:
            self.paused = True
            self.call.pause()

    def resume(self, now: int) -> None:
        """Read from the replica again; the pause does not count as the replica's silence."""
        if self.call is not None and self.paused:
            self.paused = False
            self.last = now
            self.call.resume()


class WholeAttempt(Attempt):
    """Collects an answer that is not streamed, and judges it before the client gets any of it.

    Empty, repeating, malformed and error answers fail the attempt; a good one is kept for
    ``finish``.
    """

    __slots__ = ("_content_type", "_json_bytes")

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        """Take the status, and the content type that the client will get with a good answer."""
        if status == 200:
            self.status = status
        else:
            super().on_head(status, headers)
        self._content_type = headers.get(b"content-type", b"application/json")
        self._json_bytes = headers.get(_JSON_BYTES)  # tensors follow them, as they are in memory

    def _complete(self) -> None:
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        proxied = self.proxied
        told = body
        if self._json_bytes is not None:
            told = body[: int(self._json_bytes)] if self._json_bytes.isdigit() else b""
            self._content_type += b"\r\n%b: %b" % (_JSON_BYTES, self._json_bytes)
        try:
            answer = read_answer(told, proxied.route.answer)
        except MalformedAnswerError:
            self.end(Kind.MALFORMED)
            return
        if answer.error:
            kind = kind_of_status(answer.error_code or 500, retry_after=False)
            self.end(Kind.SERVER_ERROR if kind is None else kind)
            return
        if answer.response_ids:
            body = proxied.with_our_ids(body, answer.response_ids, self.replica_id)
        proxied.take_answer(body, answer, self._content_type)
        tokens, read = answer.completion_tokens, answer.prompt_tokens
        if answer.empty and not self.empty_asked_for(answer.finish_reason, tokens):
            self.end(Kind.EMPTY)
            return
        opening = self._judge(answer)
        if opening is Opening.REJECT:
            proxied.repetition_rejected = True
            self.end(Kind.DEGENERATE)
            return
        if tokens is None:
            tokens = proxied.tokens_of(proxied.request.model, len(answer.text)) * proxied.ask.n
        else:
            proxied.learn(read or 0, len(answer.text), tokens)
        self.over = True
        del proxied.attempts[self.number]
        proxied.observer.saw_answer(
            self, proxied.request.prompt_tokens if read is None else read, tokens
        )
        reason = answer.finish_reason or ""
        measured = self._measured(body, told) if proxied.ask.statistic else None
        proxied.port.tell(
            proxied.flow,
            Answered(
                proxied.serial,
                self.number,
                tokens,
                reason,
                measured,
                read or 0,
                opening is Opening.ALIKE,
            ),
        )

    def _judge(self, answer: Answer) -> Opening:
        """Judge the answer as a stream that is complete with its opening."""
        text, proxied = answer.text, self.proxied
        held = proxied.port.settings.stream.suspect_tokens
        if _degenerate(text):
            tokens = held
        elif suspicious_opening(text):
            tokens = self._tokens_of(answer)
        else:
            return Opening.SHOW
        rejected = proxied.repetition_rejected
        return judge_opening(tokens, held, suspicious=True, complete=True, rejected_before=rejected)

    def _tokens_of(self, answer: Answer) -> int:
        """The tokens in the text of one choice: the engine's count, else an estimate.

        No more than it has bytes: those of reasoning are counted, too, and are not in it.
        """
        proxied, text, spoken = self.proxied, answer.text, answer.completion_tokens
        if spoken is None:
            return proxied.tokens_of(proxied.request.model, len(text))
        return min(spoken // (proxied.ask.n * proxied.ask.prompts), len(text.encode()))

    def _measured(self, body: bytes, told: bytes) -> Measured | None:
        statistic = self.proxied.ask.statistic
        if statistic == "logprob":
            return measured_logprob(body)
        if not self.proxied.observer.measure_due(self.target.replica_id):
            return None
        if statistic == "norm":
            return measured_norm(body)
        if statistic == "score":
            return measured_score(body)
        return measured_tensors(told, body[len(told) :] if told is not body else b"")


class BytesAttempt(Attempt):
    """Relays an answer that the gateway cannot read, such as audio, from its first byte on.

    Once a byte was sent it cannot be tried elsewhere; a response without a byte fails as empty.
    """

    __slots__ = ("_content_type",)

    def __init__(self, proxied: AttemptOwner, dispatch: Dispatch, target: Target) -> None:
        super().__init__(proxied, dispatch, target)
        self._content_type = b"application/octet-stream"

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        """Take the status, and the content type that the client will get."""
        super().on_head(status, headers)
        self._content_type = headers.get(b"content-type", self._content_type)

    def on_data(self, data: bytes) -> None:
        """Relay bytes to the client unchanged; the first ones begin the response.

        Error bodies are collected.
        """
        if self.over:
            return
        if self._failing:
            super().on_data(data)
            return
        proxied = self.proxied
        now = proxied.port.now_ns()
        if self.begun:
            self.worst = max(self.worst, now - self.last)
        elif not data or not self.content():
            return
        else:
            proxied.port.streaming[self] = None
            proxied.show(self, self._content_type)
        self.last = now
        proxied.exchange.write(data)

    def _complete(self) -> None:
        self.end(None if self.begun else Kind.EMPTY)


def _degenerate(text: str) -> bool:
    """Whether an answer ends in one token for ever. An ordinary end does not repeat itself."""
    if text[-_TAIL:] != text[-2 * _TAIL : -_TAIL]:
        return False
    return DegenerateDetector(DegenerateConfig()).feed(text) is not None


def _seconds(value: bytes | None) -> float:
    """Retry-After in seconds; a date is not worth reading, it says as much as one second."""
    if value is None:
        return 0.0
    try:
        return min(max(float(value), 0.001), 3600.0)
    except ValueError:
        return 1.0


__all__ = ["Attempt", "AttemptOwner", "BytesAttempt", "WholeAttempt"]
