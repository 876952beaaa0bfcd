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
    """The ``usage`` object of an answer or chunk: tokens as the engine counts them."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    input_tokens: Count | None = None  # as /v1/responses says it
    output_tokens: Count | None = None


class ErrorAnswer(msgspec.Struct, gc=False):
    """An error body in place of an answer or chunk, nested in ``error`` or at the top level."""

    error: Any = None
    object: Any = None
    code: Any = None


class Message(msgspec.Struct, gc=False):
    """The message of a chat choice, or the delta of one in a stream."""

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
    """One choice in a chunk of a chat stream."""

    index: Count | None = 0
    delta: Message | None = None
    finish_reason: str | None = None


class TextChunkChoice(msgspec.Struct, gc=False):
    """One choice in a chunk of a completions stream."""

    text: str | None = None
    index: Count | None = 0
    finish_reason: str | None = None


class ChatChunk(msgspec.Struct, gc=False):
    """One chunk of a chat stream."""

    choices: list[ChatChunkChoice] | None = None
    usage: ReportedUsage | None = None
    error: Any = None


class TextChunk(msgspec.Struct, gc=False):
    """One chunk of a completions stream."""

    choices: list[TextChunkChoice] | None = None
    usage: ReportedUsage | None = None
    error: Any = None


# --- chat and completions -------------------------------------------------------------------------


class ChatChoice(msgspec.Struct, gc=False):
    """One choice in a whole chat answer."""

    message: Message
    index: Count | None = 0
    finish_reason: str | None = None


class TextChoice(msgspec.Struct, gc=False):
    """One choice in a whole completions answer."""

    text: str | None
    index: Count | None = 0
    finish_reason: str | None = None


class ChatAnswer(msgspec.Struct, gc=False):
    """A whole answer of /v1/chat/completions."""

    choices: list[ChatChoice]
    usage: ReportedUsage | None = None
    error: Any = None


class CompletionsAnswer(msgspec.Struct, gc=False):
    """A whole answer of /v1/completions."""

    choices: list[TextChoice]
    usage: ReportedUsage | None = None
    error: Any = None


# --- responses ------------------------------------------------------------------------------------


class Part(msgspec.Struct, gc=False):
    """One part of the content of an output item in a /v1/responses answer."""

    text: str | None = None
    refusal: str | None = None


class Item(msgspec.Struct, gc=False):
    """One output item of a /v1/responses answer."""

    type: str = "message"
    content: list[Part] | None = None


class Reason(msgspec.Struct, gc=False):
    """The ``incomplete_details`` of a /v1/responses answer: why it is not complete."""

    reason: str | None = None


class ResponsesAnswer(msgspec.Struct, gc=False):
    """A whole answer of /v1/responses."""

    output: list[Item]
    status: str | None = None
    incomplete_details: Reason | None = None
    usage: ReportedUsage | None = None
    error: Any = None


# --- lists of results -----------------------------------------------------------------------------


class Vector(msgspec.Struct, gc=False):
    """One embedding in an answer; the vector stays raw JSON."""

    embedding: Raw


class EmbeddingsAnswer(msgspec.Struct, gc=False):
    """An answer of /v1/embeddings."""

    data: list[Vector]
    usage: ReportedUsage | None = None
    error: Any = None


class Rank(msgspec.Struct, gc=False):
    """The relevance score of one document in a rerank answer."""

    relevance_score: float | None = None
    score: float | None = None


class RerankAnswer(msgspec.Struct, gc=False):
    """An answer of /v1/rerank; engines name the list ``results`` or ``data``."""

    results: list[Rank] | None = None
    data: list[Rank] | None = None
    usage: ReportedUsage | None = None
    error: Any = None


class Image(msgspec.Struct, gc=False):
    """One image in an answer, as a URL or in base64."""

    url: Raw = _NULL
    b64_json: Raw = _NULL


class ImagesAnswer(msgspec.Struct, gc=False):
    """An answer of /v1/images/generations."""

    data: list[Image]
    usage: ReportedUsage | None = None
    error: Any = None


class Output(msgspec.Struct, gc=False):
    """One output tensor in an answer of KServe's protocol."""

    datatype: str | None = None
    data: Raw = Raw(b"[]")


class InferAnswer(msgspec.Struct, gc=False):
    """An answer of KServe's infer protocol."""

    outputs: list[Output]
    error: Any = None


decode_chat_chunk: Final = msgspec.json.Decoder(ChatChunk).decode
decode_text_chunk: Final = msgspec.json.Decoder(TextChunk).decode
decode_chat: Final = msgspec.json.Decoder(ChatAnswer).decode
decode_completions: Final = msgspec.json.Decoder(CompletionsAnswer).decode
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
    "decode_ranks",
    "decode_rerank",
    "decode_response",
    "decode_text_chunk",
]
