"""Attempts that stream events: hold the first ones until content comes, then relay all.

Headers and chunks without content are held back until the first content comes, so an empty or dying
stream can still be tried elsewhere, invisibly for the client. An opening that looks like the
endless "!!!!" of a broken engine is held a little longer. From the first content on, what arrives
is relayed unchanged, and still read: a finish reason, an error inside the stream, an end without
either, and degenerate output must be noticed when they happen.
"""

from collections.abc import Callable
from typing import Final

from holdfast.core.failure import Kind, kind_of_status
from holdfast.core.health.answers.degenerate import (
    DegenerateConfig,
    DegenerateDetector,
    suspicious_opening,
)
from holdfast.core.messages import Dispatch, Measured
from holdfast.core.request.answer_policy import Opening, end_is_believed, judge_opening
from holdfast.gateway.api.answers import nothing_said
from holdfast.gateway.api.chunks import (
    DONE,
    Chunk,
    StreamApi,
    Usage,
    read_chat_chunk,
    read_text_chunk,
    strip_usage,
)
from holdfast.gateway.api.continuation import Seam
from holdfast.gateway.api.responses import read_response_event
from holdfast.gateway.http.sse import MalformedStreamError, framed
from holdfast.gateway.request.attempts import Attempt, AttemptOwner
from holdfast.gateway.request.targets import Target
from holdfast.gateway.telemetry.answer_statistics import LogprobMean

_DEGENERATE: Final = DegenerateConfig()


class EventAttempt(Attempt):
    """Base of attempts that receive server-sent events: checks the type and judges the end.

    A stream that ends after a finish reason succeeds, one without it was cut; a finished one
    without content fails as empty.
    """

    __slots__ = ("_finished", "_held_bytes", "_splitter")

    def __init__(self, proxied: AttemptOwner, dispatch: Dispatch, target: Target) -> None:
        super().__init__(proxied, dispatch, target)
        settings = proxied.port.settings
        self._splitter = settings.event_splitter(settings.stream.event_bytes_max)
        self._finished = False  # a finish reason came: whatever follows, the answer is whole
        self._held_bytes = 0  # not shown yet; may grow as long as one event

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        """Take the status; a 2xx that is not an event stream fails as malformed."""
        super().on_head(status, headers)
        kind = headers.get(b"content-type", b"")
        if not self._failing and not kind.lower().startswith(b"text/event-stream"):
            self.fail(Kind.MALFORMED)

    def _complete(self) -> None:
        self._conclude()

    def _broken(self, kind: Kind) -> None:
        if self._finished:
            self._conclude()  # all was said; how the connection ended matters to nobody
        else:
            self.end(kind, self.tokens())

    def _holds_too_much(self, size: int) -> bool:
        """Count what is held back; a replica that says nothing at length is given up."""
        self._held_bytes += size
        if self._held_bytes <= self.proxied.port.settings.stream.event_bytes_max:
            return False
        self.fail(Kind.MALFORMED)
        return True

    def _conclude(self) -> None:
        """Nothing more will be said."""
        if not self._finished:
            self.end(Kind.CUT, self.tokens())
        elif self.begun or self._nothing_to_say():
            self._learn()
            self.end(None, self.tokens())
        elif not self.over:
            self.proxied.took_empty(self.unshown())
            self.end(Kind.EMPTY)

    def conclude(self) -> bool:
        """If a finish reason came, cancel the call and end the attempt as its answer deserves.

        That is success, or empty where it had no content. Return whether it was ended.
        """
        if not self._finished:
            return False
        if self.call is not None:
            self.call.cancel()
        self._conclude()
        return True

    def fail(self, kind: Kind, tokens: int = 0) -> None:
        """Cancel the call and report this failure; after a finish reason, ``conclude`` instead."""
        if not self.conclude():
            super().fail(kind, tokens)

    def unshown(self) -> bytes:
        """Return the events held back from the client, as bytes; empty in the base."""
        return b""

    def _nothing_to_say(self) -> bool:
        """Whether an end without content may be believed; it is shown then."""
        return False

    def _learn(self) -> None:
        """Keep what the answer taught, before it is forgotten."""


class StreamAttempt(EventAttempt):
    """Receives a stream of chat or completions chunks, judges each one and relays it.

    Chunks are held until the first content; from then on they go to the client as they come. With a
    ``seam`` it continues another attempt's text.
    """

    __slots__ = (
        "_choices_left",
        "_detector",
        "_events",
        "_held",
        "_logprobs",
        "_opening",
        "_read_chunk",
        "_seam",
        "_text_bytes",
        "usage",
    )

    def __init__(
        self,
        proxied: AttemptOwner,
        dispatch: Dispatch,
        target: Target,
        api: StreamApi,
        seam: Seam | None,
    ) -> None:
        super().__init__(proxied, dispatch, target)
        self._read_chunk: Callable[[bytes], Chunk]
        self._read_chunk = read_chat_chunk if api is StreamApi.CHAT else read_text_chunk
        self._logprobs: LogprobMean | None = None
        if proxied.ask.statistic:
            self._logprobs = LogprobMean()
            self._read_chunk = self._logprobs.reading(self._read_chunk)
        self._seam = seam  # joins it to what an earlier attempt had said
        self.continues = seam is not None
        self._held: list[bytes] = []  # payloads not shown yet
        self._opening = ""
        self._detector = DegenerateDetector(_DEGENERATE)
        self._choices_left = proxied.ask.n * proxied.ask.prompts
        self._events = 0  # with content
        self._text_bytes = 0
        self.usage: Usage | None = None

    def on_data(self, data: bytes) -> None:
        """Split received bytes into events; judge each, then relay it, hold it or fail the attempt.

        ``[DONE]`` ends the attempt.
        """
        if self.over:
            return
        if self._failing:
            Attempt.on_data(self, data)
            return
        proxied = self.proxied
        now = proxied.port.now_ns()
        if self.begun:
            gap = now - self.last
            self.worst = gap if gap > self.worst else self.worst
        self.last = now
        try:
            payloads = self._splitter.feed(data)
            if len(payloads) == 1 and self.begun and self._seam is None:
                payload = payloads[0]  # the ordinary case: one event, relayed as it came
                if payload != DONE:
                    kept = self._read(payload)
                    if kept is payload:
                        proxied.relay(data if self._splitter.verbatim else framed(payload), payload)
                    elif kept is not None:
                        proxied.relay_payloads([kept])
                    return
            for payload in payloads:
                if payload == DONE:
                    proxied.port.linger(self)
                    self._conclude()
                    return
                if not self._judge(payload):
                    return
        except MalformedStreamError:
            self.fail(Kind.MALFORMED, self.tokens())

    def _judge(self, payload: bytes) -> bool:
        """The long way for one payload: while held, across a seam, or among several."""
        kept = self._read(payload)
        if kept is None:
            return not self.over
        rewritten = [kept]
        if self._seam is not None:
            rewritten = self._seam.rewrite(kept)
            if self._seam.finished:
                self._choices_left, self._finished = 0, True
                self.proxied.finish_reason = self._seam.stopped or self.proxied.finish_reason
        if self.begun:
            self.proxied.relay_payloads(rewritten)
            return True
        self._held += rewritten
        if self._holds_too_much(sum(map(len, rewritten))):
            return False
        if self._events:
            opening = self._opening_of()
            if opening is not Opening.HOLD and opening is not Opening.REJECT:
                self._show(alike=opening is Opening.ALIKE)
        return not self.over

    def _show(self, *, alike: bool = False) -> None:
        if self.content(alike=alike):
            held, self._held = self._held, []
            proxied = self.proxied
            proxied.port.streaming[self] = None
            proxied.show(self, b"text/event-stream")
            proxied.relay_payloads(held)

    def _opening_of(self) -> Opening:
        """Judge what is held, and fail where it is one token over and over: two are believed."""
        proxied = self.proxied
        opening = judge_opening(
            self._events,
            proxied.port.settings.stream.suspect_tokens,
            suspicious=suspicious_opening(self._opening),
            complete=not self._choices_left,
            rejected_before=proxied.repetition_rejected,
        )
        if opening is Opening.REJECT:
            proxied.repetition_rejected = True
            self.fail(Kind.DEGENERATE)
        return opening

    def _nothing_to_say(self) -> bool:
        spoken = self.usage.completion_tokens if self.usage is not None else None
        proxied = self.proxied
        if self._seam is not None:
            if not end_is_believed(spoken, doubted_before=proxied.end_doubted):
                proxied.end_doubted = True
                return False
        elif nothing_said(proxied.finish_reason, spoken) and not self.empty_asked_for(
            proxied.finish_reason, spoken
        ):
            return False
        self._show()
        return not self.over

    def _read(self, payload: bytes) -> bytes | None:
        """Take in one chunk; the payload to relay, or ``None`` where there is nothing to."""
        chunk = self._read_chunk(payload)
        if chunk.error:
            self._error(chunk)
            return None
        if self._finished and chunk.choices:
            return None  # all was said; more would make it two answers
        text = chunk.text
        if text:
            self._text_bytes += len(text)
            if self._detector.feed(text) is not None:
                self.fail(Kind.DEGENERATE, self.tokens())
                return None
            if not self.begun:
                self._opening += text
        if chunk.meaningful:
            self._events += 1
            if chunk.beyond_text:
                self.proxied.cannot_continue()
        if chunk.finished:
            # A choice that nobody asked for may end as it likes.
            if chunk.finish_reason is not None or self.proxied.ask.n > 1:
                self._choices_left -= min(chunk.finished, self._choices_left)
            self._finished = not self._choices_left
            if chunk.finish_reason is not None:
                self.proxied.finish_reason = chunk.finish_reason
        if chunk.usage is not None:
            self.usage = chunk.usage
            ask = self.proxied.ask
            if chunk.choices:
                return payload if ask.wants_running_usage else strip_usage(payload)
            if not ask.wants_usage:
                return None
        return payload

    def unshown(self) -> bytes:
        """Return the events held back from the client, as bytes."""
        return b"".join(map(framed, self._held))

    def measured(self) -> Measured | None:
        """Return the answer's mean log probability.

        None if the client asked for no log probabilities.
        """
        return None if self._logprobs is None else self._logprobs.measured()

    def prompt_tokens(self) -> int:
        """Return the prompt's tokens: the engine's count if it came, else the request's estimate.

        For a continuation, the engine's count includes the text that was said before.
        """
        usage = self.usage
        if usage is not None and usage.prompt_tokens:
            return usage.prompt_tokens
        return self.proxied.request.prompt_tokens

    def read_tokens(self) -> int:
        """Return the engine's count of the client's own prompt; 0 if none came.

        For a continuation, without the text that was said before.
        """
        if self.usage is None:
            return 0
        read = self.usage.prompt_tokens
        return read if self._seam is None else self._seam.prompt_tokens(read)

    def chunks(self) -> int:
        """Return how many chunks with content arrived, shown or still held."""
        return self._events

    def _learn(self) -> None:
        usage = self.usage
        if usage is not None and self._seam is None:
            self.proxied.learn(usage.prompt_tokens, self._text_bytes, usage.completion_tokens)

    def _error(self, chunk: Chunk) -> None:
        """The engine gave up inside the stream."""
        code = chunk.error_code or 500
        kind = kind_of_status(code, retry_after=False) if code >= 400 else None
        if self.begun or kind is None:
            kind = Kind.SERVER_ERROR
        self.fail(kind, self.tokens())

    def tokens(self) -> int:
        """Return the tokens of this attempt's answer so far: the engine's count if it came.

        Else an estimate from the number of chunks and the bytes of text; 0 before the first
        content.
        """
        counted = self.counted()
        exact = self.usage is not None and self.usage.completion_tokens
        if exact or not counted or self.target.dialect.one_token_per_event:
            return counted
        return max(counted, self.proxied.tokens_of(self.target.model, self._text_bytes))

    def counted(self) -> int:
        """Return the engine's count of the answer's tokens so far, else the chunks with content.

        A chunk is one token at least. 0 before the first content.
        """
        if self.usage is not None and self.usage.completion_tokens:
            return self.usage.completion_tokens
        return self._events if self.begun else 0


class ResponseAttempt(EventAttempt):
    """Receives a ``/v1/responses`` stream and relays its named events; it cannot be continued.

    Events are held until the first content.
    """

    __slots__ = ("_held", "_read", "_tokens")

    def __init__(self, proxied: AttemptOwner, dispatch: Dispatch, target: Target) -> None:
        super().__init__(proxied, dispatch, target)
        self._held: list[bytes] = []
        self._read = 0
        self._tokens = 0

    def on_data(self, data: bytes) -> None:
        """Split received bytes into events; hold them until the first content, then relay each.

        A failure event fails the attempt, a completion event ends it.
        """
        if self.over:
            return
        if self._failing:
            Attempt.on_data(self, data)
            return
        proxied = self.proxied
        now = proxied.port.now_ns()
        if self.begun:
            self.worst = max(self.worst, now - self.last)
        self.last = now
        try:
            for name, payload in self._splitter.feed_named(data):
                if payload != DONE and not self._judge(name, payload):
                    return
        except MalformedStreamError:
            self.fail(Kind.MALFORMED, self.tokens())

    def _judge(self, name: bytes, payload: bytes) -> bool:
        """Read one event and pass it on whole: half of one would swallow an error behind it."""
        event = read_response_event(payload)
        if event.failed:
            self.fail(Kind.SERVER_ERROR, self.tokens())
            return False
        proxied = self.proxied
        if event.response_ids:
            payload = proxied.with_our_ids(payload, event.response_ids, self.replica_id)
        frame = framed(payload, name)
        if self.begun:
            proxied.exchange.write(frame)
        else:
            self._held.append(frame)
            if self._holds_too_much(len(frame)):
                return False
            if event.content and self.content():
                proxied.port.streaming[self] = None
                proxied.show(self, b"text/event-stream")
                proxied.exchange.write(b"".join(self._held))
                self._held.clear()
        if event.finished and not self.over:
            self._finished = True
            self._read, self._tokens = event.input_tokens, event.output_tokens
            proxied.port.linger(self)
            self._conclude()
        return not self.over

    def unshown(self) -> bytes:
        """Return the events held back from the client, as bytes."""
        return b"".join(self._held)

    def prompt_tokens(self) -> int:
        """Return the prompt's tokens: the engine's count once it came, else an estimate."""
        return self._read or self.proxied.request.prompt_tokens

    def read_tokens(self) -> int:
        """Return the engine's count of the prompt, which comes with the last event; 0: not said."""
        return self._read

    def tokens(self) -> int:
        """Return the engine's count of the answer's tokens, which comes with the last event.

        0 before.
        """
        return self._tokens


__all__ = ["EventAttempt", "ResponseAttempt", "StreamAttempt"]
