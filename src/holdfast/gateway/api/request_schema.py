"""The members of request bodies that the gateway reads, by API, and the decoders for them.

Members that decide something in the gateway are typed. Members that are often sent and passed on
unchanged are raw: listing them costs a few nanoseconds each, and a request without any unlisted
member is proven clean in one step (``jsontext``). Unlisted members may be sent all the same.

Numbers that may have a fraction are raw on purpose: written again they may be longer than they
came (``1`` and ``1.0``), and the proof rests on texts that never grow.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

Text = str | None | UnsetType
Whole = int | None | UnsetType
Flag = bool | None | UnsetType
Part = Raw | UnsetType
Items = list[Raw] | None | UnsetType


class Common(msgspec.Struct, gc=False):
    """The members that all JSON requests with the model in their body share.

    For decoding; members of type ``Part`` stay raw JSON. Members that are not listed may be sent,
    too.
    """

    model: Text = UNSET
    user: Text = UNSET
    prompt_cache_key: Text = UNSET
    safety_identifier: Text = UNSET
    stream: Flag = UNSET
    metadata: Part = UNSET
    temperature: Part = UNSET
    top_p: Part = UNSET


class Generation(Common, gc=False):
    """The members that chat and completions requests share, beyond ``Common``; for decoding."""

    stream_options: Part = UNSET
    max_tokens: Whole = UNSET
    n: Whole = UNSET
    presence_penalty: Part = UNSET
    frequency_penalty: Part = UNSET
    seed: Part = UNSET
    stop: Part = UNSET
    logit_bias: Part = UNSET
    logprobs: Part = UNSET
    response_format: Part = UNSET
    top_k: Part = UNSET
    ignore_eos: Part = UNSET


class ChatRequest(Generation, gc=False):
    """The members of ``POST /v1/chat/completions`` that the gateway knows; for decoding.

    Others may be sent, too; ``messages`` stays raw JSON.
    """

    messages: Part = UNSET  # a list, whose elements are looked at only where it must be
    max_completion_tokens: Whole = UNSET
    top_logprobs: Whole = UNSET
    tools: Items = UNSET
    tool_choice: Part = UNSET
    parallel_tool_calls: Part = UNSET
    functions: Items = UNSET
    function_call: Part = UNSET
    modalities: Part = UNSET
    audio: Part = UNSET
    reasoning_effort: Part = UNSET
    store: Part = UNSET


class CompletionsRequest(Generation, gc=False):
    """The members of ``POST /v1/completions`` that the gateway knows; others may be sent, too."""

    prompt: Part = UNSET
    best_of: Whole = UNSET
    echo: Part = UNSET
    suffix: Part = UNSET


class EmbeddingsRequest(Common, gc=False):
    """The members of ``POST /v1/embeddings`` that the gateway knows; others may be sent, too."""

    input: Part = UNSET
    encoding_format: Part = UNSET
    dimensions: Part = UNSET


class ModerationsRequest(Common, gc=False):
    """The members of ``POST /v1/moderations`` that the gateway knows; others may be sent, too."""

    input: Part = UNSET


class RerankRequest(Common, gc=False):
    """The members of ``POST /v1/rerank`` that the gateway knows; others may be sent, too."""

    query: Part = UNSET
    documents: Items = UNSET
    top_n: Part = UNSET
    return_documents: Part = UNSET


class ResponsesRequest(Common, gc=False):
    """The members of ``POST /v1/responses`` that the gateway knows; others may be sent, too."""

    input: Part = UNSET
    instructions: Part = UNSET
    max_output_tokens: Whole = UNSET
    tools: Items = UNSET
    tool_choice: Part = UNSET
    text: Part = UNSET
    store: Flag = UNSET
    background: Flag = UNSET
    conversation: Part = UNSET
    previous_response_id: Text = UNSET
    reasoning: Part = UNSET


class SpeechRequest(Common, gc=False):
    """The members of ``POST /v1/audio/speech`` that the gateway knows; others may be sent, too."""

    input: Part = UNSET
    voice: Part = UNSET
    response_format: Part = UNSET


class ImagesRequest(Common, gc=False):
    """The members of ``POST /v1/images/generations`` that the gateway knows; others may be sent."""

    prompt: Part = UNSET
    n: Whole = UNSET
    size: Part = UNSET


class InferRequest(msgspec.Struct, gc=False):
    """The members of ``POST /v2/models/{model}/infer`` that the gateway knows.

    No model among them.
    """

    id: Part = UNSET
    inputs: Items = UNSET
    outputs: Part = UNSET
    parameters: Part = UNSET


class StreamOptions(msgspec.Struct, gc=False):
    """The members of a request's ``stream_options``: whether a stream reports its token usage.

    ``include_usage``: at its end; ``continuous_usage_stats``: in every chunk, too.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Format(msgspec.Struct, gc=False):
    """The one member of ``response_format`` that is read: its type, ``text`` if not said."""

    type: str = "text"


class TextOptions(msgspec.Struct, gc=False):
    """The one member of ``text`` in /v1/responses that is read: the response format."""

    format: Format | None = None


class _Message(msgspec.Struct, gc=False):
    content: Part = UNSET


class _Piece(msgspec.Struct, gc=False):
    """The members of a piece of content that hold media, by the names of APIs and engines."""

    image_url: Part = UNSET
    input_audio: Part = UNSET
    audio_url: Part = UNSET
    video_url: Part = UNSET
    image: Part = UNSET
    audio: Part = UNSET
    video: Part = UNSET
    file: Part = UNSET
    file_data: Part = UNSET  # of /v1/responses
    image_embeds: Part = UNSET  # vLLM
    audio_embeds: Part = UNSET


class _Tensor(msgspec.Struct, gc=False):
    datatype: str = ""


WHOLE: Final = "a whole number"
# What a member must be, for the refusal of one that is something else.
FIXES: Final[dict[str, str]] = {
    "model": "the name of a model, as GET /v1/models lists them",
    "user": "a string",
    "prompt_cache_key": "a string",
    "safety_identifier": "a string",
    "stream": "true or false",
    "stream_options": "an object such as {include_usage: true}",
    "store": "true or false",
    "background": "true or false",
    "previous_response_id": "the id of a response",
    "max_tokens": WHOLE,
    "max_completion_tokens": WHOLE,
    "max_output_tokens": WHOLE,
    "n": WHOLE,
    "best_of": WHOLE,
    "logprobs": "a whole number, true or false",
    "top_logprobs": WHOLE,
    "prompt_logprobs": WHOLE,
    "temperature": "a number",
    "top_p": "a number",
    "presence_penalty": "a number",
    "frequency_penalty": "a number",
    "messages": "a list of messages",
    "tools": "a list of tools",
    "functions": "a list of functions",
    "documents": "a list of texts",
    "inputs": "a list of tensors",
    "stop": "a string or a list of strings",
    "logit_bias": "an object of numbers",
    "response_format": "an object with a type",
    "text": "an object with a format",
    "prompt": "a string, a list of strings, or a list of token ids",
    "input": "a string, a list of strings, or a list of token ids",
    "query": "a string",
}

MEDIA_FROM: Final = 4_096  # bytes of a message; one with a picture in base64 is longer
_MEDIA_BYTES: Final = 768 * 4  # a picture or sound as if it were text: from 85 to 1,500 tokens

_BRACKET: Final = ord("[")

decode_raws: Final = msgspec.json.Decoder(list[Raw]).decode
decode_number: Final = msgspec.json.Decoder(float | None).decode
decode_count: Final = msgspec.json.Decoder(int | bool | None).decode
decode_options: Final = msgspec.json.Decoder(StreamOptions | None).decode
decode_object: Final = msgspec.json.Decoder(dict[str, Raw] | None).decode
decode_format: Final = msgspec.json.Decoder(Format | None).decode
decode_text_options: Final = msgspec.json.Decoder(TextOptions | None).decode
decode_stop: Final = msgspec.json.Decoder(str | list[str] | None).decode
_decode_message: Final = msgspec.json.Decoder(_Message).decode
_decode_pieces: Final = msgspec.json.Decoder(list[_Piece]).decode
_decode_tensor: Final = msgspec.json.Decoder(_Tensor).decode
_media_of: Final = msgspec.structs.astuple
_encode: Final = msgspec.json.Encoder().encode


def message_bytes(messages: Raw) -> int:
    """Return the size of a JSON list of messages in bytes; long media count as a fixed size.

    Anything that is not a list counts by its length.
    """
    try:
        return sum(map(text_bytes, decode_raws(messages)))
    except ValueError:
        return len(messages)


def text_bytes(message: Raw) -> int:
    """Return the size of one message in bytes; in a long one each image or sound has a fixed size.

    Everything else counts by its length, known or not: tool calls, refusals, reasoning, names. A
    message of at most 4 KiB counts by its length.
    """
    size = len(message)
    if size <= MEDIA_FROM:
        return size
    try:
        content = _decode_message(message).content
        if content is UNSET or memoryview(content)[0] != _BRACKET:
            return size
        pieces = _decode_pieces(content)
    except ValueError:
        return size  # of a shape that is not known: its size is all there is
    for piece in pieces:
        for media in _media_of(piece):
            if media is not UNSET:
                size += _MEDIA_BYTES - len(media)
    return size


def holds_texts(tensors: Sequence[Raw]) -> bool:
    """Whether any tensor of an infer request holds texts.

    True also if one does not say its type.
    """
    try:
        return any(_decode_tensor(tensor).datatype in {"", "BYTES"} for tensor in tensors)
    except ValueError:
        return True


# Members that bend which tokens come, so that an answer may end before its first letter.
SHAPING: Final = frozenset(
    {
        *("allowed_token_ids", "bad_words", "ebnf", "grammar", "guided_choice", "guided_grammar"),
        *("guided_regex", "regex", "stop_regex", "stop_token_ids", "structural_tag"),
        "structured_outputs",
    }
)

# --- what forbids that an answer is continued elsewhere (design: a stream ends honestly) ----------

_UNSAID: Final = frozenset({b"null"})
_OFF: Final = frozenset({b"null", b"false"})
_ONE: Final = frozenset({b"null", b"1"})
_FREE: Final = frozenset({b"null", b'"auto"', b'"none"'})
_EMPTY: Final = frozenset({b"null", b'""'})
_CHOICES: Final = "more than one choice is asked for"
_LOGPROBS: Final = "log probabilities of what was said would be lost"
GUIDED: Final = "guided decoding would begin anew"
_FORCED: Final = "a tool call is forced"
_MEDIA: Final = "the output is not text alone"

# Members, and the values with which they forbid nothing.
HARMLESS: Final[dict[str, tuple[frozenset[bytes], str]]] = {
    "n": (_ONE, _CHOICES),
    "best_of": (_ONE, _CHOICES),
    "use_beam_search": (_OFF, "a beam search begins anew"),
    "logprobs": (_OFF, _LOGPROBS),
    "top_logprobs": (frozenset({b"null", b"0"}), _LOGPROBS),
    "prompt_logprobs": (_OFF, _LOGPROBS),
    "tool_choice": (_FREE, _FORCED),
    "function_call": (_FREE, _FORCED),
    "modalities": (frozenset({b"null", b'["text"]'}), _MEDIA),
    "audio": (_UNSAID, _MEDIA),
    "echo": (_OFF, "the prompt is to be echoed"),
    "suffix": (_EMPTY, "text is to be inserted, not added"),
    "prompt_embeds": (_UNSAID, "the prompt is not text"),
    "guided_json": (_UNSAID, GUIDED),
    "guided_regex": (_UNSAID, GUIDED),
    "guided_choice": (_UNSAID, GUIDED),
    "guided_grammar": (_UNSAID, GUIDED),
    "guided_json_object": (_OFF, GUIDED),
    "structured_outputs": (_UNSAID, GUIDED),
    "structural_tag": (_UNSAID, GUIDED),
    "grammar": (_EMPTY, GUIDED),
    "json_schema": (_UNSAID, GUIDED),
    "regex": (_UNSAID, GUIDED),
    "ebnf": (_UNSAID, GUIDED),
}


def forbids_continuation(m: ChatRequest | CompletionsRequest, extras: Mapping[str, Raw]) -> str:
    """Return why an answer to this request cannot be continued elsewhere; empty if it can.

    ``extras``: members that the struct does not list. Judges the members only, not the engine or
    ``response_format``.
    """
    if not extras and m.n is UNSET and m.logprobs is UNSET:  # as in most requests
        if isinstance(m, CompletionsRequest):
            if m.best_of is UNSET and m.echo is UNSET and m.suffix is UNSET:
                return ""
        elif (
            m.tool_choice is UNSET
            and m.top_logprobs is UNSET
            and m.function_call is UNSET
            and m.modalities is UNSET
            and m.audio is UNSET
        ):
            return ""
    for name, (harmless, why) in HARMLESS.items():
        value = extras[name] if name in extras else getattr(m, name, UNSET)
        if value is not UNSET:
            text = bytes(value) if isinstance(value, Raw) else _encode(value)
            if text not in harmless:
                return why
    return ""


__all__ = [
    "FIXES",
    "GUIDED",
    "HARMLESS",
    "MEDIA_FROM",
    "SHAPING",
    "WHOLE",
    "ChatRequest",
    "Common",
    "CompletionsRequest",
    "EmbeddingsRequest",
    "Flag",
    "Generation",
    "ImagesRequest",
    "InferRequest",
    "Items",
    "ModerationsRequest",
    "Part",
    "RerankRequest",
    "ResponsesRequest",
    "SpeechRequest",
    "Whole",
    "decode_count",
    "decode_format",
    "decode_number",
    "decode_object",
    "decode_options",
    "decode_raws",
    "decode_stop",
    "decode_text_options",
    "forbids_continuation",
    "holds_texts",
    "message_bytes",
    "text_bytes",
]
