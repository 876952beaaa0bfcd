"""Encodes tokens as HTTP answers, whole or streamed, in the format of vLLM or llama.cpp.

Everything of a chunk that is the same for all tokens of a stream is rendered once, with a mark
where the token goes; a token then costs one formatting of four byte strings. vLLM puts ``id`` first
and the finish reason of a cut answer on its last token; llama.cpp puts ``choices`` first and the
finish reason on a chunk of its own. A relay that compares strings where it should read JSON is
found out by one of the two.
"""

from collections.abc import Iterator
from itertools import count, repeat
from secrets import randbits
from time import time
from typing import Final

import orjson

from holdfast.testing.standin.connection import LAST_CHUNK, framed, head
from holdfast.testing.standin.generation import AnswerPlan, Choice, Generate, StreamOptions
from holdfast.testing.standin.options import Like

_TOKEN: Final = b"\x00"  # marks in a rendered chunk; JSON has neither
_USAGE: Final = b"\x01"
_NO_OPTIONS: Final = StreamOptions()
_PLAIN: Final = Choice([], "stop")
_ids: Final = count(randbits(48))

EVENT_STREAM: Final = (
    head(200, b"text/event-stream; charset=utf-8") + b"transfer-encoding: chunked\r\n\r\n"
)
DONE: Final = framed(b"data: [DONE]\n\n")
NOT_JSON: Final = framed(b"\x8f\xfe\x00 ~~ \x1b[0m\xc3(\n\n")
BROKEN_JSON: Final = framed(b'data: {"id":"chatcmpl-0","choices":[{"index":0,"delta":{"con\n\n')


def new_id(kind: str) -> bytes:
    """A new id for an answer, unique in this process."""
    return f"{kind}-{next(_ids):016x}".encode()


def usage(prompt: int, completion: int) -> bytes:
    """The JSON object of token usage."""
    return b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % (
        prompt,
        prompt + completion,
        completion,
    )


class ChunkShape:
    """Builds the chunks of one stream in the format of vLLM or llama.cpp."""

    __slots__ = ("_after", "_before", "_chat", "_field", "_vllm")

    def __init__(self, model: str, *, vllm: bool, chat: bool) -> None:
        self._vllm = vllm
        self._chat = chat
        self._field = b"delta" if chat else b"text"
        ident = new_id("chatcmpl" if chat else "cmpl")
        kind = b"chat.completion.chunk" if chat else b"text_completion"
        name, created = orjson.dumps(model), int(time())
        if vllm:
            known = b'"id":"%b","object":"%b","created":%d,"model":%b' % (
                ident,
                kind,
                created,
                name,
            )
            self._before = b'data: {%b,"choices":' % known
            self._after = b"}\n\n"
        else:
            known = b'"created":%d,"id":"%b","model":%b,"object":"%b"' % (
                created,
                ident,
                name,
                kind,
            )
            self._before = b'data: {"choices":'
            self._after = b",%b}\n\n" % known

    def chunk(self, index: int, inner: bytes, finish: bytes = b"null", told: bytes = b"") -> bytes:
        """Build one event. ``inner``: a delta, or the text of a completion, as JSON."""
        field = self._field
        if self._vllm:
            fields = (index, field, inner, finish)
            choice = b'[{"index":%d,"%b":%b,"logprobs":null,"finish_reason":%b}]' % fields
        else:
            choice = b'[{"finish_reason":%b,"index":%d,"%b":%b}]' % (finish, index, field, inner)
        return self.event(choice, told)

    def event(self, choices: bytes, told: bytes = b"") -> bytes:
        """Build one event with these choices."""
        if told:
            return b'%b%b,"usage":%b%b' % (self._before, choices, told, self._after)
        return self._before + choices + self._after

    def token(self, index: int, choice: Choice, *, counted: bool, finish: bytes = b"null") -> bytes:
        """Build the chunk template of a token, with marks where token and usage go."""
        if not self._chat:
            inner = b'"%b"' % _TOKEN
        elif choice.tool is None:
            inner = b'{"content":"%b"}' % _TOKEN
        else:
            inner = b'{"tool_calls":[{"index":0,"function":{"arguments":"%b"}}]}' % _TOKEN
        return self.chunk(index, inner, finish, _USAGE if counted else b"")

    def opening(self, index: int, choice: Choice, told: bytes) -> bytes:
        """Build the chunks before the first token of a choice."""
        if not self._chat:
            return b""
        nothing = b'""' if self._vllm else b"null"
        role = b'{"role":"assistant","content":%b}' % nothing
        frames = framed(self.chunk(index, role, b"null", told))
        if choice.tool is not None:
            call = (
                b'{"tool_calls":[{"index":0,"id":"%b","type":"function",'
                b'"function":{"name":%b,"arguments":""}}]}'
                % (new_id("call"), orjson.dumps(choice.tool))
            )
            frames += framed(self.chunk(index, call, b"null", told))
        return frames

    def ends_on_token(self, choice: Choice) -> bool:
        """Whether the chunk of the last token holds the finish reason."""
        return self._vllm and choice.finish == "length" and bool(choice.tokens)

    def finish(self, index: int, choice: Choice, told: bytes) -> bytes:
        """Build the chunk with the finish reason; empty if the last token holds it."""
        if self.ends_on_token(choice):
            return b""  # the last token said so
        inner = b'""' if not self._chat else b'{"content":""}'
        if self._chat and (not self._vllm or choice.tool is not None):
            inner = b"{}"
        return framed(self.chunk(index, inner, b'"%b"' % choice.finish.encode(), told))


class Streamed:
    """A stream with all its bytes, ready to be sent."""

    __slots__ = ("closing", "degenerate", "opening", "pieces")

    def __init__(
        self, opening: bytes, pieces: Iterator[bytes], closing: bytes, degenerate: bytes
    ) -> None:
        self.opening = opening
        self.pieces = pieces
        self.closing = closing
        self.degenerate = degenerate  # the frame of a garbage token, in case it turns bad


def stream(asked: Generate, plan: AnswerPlan, like: Like, per_chunk: int) -> Streamed:
    """Encode answers as a stream; tokens of several choices alternate."""
    vllm = like == "vllm"
    shape = ChunkShape(asked.model, vllm=vllm, chat=plan.chat)
    wanted = asked.stream_options or _NO_OPTIONS
    running = vllm and wanted.include_usage and wanted.continuous_usage_stats
    at_first = at_last = b""
    if running:
        at_first = usage(plan.prompt_tokens, 0)
        at_last = usage(plan.prompt_tokens, plan.total())
    prompt = plan.prompt_tokens if running else None
    opening = closing = b""
    each = []
    for index, choice in enumerate(plan.choices):
        opening += shape.opening(index, choice, at_first)
        closing += shape.finish(index, choice, at_last)
        each.append(_pieces(shape, index, choice, per_chunk, prompt))
    if wanted.include_usage:
        closing += framed(shape.event(b"[]", usage(plan.prompt_tokens, plan.total())))
    degenerate = shape.token(0, _PLAIN, counted=False).replace(_TOKEN, b"!")
    pieces = each[0] if len(each) == 1 else _side_by_side(each)
    return Streamed(opening, pieces, closing + DONE, framed(degenerate))


def _pieces(
    shape: ChunkShape, index: int, choice: Choice, per_chunk: int, prompt: int | None
) -> Iterator[bytes]:
    """One framed chunk after the other."""
    before, _, after = shape.token(index, choice, counted=prompt is not None).partition(_TOKEN)
    plain = len(before) + len(after)
    tokens = choice.tokens
    last = len(tokens) - per_chunk if shape.ends_on_token(choice) else len(tokens)
    for start in range(0, len(tokens), per_chunk):
        if per_chunk == 1:
            token = orjson.dumps(tokens[start])[1:-1]
        else:
            token = orjson.dumps("".join(tokens[start : start + per_chunk]))[1:-1]
        if start >= last:
            marked = shape.token(index, choice, counted=prompt is not None, finish=b'"length"')
            before, _, after = marked.partition(_TOKEN)
            plain = len(before) + len(after)
        if prompt is None:
            yield b"%x\r\n%b%b%b\r\n" % (plain + len(token), before, token, after)
        else:
            said = min(start + per_chunk, len(tokens))
            counted = after.replace(_USAGE, usage(prompt, said))
            yield framed(b"%b%b%b" % (before, token, counted))


def _side_by_side(each: list[Iterator[bytes]]) -> Iterator[bytes]:
    while True:
        turn = b"".join(next(pieces, b"") for pieces in each)
        if not turn:
            return
        yield turn


def garbage(form: str, degenerate: bytes) -> Iterator[bytes]:
    """Endless nonsense bytes."""
    return repeat({"bytes": NOT_JSON, "json": BROKEN_JSON}.get(form, degenerate))


def whole(asked: Generate, plan: AnswerPlan) -> bytes:
    """Encode answers as one JSON object."""
    if not plan.rendered:
        told = bool(asked.logprobs)
        choices = [
            _choice(i, choice, _likelihoods(choice, chat=plan.chat) if told else b"null", plan.chat)
            for i, choice in enumerate(plan.choices)
        ]
        plan.rendered = b'"model":%b,"choices":[%b],"usage":%b}' % (
            orjson.dumps(asked.model),
            b",".join(choices),
            usage(plan.prompt_tokens, plan.total()),
        )
    known = (new_id("chatcmpl" if plan.chat else "cmpl"), int(time()), plan.rendered)
    if plan.chat:
        return b'{"id":"%b","object":"chat.completion","created":%d,%b' % known
    return b'{"id":"%b","object":"text_completion","created":%d,%b' % known


def _likelihoods(choice: Choice, *, chat: bool) -> bytes:
    """The log probabilities of an answer's tokens, each with another that was less likely."""
    likeliest = [{token: -0.02, "</s>": -6.0} for token in choice.tokens]
    if choice.other and likeliest:
        likeliest[0] = {choice.tokens[0]: -0.7, choice.other: -0.71}
    if chat:
        content = [
            {"token": token, "logprob": each[token], "bytes": None}
            | {"top_logprobs": [{"token": text, "logprob": n} for text, n in each.items()]}
            for token, each in zip(choice.tokens, likeliest, strict=True)
        ]
        return orjson.dumps({"content": content})
    own = [each[token] for token, each in zip(choice.tokens, likeliest, strict=True)]
    return orjson.dumps({"tokens": choice.tokens, "token_logprobs": own, "top_logprobs": likeliest})


def _choice(index: int, choice: Choice, likelihoods: bytes, chat: bool) -> bytes:
    text = orjson.dumps(choice.said + "".join(choice.tokens))
    finish = choice.finish.encode()
    if not chat:
        return b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":"%b"}' % (
            index,
            text,
            likelihoods,
            finish,
        )
    if choice.tool is None:
        inner = b'"content":%b' % text
    else:
        inner = (
            b'"content":null,"tool_calls":[{"id":"%b","type":"function",'
            b'"function":{"name":%b,"arguments":%b}}]'
            % (new_id("call"), orjson.dumps(choice.tool), text)
        )
    return b'{"index":%d,"message":{"role":"assistant",%b},"logprobs":%b,"finish_reason":"%b"}' % (
        index,
        inner,
        likelihoods,
        finish,
    )


__all__ = [
    "DONE",
    "EVENT_STREAM",
    "LAST_CHUNK",
    "ChunkShape",
    "Streamed",
    "garbage",
    "new_id",
    "stream",
    "usage",
    "whole",
]
