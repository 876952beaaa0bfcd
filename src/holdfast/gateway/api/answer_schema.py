"""The members of engines' answers and chunks that the gateway reads, and the decoders for them.

Only members that the gateway judges are listed. Ids, models, log probabilities and whatever an
engine adds are skipped without building anything. How the members are judged is in ``answers`` and
``chunks``.
"""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Raw

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]  # beyond it no client reads it exactly

_NULL: Final = Raw(b"null")  # a union with Raw would decode what it is meant to skip


class ReportedUsage(msgspec.Struct, gc=False):
    """The members of a ``usage`` object that the gateway reads: tokens by the engine's count.

    None: the engine did not say. ``/v1/responses`` uses ``input_tokens`` and ``output_tokens``.
    """

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    input_tokens: Count | None = None  # as /v1/responses says it
    output_tokens: Count | None = None


class ErrorAnswer(msgspec.Struct, gc=False):
    """The members that show whether a body or chunk is an engine's error.

    Engines nest it in ``error``, or set ``object`` to error and a ``code``. For decoding only.
    """

    error: Any = None
    object: Any = None
    code: Any = None


class Message(msgspec.Struct, gc=False):
    """The members of a chat message, or of a stream's delta, that show whether it has content.

    For reading only; role, names and others are skipped.
    """

    content: str | list[Raw] | None = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None
    function_call: Any = None
    refusal: Any = None
    audio: Any = None
    images: Any = None


# --- chunks of streams ----------------------------------------------------------------------------


class ChatChunkChoice(msgspec.Struct, gc=False):
    """The members of one choice in a chat chunk that the gateway reads; all others are skipped.

    For reading only: chunks are relayed or rewritten from their raw bytes.
    """

    index: Count | None = 0
    delta: Message | None = None
    finish_reason: str | None = None


class TextChunkChoice(msgspec.Struct, gc=False):
    """The members of one choice in a completions chunk that the gateway reads; others are skipped.

    For reading only: chunks are relayed or rewritten from their raw bytes.
    """

    text: str | None = None
    index: Count | None = 0
    finish_reason: str | None = None


class ChatChunk(msgspec.Struct, gc=False):
    """The members of one chunk of a chat stream that the gateway reads: choices, usage, error.

    All others are skipped. For reading only: chunks are relayed or rewritten from their raw bytes.
    """

    choices: list[ChatChunkChoice] | None = None
    usage: ReportedUsage | None = None
    error: Any = None


class TextChunk(msgspec.Struct, gc=False):
    """The members of one chunk of a completions stream that are read: choices, usage, error.

    All others are skipped. For reading only: chunks are relayed or rewritten from their raw bytes.
    """

    choices: list[TextChunkChoice] | None = None
    usage: ReportedUsage | None = None
    error: Any = None


# --- chat and completions -------------------------------------------------------------------------


class ChatChoice(msgspec.Struct, gc=False):
    """The members of one choice in a whole chat answer that the gateway reads; others are skipped.

    For reading only: the client gets the answer's own bytes.
    """

    message: Message
    index: Count | None = 0
    finish_reason: str | None = None


class TextChoice(msgspec.Struct, gc=False):
    """The members of one choice in a whole completions answer that are read; others are skipped.

    For reading only: the client gets the answer's own bytes.
    """

    text: str | None
    index: Count | None = 0
    finish_reason: str | None = None


class ChatAnswer(msgspec.Struct, gc=False):
    """The members of a whole ``/v1/chat/completions`` answer that are read: choices, usage, error.

    For reading only: the client gets the answer's own bytes.
    """

    choices: list[ChatChoice]
    usage: ReportedUsage | None = None
    error: Any = None


class CompletionsAnswer(msgspec.Struct, gc=False):
    """The members of a whole ``/v1/completions`` answer that are read: choices, usage, error.

    For reading only: the client gets the answer's own bytes.
    """

    choices: list[TextChoice]
    usage: ReportedUsage | None = None
    error: Any = None


# --- responses ------------------------------------------------------------------------------------


class Part(msgspec.Struct, gc=False):
    """The text or refusal in one content part of a ``/v1/responses`` output item.

    For reading only.
    """

    text: str | None = None
    refusal: str | None = None


class Item(msgspec.Struct, gc=False):
    """The type and content parts of one output item of a ``/v1/responses`` answer.

    For reading only.
    """

    type: str = "message"
    content: list[Part] | None = None


class Reason(msgspec.Struct, gc=False):
    """The ``incomplete_details`` of a ``/v1/responses`` answer: why it is not complete."""

    reason: str | None = None


class KeptAnswer(msgspec.Struct, gc=False):
    """The ids in an object of ``/v1/responses`` under which its engine keeps answers."""

    id: str | None = None
    previous_response_id: str | None = None

    def ids(self) -> tuple[str, ...]:
        """Return those that are said."""
        return tuple(one for one in (self.id, self.previous_response_id) if one)


class KeptObject(KeptAnswer, gc=False, kw_only=True):
    """What an engine tells of an answer that it keeps: a response, its deletion, its input."""

    object: str


class ResponsesAnswer(KeptAnswer, gc=False, kw_only=True):
    """The members of a whole ``/v1/responses`` answer that the gateway reads; others are skipped.

    For reading only: the client gets the answer's own bytes.
    """

    output: list[Item]
    status: str | None = None
    incomplete_details: Reason | None = None
    usage: ReportedUsage | None = None
    error: Any = None


# --- lists of results -----------------------------------------------------------------------------


class Vector(msgspec.Struct, gc=False):
    """One embedding in an answer: a raw JSON list of numbers or base64 string, not decoded."""

    embedding: Raw


class EmbeddingsAnswer(msgspec.Struct, gc=False):
    """The members of a ``/v1/embeddings`` answer that are read: data, usage, error.

    For reading only: the client gets the answer's own bytes.
    """

    data: list[Vector]
    usage: ReportedUsage | None = None
    error: Any = None


class Rank(msgspec.Struct, gc=False):
    """One document's score in a rerank answer; engines name it ``relevance_score`` or ``score``."""

    relevance_score: float | None = None
    score: float | None = None


class RerankAnswer(msgspec.Struct, gc=False):
    """The members of a ``/v1/rerank`` answer that are read; the list is ``results`` or ``data``.

    For reading only: the client gets the answer's own bytes.
    """

    results: list[Rank] | None = None
    data: list[Rank] | None = None
    usage: ReportedUsage | None = None
    error: Any = None


class Image(msgspec.Struct, gc=False):
    """One image in an answer, as raw JSON: a URL or base64; the missing one is ``null``."""

    url: Raw = _NULL
    b64_json: Raw = _NULL


class ImagesAnswer(msgspec.Struct, gc=False):
    """The members of a ``/v1/images/generations`` answer that are read: data, usage, error.

    For reading only: the client gets the answer's own bytes.
    """

    data: list[Image]
    usage: ReportedUsage | None = None
    error: Any = None


class Output(msgspec.Struct, gc=False):
    """The type and raw JSON data of one output tensor in an answer of KServe's infer protocol.

    ``data`` is an empty list where the tensor follows the JSON as bytes.
    """

    datatype: str | None = None
    data: Raw = Raw(b"[]")


class InferAnswer(msgspec.Struct, gc=False):
    """The members of an answer of KServe's infer protocol that are read: outputs, error."""

    outputs: list[Output]
    error: Any = None


decode_chat_chunk: Final = msgspec.json.Decoder(ChatChunk).decode
decode_text_chunk: Final = msgspec.json.Decoder(TextChunk).decode
decode_chat: Final = msgspec.json.Decoder(ChatAnswer).decode
decode_completions: Final = msgspec.json.Decoder(CompletionsAnswer).decode
decode_kept: Final = msgspec.json.Decoder(KeptObject).decode
decode_response: Final = msgspec.json.Decoder(ResponsesAnswer).decode
decode_embeddings: Final = msgspec.json.Decoder(EmbeddingsAnswer).decode
decode_rerank: Final = msgspec.json.Decoder(RerankAnswer).decode
decode_ranks: Final = msgspec.json.Decoder(list[Rank]).decode
decode_images: Final = msgspec.json.Decoder(ImagesAnswer).decode
decode_infer: Final = msgspec.json.Decoder(InferAnswer).decode
decode_error: Final = msgspec.json.Decoder(ErrorAnswer).decode

__all__ = [
    "ChatAnswer",
    "ChatChoice",
    "ChatChunk",
    "ChatChunkChoice",
    "CompletionsAnswer",
    "Count",
    "EmbeddingsAnswer",
    "ErrorAnswer",
    "Image",
    "ImagesAnswer",
    "InferAnswer",
    "Item",
    "KeptAnswer",
    "KeptObject",
    "Message",
    "Output",
    "Part",
    "Rank",
    "Reason",
    "ReportedUsage",
    "RerankAnswer",
    "ResponsesAnswer",
    "TextChoice",
    "TextChunk",
    "TextChunkChoice",
    "Vector",
    "decode_chat",
    "decode_chat_chunk",
    "decode_completions",
    "decode_embeddings",
    "decode_error",
    "decode_images",
    "decode_infer",
    "decode_kept",
    "decode_ranks",
    "decode_rerank",
    "decode_response",
    "decode_text_chunk",
]
