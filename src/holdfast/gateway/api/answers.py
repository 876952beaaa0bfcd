"""Reads whole (not streamed) answers of engines: text, emptiness, errors and token counts.

    body ─► read_answer(kind) ─► Answer: text, finish reason, empty?, error?, tokens

A status of 200 proves nothing. An engine that lost its weights, or a proxy in front of a dead one,
answers 200 with an empty text, an empty list, a vector of nulls, or a page of HTML, and a client
must not get that as an answer. So every answer is checked before the client gets it, by a typed
decoder that skips everything that need not be judged.

*Empty* is an answer that ended without a text, a tool call, reasoning, a refusal or media. Two
finish reasons explain an empty text and are accepted: ``content_filter``, and ``length``, as a
limit of few tokens may be used up before the first letter of text; but an engine that itself counts
no token at all has not reached a limit. ``stop`` with an empty text is empty even where tokens were
counted: a broken replica that produces nothing but the end of text looks exactly like that, and
asking another replica is cheap.

Vectors may be megabytes. They are never turned into Python numbers: msgspec has checked the JSON,
one search for the letter n finds a null (how most serialisers write NaN), and a bounded look at the
beginning tells numbers from other things. Rejected: decoding them, which costs 50 times as much.
"""

from base64 import b64decode
from collections.abc import Callable
from enum import StrEnum
from math import isnan
from typing import Any, Final

import msgspec
from msgspec import Raw

from holdfast.gateway.api import answer_schema
from holdfast.gateway.api.chunks import GIVEN_UP

_BELIEVED: Final = frozenset({"content_filter", "length"})  # ends that explain an empty text
_NUMBERS: Final = b"0123456789+-.eE,[] \t\r\n"
_LOOK_BYTES: Final = 256  # about 12 numbers of a vector: broken ones are broken from the start
_LOOK_BASE64: Final = 256  # 48 numbers of four bytes


class MalformedAnswerError(ValueError):
    """Raised when a body is not an answer of the expected kind, nor an engine's error.

    Quotes nothing.
    """


class AnswerKind(StrEnum):
    """The shapes that a whole answer can have; each route expects one. ``JSON``: any."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    RESPONSES = "responses"
    IMAGES = "images"
    KEPT = "kept"  # an answer of /v1/responses that is read again: judged when it was made
    INFER = "infer"  # KServe v2; for an answer with binary tensors, only its JSON head
    JSON = "json"  # any


class Answer(msgspec.Struct, gc=False):
    """What was found in one whole answer: text, finish reason, empty, error, token counts.

    Counts are None where the engine did not say.
    """

    text: str = ""  # of choice 0
    finish_reason: str | None = None  # of choice 0
    empty: bool = False
    error: bool = False  # the engine gave up and said so, under a status of success
    error_code: int | None = None
    prompt_tokens: int | None = None  # None: it did not say, which is not zero
    completion_tokens: int | None = None
    response_ids: tuple[str, ...] = ()  # the engine's own, of answers that it may keep

    @property
    def said(self) -> tuple[str, str | None]:
        """The pair of text (empty if there is none) and finish reason of choice 0."""
        return self.text, self.finish_reason


def nothing_said(finish_reason: str | None, completion_tokens: int | None) -> bool:
    """Whether an answer without content, ended for this reason, counts as the replica's failure.

    False after ``content_filter``, and after ``length`` unless the engine counted 0 tokens; else
    True.
    """
    if finish_reason not in _BELIEVED:
        return True
    return finish_reason == "length" and completion_tokens == 0


# --- chat and completions -------------------------------------------------------------------------


def _read_chat(body: bytes) -> Answer:
    chat = answer_schema.decode_chat(body)
    answer, said = _begin(chat.usage, chat.error), False
    for choice in chat.choices:
        message = choice.message
        content = message.content
        if content or (
            message.tool_calls
            or message.reasoning_content
            or message.reasoning
            or message.refusal
            or message.function_call
            or message.audio
            or message.images
        ):
            said = True
        if not choice.index:
            answer.text = content if isinstance(content, str) else ""
            answer.finish_reason = choice.finish_reason or None
        if choice.finish_reason in GIVEN_UP:
            answer.error = True
    if not said:
        answer.empty = nothing_said(answer.finish_reason, answer.completion_tokens)
    return answer


def _read_completions(body: bytes) -> Answer:
    completions = answer_schema.decode_completions(body)
    answer, said = _begin(completions.usage, completions.error), False
    for choice in completions.choices:
        if choice.text:
            said = True
        if not choice.index:
            answer.text = choice.text or ""
            answer.finish_reason = choice.finish_reason or None
        if choice.finish_reason in GIVEN_UP:
            answer.error = True
    if not said:
        answer.empty = nothing_said(answer.finish_reason, answer.completion_tokens)
    return answer


def _begin(usage: answer_schema.ReportedUsage | None, error: Any) -> Answer:
    answer = Answer()
    if usage is not None:
        answer.prompt_tokens = usage.prompt_tokens
        answer.completion_tokens = usage.completion_tokens
    if error is not None:
        answer.error, answer.error_code = True, _code(error)
    return answer


def _code(error: Any) -> int | None:
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and not isinstance(code, bool) else None


# --- responses ------------------------------------------------------------------------------------


_REASONS: Final = {"max_output_tokens": "length"}  # one vocabulary for all who ask
_UNDER_WAY: Final = frozenset({"queued", "in_progress"})


def _read_responses(body: bytes) -> Answer:
    response = answer_schema.decode_response(body)
    answer = _begin(None, response.error)
    usage = response.usage
    if usage is not None:
        answer.prompt_tokens, answer.completion_tokens = usage.input_tokens, usage.output_tokens
    answer.error = answer.error or response.status == "failed"
    answer.response_ids = response.ids()
    texts: list[str] = []
    said = False
    for item in response.output:
        if item.type != "message":
            said = True  # a call, reasoning, an image: something happened
        for part in item.content or ():
            said = said or bool(part.text or part.refusal)
            if part.text and item.type == "message":
                texts.append(part.text)
    answer.text = "".join(texts)
    if response.status == "incomplete" and response.incomplete_details is not None:
        reason = response.incomplete_details.reason
        answer.finish_reason = _REASONS.get(reason or "", reason)
    elif response.status in {"completed", None}:
        answer.finish_reason = "stop"
    if not said and response.status not in _UNDER_WAY:
        answer.empty = nothing_said(answer.finish_reason, answer.completion_tokens)
    return answer


def _read_kept(body: bytes) -> Answer:
    """A response, however it ended: it was judged when it was made. Or what goes with it."""
    kept = answer_schema.decode_kept(body)
    if kept.object == "error":
        raise MalformedAnswerError("an error stands for a response")
    return Answer(response_ids=kept.ids())


# --- lists of results -----------------------------------------------------------------------------


def _read_embeddings(body: bytes) -> Answer:
    embeddings = answer_schema.decode_embeddings(body)
    answer = _begin(embeddings.usage, embeddings.error)
    vectors = embeddings.data
    answer.empty = not vectors or not all(_numeric(bytes(one.embedding)) for one in vectors)
    return answer


def _numeric(vector: bytes) -> bool:
    """Whether it looks like a vector: numbers in brackets, or base64 of floats."""
    if vector[:1] == b'"':
        return _numeric_base64(vector[1:-1])
    if vector[:1] != b"[" or 0x6E in vector:  # the n of null
        return False
    head = vector[:_LOOK_BYTES]
    return not head.translate(None, _NUMBERS) and head.translate(None, b"[], \t\r\n") != b""


def _numeric_base64(text: bytes) -> bool:
    try:
        floats = memoryview(b64decode(text[:_LOOK_BASE64], validate=True))
        numbers = floats[: len(floats) // 4 * 4].cast("f")
    except ValueError:
        raise MalformedAnswerError("an embedding is not base64") from None
    return len(numbers) > 0 and not any(isnan(number) for number in numbers)


def _read_rerank(body: bytes) -> Answer:
    if body.lstrip()[:1] == b"[":  # some engines send the bare list
        ranks = answer_schema.RerankAnswer(results=answer_schema.decode_ranks(body))
    else:
        ranks = answer_schema.decode_rerank(body)
    results = ranks.data if ranks.results is None else ranks.results
    if results is None and ranks.error is None:
        raise MalformedAnswerError("a rerank answer has no results")
    answer = _begin(ranks.usage, ranks.error)
    scored = [one.relevance_score is not None or one.score is not None for one in results or ()]
    answer.empty = not scored or not all(scored)
    return answer


def _read_images(body: bytes) -> Answer:
    images = answer_schema.decode_images(body)
    answer = _begin(images.usage, images.error)
    blank = (b"null", b'""')
    answer.empty = not images.data or any(
        bytes(image.url) in blank and bytes(image.b64_json) in blank for image in images.data
    )
    return answer


def _read_infer(body: bytes) -> Answer:
    """No outputs are empty; an output without elements is not: a picture may show no object."""
    infer = answer_schema.decode_infer(body)
    answer = _begin(None, infer.error)
    answer.empty = not infer.outputs or any(
        one.datatype != "BYTES" and 0x6E in bytes(one.data) for one in infer.outputs
    )
    return answer


def _read_json(body: bytes) -> Answer:
    _decode_raw(body)  # it is JSON, or this raises
    begin = body[:_LOOK_BYTES].translate(None, b" \t\r\n")
    answer = Answer(empty=begin in {b"{}", b"[]", b'""', b"null"})
    if begin[:1] == b"{":
        error = answer_schema.decode_error(body).error
        answer.error, answer.error_code = error is not None, _code(error)
    return answer


# --- which reader ---------------------------------------------------------------------------------


_decode_raw: Final = msgspec.json.Decoder(Raw).decode

_READERS: Final[dict[str, Callable[[bytes], Answer]]] = {
    AnswerKind.CHAT.value: _read_chat,
    AnswerKind.COMPLETIONS.value: _read_completions,
    AnswerKind.EMBEDDINGS.value: _read_embeddings,
    AnswerKind.RERANK.value: _read_rerank,
    AnswerKind.RESPONSES.value: _read_responses,
    AnswerKind.KEPT.value: _read_kept,
    AnswerKind.IMAGES.value: _read_images,
    AnswerKind.INFER.value: _read_infer,
    AnswerKind.JSON.value: _read_json,
}


def read_answer(body: bytes, kind: AnswerKind) -> Answer:
    """Decode a whole answer of this kind and judge whether it is empty or an error.

    An engine's error object under a status of 200 is returned as ``error``. Raises only
    ``MalformedAnswerError``, for what is neither.
    """
    try:
        answer = _READERS[kind](body)
        if not body.isascii():
            body.decode()  # members that were skipped reach the client too
        return answer  # noqa: TRY300 - one handler for whatever is wrong with the body
    except (ValueError, RecursionError):  # msgspec's errors, bytes that are not UTF-8, our own
        error = _error_of(body)
    if error is None:
        raise MalformedAnswerError(f"the body is not an answer of kind {kind}")
    return Answer(empty=True, error=True, error_code=_code(error))


def _error_of(body: bytes) -> Any:
    """An error object in place of an answer: as OpenAI nests it, or as vLLM has it outermost."""
    try:
        frame = answer_schema.decode_error(body)
    except (ValueError, RecursionError):
        return None  # not even that; the caller says so
    if frame.error is None and frame.object == "error":
        return {"code": frame.code}
    return frame.error


__all__ = [
    "Answer",
    "AnswerKind",
    "MalformedAnswerError",
    "nothing_said",
    "read_answer",
]
