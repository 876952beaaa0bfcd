"""Continues a broken-off answer on another replica, so that the client sees one answer.

    what was said ─► continued_body ─► another replica of the same revision ─► Seam ─► the client

There are two halves. The *request* asks the engine to continue: with the answer so far as the last
message of the assistant, or at the end of the prompt, and with a token limit lowered by what was
said. The *seam* makes the second stream look like the rest of the first: its ids, no second role,
nothing said twice, stop strings that began before the cut, the client's own token limit, one sum of
tokens, and a last chunk that says that the answer was continued.

Blanks at the end of a chat's text are not sent back. Many chat templates trim a message, so that an
engine would continue without them anyway; asked to continue after the last word, it produces them
again and the seam drops them. A prompt of /v1/completions passes no template and is sent exactly.

Bodies and chunks are decoded only as far as needed: every member that is not changed goes out as
the bytes that came in. Rejected: replaying token ids, which only the replica that produced them can
give, and which no OpenAI-compatible API takes for a chat.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from holdfast.core.types import Decision
from holdfast.engines.dialect import Continuation
from holdfast.gateway.api.chunks import DONE, Chunk, StreamApi, read_chunk
from holdfast.gateway.api.request_schema import GUIDED, HARMLESS
from holdfast.gateway.http.sse import MalformedStreamError

_decode: Final = msgspec.json.Decoder().decode
_decode_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_raws: Final = msgspec.json.Decoder(list[Raw]).decode
_encode: Final = msgspec.json.Encoder().encode

_Members = dict[str, Raw]


class CannotContinueError(ValueError):
    """Raised when an answer cannot be continued elsewhere; says why, and quotes nothing of it."""


# --- the request ----------------------------------------------------------------------------------

_LENGTHS: Final = ("max_tokens", "max_completion_tokens", "n_predict")


def can_continue(
    body: bytes, api: StreamApi, how: Continuation, continues_prompt: bool = True
) -> Decision:
    """Decide, with the reason, whether an answer to this request could be continued elsewhere.

    ``how``: what the engine offers for chats; ``continues_prompt``: for completions. Only the
    request is judged: a tool call or reasoning in the answer may forbid it later
    (``Chunk.beyond_text``).
    """
    try:
        why = _refusal(_decode_members(body), api, how, continues_prompt)
    except (ValueError, RecursionError):
        return Decision(False, "the body cannot be read")
    return Decision(False, why) if why else Decision(True, "the answer is plain text")


def continued_body(
    body: bytes,
    api: StreamApi,
    how: Continuation,
    said: str,
    said_tokens: int,
    continues_prompt: bool = True,
) -> bytes:
    """Return the request body that makes another replica continue after the text ``said``.

    Token limits are lowered by ``said_tokens``, to one at least; other members are kept as they
    were. Where their number is not known, give as many as there are at least: the ``Seam`` cuts
    what is too long, and nothing makes up for what is too short. Raises ``CannotContinueError``
    where ``can_continue`` says no.
    """
    allowed = can_continue(body, api, how, continues_prompt)
    if not allowed:
        raise CannotContinueError(allowed.reason)
    try:
        members = _decode_members(body)
        if api is StreamApi.COMPLETIONS:
            members["prompt"] = _raw(_decode(members["prompt"]) + said)
        elif said.rstrip():
            _extend_messages(members, how, said.rstrip())
        for name in _LENGTHS:
            _lower(members, name, said_tokens, 1)
        _lower(members, "min_tokens", said_tokens, 0)
        return _encode(members)
    except (ValueError, RecursionError):  # in a member that was not looked at before
        raise CannotContinueError("the body cannot be read") from None


def _refusal(members: _Members, api: StreamApi, how: Continuation, continues_prompt: bool) -> str:
    """Why not; empty if nothing speaks against it."""
    for name, (harmless, why) in HARMLESS.items():
        if name in members and bytes(members[name]) not in harmless:
            return why
    form = _value(members, "response_format")
    if form is not None and form != {"type": "text"}:
        return GUIDED
    if _value(members, "modalities") not in (None, ["text"]):
        return "the output is not text alone"
    if api is StreamApi.COMPLETIONS:
        if not continues_prompt:
            return "the engine does not go on from a prompt"
        plain = isinstance(_value(members, "prompt"), str)
        return "" if plain else "the prompt is not one text"
    return _chat_refusal(members, how)


def _chat_refusal(members: _Members, how: Continuation) -> str:
    if how is Continuation.NONE:
        return "the engine does not go on with a chat"
    continues = _value(members, "continue_final_message") is True
    if _value(members, "add_generation_prompt") is False and not continues:
        return "the client renders its prompt in its own way"
    messages = _messages(members)
    if not messages:
        return "there are no messages"
    last = _decode(messages[-1])
    if not isinstance(last, dict):
        return "the last message is not an object"
    if how is Continuation.FINAL_MESSAGE and not continues:
        return ""  # whatever stands last, the engine began a message of its own behind it
    if last.get("role") != "assistant":
        return "the client continues a message that is not the assistant's" if continues else ""
    if last.get("tool_calls") or _extended(last.get("content"), "") is None:
        return "the message to go on with is not plain text"
    return ""


def _messages(members: _Members) -> list[Raw]:
    return _decode_raws(members["messages"]) if "messages" in members else []


def _extend_messages(members: _Members, how: Continuation, said: str) -> None:
    messages = _messages(members)
    last = _decode(messages[-1])
    prefilled = last.get("role") == "assistant"  # the client began the answer itself
    if how is Continuation.FINAL_MESSAGE:
        prefilled = _value(members, "continue_final_message") is True
        members["continue_final_message"] = Raw(b"true")
        members["add_generation_prompt"] = Raw(b"false")
    if prefilled:
        last["content"] = _extended(last.get("content"), said)
        messages[-1] = _raw(last)
    else:
        messages.append(_raw({"role": "assistant", "content": said}))
    members["messages"] = _raw(messages)


def _extended(content: Any, said: str) -> Any:
    """A message's content with more text at its end; ``None`` where that has no meaning."""
    if isinstance(content, str):
        return content + said
    if isinstance(content, list) and content:
        part = content[-1]
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            return [*content[:-1], {**part, "text": part["text"] + said}]
    return None


def _lower(members: _Members, name: str, by: int, least: int) -> None:
    value = _value(members, name)
    if isinstance(value, int) and not isinstance(value, bool) and value > least:
        members[name] = _raw(max(least, value - by))


def _value(members: _Members, name: str) -> Any:
    return _decode(members[name]) if name in members else None


def _raw(value: Any) -> Raw:
    return Raw(_encode(value))


# --- what was said --------------------------------------------------------------------------------


def text_of(payloads: Iterable[bytes], api: StreamApi) -> str:
    """Return the text of choice 0 in these stream payloads, joined; tool calls and others left out.

    Raises ``MalformedStreamError`` for a payload that cannot be read.
    """
    return "".join([read_chunk(payload, api).text for payload in payloads if payload != DONE])


def said_again(payloads: Sequence[bytes], api: StreamApi) -> int:
    """Return how many tokens at the end of a chat's text the continuing engine will produce again.

    They are the blanks behind the last word, which are not sent back; one for each event of blanks
    only. 0 for completions.
    """
    if api is StreamApi.COMPLETIONS:
        return 0
    blanks = 0
    for payload in reversed(payloads):
        text = "" if payload == DONE else read_chunk(payload, api).text
        if text.strip():
            break
        blanks += bool(text)
    return blanks


# --- the seam -------------------------------------------------------------------------------------

_IDENTITY: Final = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
# A shorter repetition is more likely to be what the answer says next than an echo of it.
ECHO_CHARS_MIN: Final = 16
_STOP_CHARS_MAX: Final = 1_024  # of a stop string, looked for across the seam
_UNLIMITED: Final = 1 << 62  # tokens


class Seam:
    """Rewrites the chunks of a second replica so that they continue the first stream.

    Same id and model, no repeated role or text, usage as one sum, and stop strings found across the
    cut. For the next continuation build a new one from the same first chunk, with all that was
    said.
    """

    __slots__ = (
        "_api",
        "_blanks",
        "_continued",
        "_echo",
        "_echoed",
        "_held",
        "_identity",
        "_left",
        "_limit",
        "_said_tokens",
        "_stops",
        "finished",
        "stopped",
    )

    def __init__(
        self,
        first_chunk: bytes,
        said: str,
        said_tokens: int,
        stop: tuple[str, ...],
        continued: int,
        limit: int = 0,
        left: int = 0,
    ) -> None:
        """``said_tokens``: by estimate, if need be; ``limit``: the client's own, 0 = none.

        ``left``: how many tokens more it allows at the most, by all that was counted.
        """
        try:
            first = _decode_members(first_chunk)
            self._api = _api_of(first)
        except (ValueError, RecursionError):
            raise MalformedStreamError("the first chunk cannot be read") from None
        self._identity = {name: first.get(name) for name in _IDENTITY}
        self._said_tokens = said_tokens
        self._limit = limit
        self._left = left if limit else _UNLIMITED
        self._continued = Raw(b'{"continued":%d}' % continued)
        words = said.rstrip() if self._api is StreamApi.CHAT else said
        self._blanks = said[len(words) :]  # not sent back, so the engine says them again
        # What an engine may echo. Text that is one thing over and over may honestly go on so.
        echoes = len(words) >= ECHO_CHARS_MIN and words not in (words + words)[1:-1]
        self._echo = words if echoes else ""
        self._echoed = 0  # characters of it that came so far
        self._stops = _unfinished(stop, said)  # what would complete a stop string begun in said
        self._held = ""  # new text that may yet be part of one
        self.finished = False  # the finish reason went out
        # "stop" by a stop string across the seam, or "length": the rest of the stream is ignored
        self.stopped: str | None = None

    def rewrite(self, payload: bytes) -> list[bytes]:
        """Return what to send for one payload of the second stream: a list of one, or empty.

        Empty for repeated text, for errors, after the finish, and while text is held that may begin
        a stop string. Raises ``MalformedStreamError``.
        """
        if payload == DONE:
            return [payload]
        chunk = read_chunk(payload, self._api)
        if chunk.error or (chunk.choices and self.finished):
            return []  # an error is for whoever reads the stream to judge
        text = self._join(chunk.text)
        if chunk.finish_reason is not None or chunk.beyond_text:
            text += self._release()
        if text:
            text = self._within_limit(text)
        ends = chunk.finish_reason is not None or self.stopped is not None
        if chunk.choices and not (text or ends or chunk.beyond_text):
            return []
        try:
            return [self._rewritten(payload, chunk, text, ends)]
        except (ValueError, RecursionError):  # in a member that is decoded here for the first time
            raise MalformedStreamError("a chunk cannot be rewritten") from None

    # --- the text --------------------------------------------------------------------------------

    def _join(self, text: str) -> str:
        """What of the new text is new, and sure."""
        if text and self._echo:
            text = self._without_echo(text)
        return self._after_echo(text) if text else ""

    def _without_echo(self, text: str) -> str:
        echo, start = self._echo, self._echoed
        shared = min(len(text), len(echo) - start)
        if not echo.startswith(text[:shared], start):
            self._echo, self._echoed = "", 0
            return echo[:start] + text  # it only began like one
        self._echoed += shared
        if self._echoed == len(echo):
            self._echo, self._echoed = "", 0
        return text[shared:]

    def _after_echo(self, text: str) -> str:
        if self._blanks:
            text = self._without_blanks(text)
        return self._before_stop(text) if self._stops else text

    def _without_blanks(self, text: str) -> str:
        blanks, same = self._blanks, 0
        while same < len(text) and same < len(blanks) and text[same] == blanks[same]:
            same += 1
        self._blanks = blanks[same:] if same == len(text) else ""
        return text[same:]

    def _before_stop(self, text: str) -> str:
        text, self._held = self._held + text, ""
        if self.stopped or text.startswith(self._stops):
            self.stopped = "stop"
            return ""
        self._stops = tuple(stop for stop in self._stops if stop.startswith(text))
        if self._stops:
            self._held, text = text, ""
        return text

    def _within_limit(self, text: str) -> str:
        """One event is one token at least: nothing of an event beyond the client's own limit."""
        if not self._left:
            self.stopped = "length"
            return ""
        self._left -= 1
        return text

    def _release(self) -> str:
        """What was held back, now that nothing can follow it."""
        echo, self._echo = self._echo[: self._echoed], ""
        self._echoed = 0
        text = self._after_echo(echo) if echo else ""
        held, self._held = self._held, ""
        return "" if self.stopped else text + held

    # --- the chunk -------------------------------------------------------------------------------

    def _rewritten(self, payload: bytes, chunk: Chunk, text: str, ends: bool) -> bytes:
        members = _decode_members(payload)
        for name, value in self._identity.items():
            if value is not None:
                members[name] = value
            else:
                members.pop(name, None)
        if chunk.choices and (text != chunk.text or self.stopped or b'"role"' in payload):
            members["choices"] = self._choices(members["choices"], text)
        if chunk.usage is not None:
            members["usage"] = self._usage(members["usage"], chunk)
        if "timings" in members:
            members["timings"] = self._timings(members["timings"])
        if ends and not self.finished:
            self.finished = True
            members["holdfast"] = self._continued
        return _encode(members)

    def _choices(self, choices: Raw, text: str) -> Raw:
        chat = self._api is StreamApi.CHAT
        rewritten = _decode(choices)
        for choice in rewritten:
            if chat:
                delta = choice.get("delta") or {}
                delta.pop("role", None)
                if not isinstance(delta.get("content"), list):  # in parts: beyond text, left alone
                    delta.pop("content", None)
                choice["delta"] = {"content": text, **delta} if text else delta
            else:
                choice["text"] = text
            text = ""  # all of it is in the first
            if self.stopped:
                choice["finish_reason"] = self.stopped
        return _raw(rewritten)

    def prompt_tokens(self, counted: int) -> int:
        """Return the tokens of the client's own prompt, of which the engine ``counted`` so many.

        What was said before the cut is part of that count, and is subtracted.
        """
        return max(0, counted - self._said_tokens)

    def _usage(self, usage: Raw, chunk: Chunk) -> Raw:
        """One sum: what was said before is this engine's prompt and the client's completion."""
        assert chunk.usage is not None
        counts = _decode(usage)
        counts["prompt_tokens"] = self.prompt_tokens(chunk.usage.prompt_tokens)
        completion = chunk.usage.completion_tokens + self._said_tokens
        counts["completion_tokens"] = min(completion, self._limit or completion)
        counts["total_tokens"] = counts["prompt_tokens"] + counts["completion_tokens"]
        return _raw(counts)

    def _timings(self, timings: Raw) -> Raw:
        """Kept for the whole answer too, or a second continuation would count from nothing."""
        counts = _decode(timings)
        if not isinstance(counts, dict) or not isinstance(counts.get("predicted_n"), int):
            return timings
        counts["predicted_n"] += self._said_tokens
        return _raw(counts)


def _api_of(first: _Members) -> StreamApi:
    """Which stream the first chunk began."""
    if bytes(first.get("object", b"")) == b'"text_completion"':
        return StreamApi.COMPLETIONS
    choices = _value(first, "choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return StreamApi.COMPLETIONS if "text" in choices[0] else StreamApi.CHAT
    return StreamApi.CHAT


def _unfinished(stops: tuple[str, ...], said: str) -> tuple[str, ...]:
    """For each stop string that ``said`` ends with a beginning of: what is missing of it."""
    return tuple(
        stop[begun:]
        for stop in stops
        for begun in range(1, min(len(stop), len(said) + 1, _STOP_CHARS_MAX))
        if said.endswith(stop[:begun])
    )


__all__ = [
    "ECHO_CHARS_MIN",
    "CannotContinueError",
    "Seam",
    "can_continue",
    "continued_body",
    "said_again",
    "text_of",
]
