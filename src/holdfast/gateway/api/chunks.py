"""Reads one payload of a chat or completions stream into a typed, judged ``Chunk``.

    payload ─► read_chunk ─► Chunk: text, meaningful?, beyond text?, finish reason, error, usage

Only the members that a relay must judge are decoded; ids, models, log probabilities and whatever
an engine adds are skipped without building anything. The reader accepts what engines really send
(nulls, missing ids, an empty list of choices, content in parts) and refuses what only resembles a
chunk, because a replica that sends such bytes is broken and should not get the next request.

Rejected: a test by bytes that an ordinary chunk is ordinary (equal to the previous one but for the
text). It is sound only when everything around the text is the same in two chunks, and with usage in
every chunk, which continuation wants, nothing is ever the same.
"""

from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Raw

from holdfast.gateway.api.answer_schema import (
    ChatChunkChoice,
    ReportedUsage,
    decode_chat_chunk,
    decode_error,
    decode_text_chunk,
)
from holdfast.gateway.http.sse import MalformedStreamError

DONE: Final = b"[DONE]"  # the payload that ends a stream; it is no chunk

# Reasons by which an engine says that it gave up. It has not finished, whatever the field's name.
GIVEN_UP: Final = frozenset({"abort", "error"})


class StreamApi(StrEnum):
    """The two APIs whose streams consist of chunks: chat and completions."""

    CHAT = "chat"
    COMPLETIONS = "completions"


class Usage(msgspec.Struct, gc=False):
    """Token counts of a prompt and an answer, as the engine reports them; both known."""

    prompt_tokens: int
    completion_tokens: int


class Chunk(msgspec.Struct, gc=False):
    """What the gateway reads of one chunk: text, whether it has content, finish, error and usage.

    For reading only: what goes to the client is the payload's own bytes.
    """

    text: str  # of choice 0
    meaningful: bool  # something a client would show or act on, in any choice
    beyond_text: bool  # tool call, reasoning, refusal, media or a second choice: no continuation
    finish_reason: str | None  # of choice 0
    finished: int  # how many choices ended here; with n > 1 the answer ends when n have
    choices: int  # 0: a chunk that only tells the usage
    error: bool  # the engine gave up
    error_code: int | None  # the status it says, where it says one
    usage: Usage | None  # None: it did not say, which is not zero

    @property
    def role_only(self) -> bool:
        """Whether the chunk has choices but no content, end or error, as the first mostly does."""
        return self.choices > 0 and not (self.meaningful or self.finished or self.error)


_decode_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_encode: Final = msgspec.json.Encoder().encode


_CHAT: Final = StreamApi.CHAT  # an enum's member is looked up for a quarter of a microsecond


def read_chunk(payload: bytes, api: StreamApi) -> Chunk:
    """Read one payload of a chat or completions stream; an engine's error becomes ``error``.

    Raises ``MalformedStreamError`` for what is no chunk; ``[DONE]`` is none.
    """
    return read_chat_chunk(payload) if api is _CHAT else read_text_chunk(payload)


def read_chat_chunk(payload: bytes) -> Chunk:
    """Read one payload of a chat stream; an engine's error in it becomes ``error``.

    Raises only ``MalformedStreamError``, for what is no chunk.
    """
    try:
        chat = decode_chat_chunk(payload)
        if not payload.isascii():
            payload.decode()  # members that were skipped reach the client too
    except (ValueError, RecursionError):  # msgspec's errors, and bytes that are not UTF-8
        raise MalformedStreamError("a payload is not a chat chunk") from None
    choices = chat.choices
    if choices is None or chat.error is not None:
        return _without_choices(payload, chat.usage, chat.error)
    usage = chat.usage
    if len(choices) == 1:
        choice = choices[0]
        delta = choice.delta
        # One piece of plain text, neither first nor last: all but a few chunks of every stream.
        # What lies beyond text is asked for here and below: a call would cost as much again.
        if delta is not None and choice.finish_reason is None and not choice.index:
            text = delta.content
            if isinstance(text, str) and not (
                delta.tool_calls
                or delta.reasoning_content
                or delta.reasoning
                or delta.refusal
                or delta.function_call
                or delta.audio
                or delta.images
            ):
                told = None if usage is None else _told(usage)
                return Chunk(text, text != "", False, None, 0, 1, False, None, told)
    return _chat_chunk(choices, usage)


def _chat_chunk(choices: list[ChatChunkChoice], usage: ReportedUsage | None) -> Chunk:
    text, finish_reason = "", None
    meaningful = beyond_text = error = False
    finished = 0
    for choice in choices:
        delta = choice.delta
        if delta is not None:
            content = delta.content
            if content:
                meaningful = True
                if isinstance(content, str) and not choice.index:
                    text += content
                else:
                    beyond_text = True
            if (
                delta.tool_calls
                or delta.reasoning_content
                or delta.reasoning
                or delta.refusal
                or delta.function_call
                or delta.audio
                or delta.images
            ):
                meaningful = beyond_text = True
        reason = choice.finish_reason
        if reason:  # some send "" for none
            finished += 1
            error = error or reason in GIVEN_UP
            if not choice.index:
                finish_reason = reason
    told = None if usage is None else _told(usage)
    return Chunk(
        text, meaningful, beyond_text, finish_reason, finished, len(choices), error, None, told
    )


def read_text_chunk(payload: bytes) -> Chunk:
    """Read one payload of a completions stream; an engine's error in it becomes ``error``.

    Raises only ``MalformedStreamError``, for what is no chunk.
    """
    try:
        plain = decode_text_chunk(payload)
        if not payload.isascii():
            payload.decode()  # as above
    except (ValueError, RecursionError):  # as above
        raise MalformedStreamError("a payload is not a completions chunk") from None
    choices, usage = plain.choices, plain.usage
    if choices is None or plain.error is not None:
        return _without_choices(payload, usage, plain.error)
    text, finish_reason = "", None
    meaningful = beyond_text = error = False
    finished = 0
    for choice in choices:
        if choice.text:
            meaningful = True
            if choice.index:
                beyond_text = True
            else:
                text += choice.text
        reason = choice.finish_reason
        if reason:  # some send "" for none
            finished += 1
            error = error or reason in GIVEN_UP
            if not choice.index:
                finish_reason = reason
    told = None if usage is None else _told(usage)
    return Chunk(
        text, meaningful, beyond_text, finish_reason, finished, len(choices), error, None, told
    )


def _told(usage: ReportedUsage) -> Usage | None:
    if usage.prompt_tokens is None or usage.completion_tokens is None:
        return None
    return Usage(usage.prompt_tokens, usage.completion_tokens)


def _without_choices(payload: bytes, usage: ReportedUsage | None, error: Any) -> Chunk:
    """An error frame, in either of the shapes that engines use, or usage alone."""
    told = None if usage is None else _told(usage)
    if error is not None:
        code = error.get("code") if isinstance(error, dict) else None
        return _error_chunk(code, told)
    try:
        frame = decode_error(payload)
    except (ValueError, RecursionError):  # its members are decoded here for the first time
        raise MalformedStreamError("a payload has no choices and cannot be read") from None
    if frame.object == "error":
        return _error_chunk(frame.code, told)
    if told is None:
        raise MalformedStreamError("a payload has neither choices nor usage nor an error")
    return Chunk("", False, False, None, 0, 0, False, None, told)


def _error_chunk(code: Any, usage: Usage | None) -> Chunk:
    if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) <= 9:
        code = int(code)
    number = code if isinstance(code, int) and not isinstance(code, bool) else None
    return Chunk("", False, False, None, 0, 0, True, number, usage)


def strip_usage(payload: bytes) -> bytes:
    """Return a chunk's payload without its top-level ``usage``, which the client did not ask for.

    Unchanged if it has none. ``payload`` must be valid: it must have been read before.
    """
    before, found, value = payload.rpartition(b',"usage":{')
    if found:
        if value.find(b"}") == len(value) - 2 and 0x7B not in value:
            return before + b"}"
    elif payload.find(b'"usage"') < 0:
        return payload
    elif payload[-14:] == b',"usage":null}':
        return payload[:-14] + b"}"
    return _strip_usage_anywhere(payload)


def _strip_usage_anywhere(payload: bytes) -> bytes:
    try:
        members = _decode_members(payload)
    except (ValueError, RecursionError):
        raise MalformedStreamError("a payload is not a JSON object") from None
    if members.pop("usage", None) is None:
        return payload
    return _encode(members)


__all__ = [
    "DONE",
    "GIVEN_UP",
    "Chunk",
    "StreamApi",
    "Usage",
    "read_chat_chunk",
    "read_chunk",
    "read_text_chunk",
    "strip_usage",
]
