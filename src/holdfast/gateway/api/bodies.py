"""Parses a request body once, checks every limit, and returns what the request asks for.

Prompts stay bytes. A typed decoder takes the few members that routing, quota and continuation need
and leaves the rest as raw text inside the body that came in; ``jsontext`` proves that the engine
will read the same members. Every limit is checked here, before anything is queued, and a refusal
names the member and the fix without quoting what was sent.

The gateway does not judge what it does not need: ranges of temperatures, roles, schemas and what a
picture shows are the engine's business, and engines learn new members faster than gateways. Where
an engine is sent for a picture is not (``media``).

Rejected: pydantic models of the whole API. They cost a hundred times as much for a long prompt, and
refuse tomorrow's parameters.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar
from zlib import crc32

import msgspec
from msgspec import UNSET, Raw, UnsetType

from holdfast.config.gateway import BodyConfig
from holdfast.core.intake.media_urls import media_hosts
from holdfast.gateway.api import multipart
from holdfast.gateway.api import request_schema as known
from holdfast.gateway.api.errors import INVALID, ApiError, invalid
from holdfast.gateway.api.jsontext import Counts, Extras, check_finite, open_object, with_members
from holdfast.gateway.api.media import check_fields, check_media
from holdfast.gateway.api.multipart import Field
from holdfast.gateway.api.prompts import BLOCK_BYTES, Blocks, estimate_tokens
from holdfast.gateway.api.request_schema import (
    FIXES,
    ChatRequest,
    CompletionsRequest,
    EmbeddingsRequest,
    Items,
)
from holdfast.gateway.api.response_ids import KeptResponse
from holdfast.gateway.api.routes import Api, Route, is_sane_model, path_model, path_response

_JSON: Final = b"application/json"
_JSON_LINE: Final = b"content-type: application/json\r\n"
_OCTETS_LINE: Final = b"content-type: application/octet-stream\r\n"
_HEAD_LENGTH: Final = b"inference-header-content-length"
_NO_HEADERS: Final[Mapping[bytes, bytes]] = {}
_SESSION_CHARACTERS: Final = 256  # of a client's own name for its session; more adds nothing
_SEED_BYTES: Final = 4_096  # of the tools, which stand before the messages in the prompt
_MESSAGES: Final = b'"messages":['
_NULL: Final = Raw(b"null")
_CHAT: Final = Api.CHAT  # a name of this module: that of a class is looked up each time
_NO_BACKGROUND: Final = (
    "background is not supported: nothing here keeps an answer that nobody waits for. Leave it out "
    "and wait for the answer, or send the request in a batch."
)
_NO_CONVERSATION: Final = (
    "conversation is not supported: nothing here keeps one. Leave it out, and use "
    "previous_response_id or send the turns as input."
)
_TURNS: Final = "a string or a list of messages and other items"  # the input of /v1/responses
_PARAMETERS_BYTES: Final = 256  # a model's name, temperature, stop strings: none of the prompt
_SHORT_LIST: Final = 8  # bytes: it may be empty, with blanks between its brackets
_JSON_FORMATS: Final = frozenset({"json_object", "json_schema"})
_QUOTE: Final = ord('"')
_BRACKET: Final = ord("[")
_NUMBER: Final = frozenset(b"-0123456789")

_NOT_STREAMED: Final = "only streams of chat and completions are continued"


class ParsedRequest(msgspec.Struct, gc=False):
    """A checked request body: model, options, limits and prompt size, as the gateway needs them.

    ``body`` is what engines get, but for the model's name. Built by ``parse`` for every request.
    """

    route: Route
    api: Api
    model: str
    body: bytes  # JSON: each member once, no blanks between them; a form: as it came
    type_line: bytes  # the header line with the content type of what goes to the engine
    headers: bytes = b""  # more header lines for the engine, each with its CRLF
    version: str = ""  # of the model, in the path of an infer request
    stream: bool = False
    wants_usage: bool = False  # the client itself asked for usage in its stream
    wants_running_usage: bool = False  # and in every chunk of it
    has_stream_options: bool = False
    max_tokens: int = 0  # of one choice; 0 = not said
    n: int = 1  # choices of each prompt in the answer
    prompts: int = 1  # each is answered by itself
    choices: int = 1  # answers that the engine makes; each may be as long as max_tokens
    prompt_bytes: int = 0  # of all that may become the prompt; media count as a fixed size
    prompt_tokens: int = 1  # estimated from them
    prefix: Sequence[int] = ()
    session: str = ""
    stop: tuple[str, ...] = ()
    shaped: bool = False  # it bends which tokens come: the first of them may be the end
    json_expected: bool = False
    tools: bool = False
    continuable: bool = False
    reason: str = _NOT_STREAMED  # why it is not continuable
    hedgeable: bool = True  # False where a second execution would have an effect
    stores: bool = False  # the engine keeps the answer under an id of its own
    response_id: str = ""  # of an answer that a replica keeps, as the client knows it
    kept: KeptResponse | None = None  # that answer: set once its id was found to be the tenant's
    opaque: bool = False  # the answer is not JSON: only the client can judge it
    greedy: bool = False  # temperature 0: asked again, it says nearly the same
    statistic: str = ""  # what can be measured in the answer: logprob, norm, score or tensor
    members: Any = None  # the struct behind the body, where that has no other members
    fields: list[Field] | None = None  # of a form
    boundary: bytes = b""

    def keep_to(self, engine_id: str) -> None:
        """Name the answer that this request continues as the engine that keeps it knows it."""
        self.body = with_members(self.body, {"previous_response_id": engine_id})
        if self.members is not None:
            self.members.previous_response_id = engine_id


# --- reading --------------------------------------------------------------------------------------


def parse(
    route: Route,
    content_type: bytes,
    path: bytes,
    body: bytes,
    limits: BodyConfig,
    *,
    prefix_blocks: int = 0,
    headers: Mapping[bytes, bytes] = _NO_HEADERS,
) -> ParsedRequest:
    """Parse and check the complete body of a request; raise ``ApiError`` if it is refused.

    Checks types and limits, not whether the model exists. ``prefix_blocks``: how many hashes of the
    prompt's beginning to offer for routing; 0: none.
    """
    api = route.api
    reader = _READERS.get(api)
    if reader is None:
        if api is Api.RESPONSE:
            return _kept_response(route, path)
        if api is Api.TRANSCRIPTIONS:
            return _parse_form(route, content_type, body, limits)
        return _parse_infer(route, content_type, path, body, limits, headers)
    if content_type != _JSON:
        _check_content_type(content_type)
    decode, read = reader
    members, text, extras, counts = open_object(decode, body, FIXES, limits.json_depth_max)
    ask = ParsedRequest(route, api, _checked_model(members.model), text, _JSON_LINE)
    if not extras:
        ask.members = members
    if members.stream is True:
        if not route.streams:
            raise invalid("stream is not supported here; leave it out.", "stream")
        ask.stream = True
    session = members.prompt_cache_key or members.user or members.safety_identifier
    if session:
        ask.session = session[:_SESSION_CHARACTERS]
    if members.temperature is not UNSET:
        ask.greedy = _read("temperature", known.decode_number, members.temperature) == 0
    if members.top_p is not UNSET:
        _read("top_p", known.decode_number, members.top_p)
    if extras or api is not _CHAT or _passes_on(members):
        _check_finite(api, members, extras)
    # A picture stands in a list within the list of messages, or is a member of its own.
    if extras or api is not _CHAT or text.find(b"[", text.find(b"[") + 1) >= 0:
        check_media(members, extras, counts[1], media_hosts(limits.media_hosts))
    weighed = read(ask, members, limits, extras, counts, prefix_blocks)
    # Templates, documents, schemas: engines make prompts of members that no gateway can list.
    rest = len(text) - weighed - _PARAMETERS_BYTES
    if rest > 0:
        ask.prompt_bytes += rest
    ask.prompt_tokens = ask.prompt_bytes >> 2 or 1  # as estimate_tokens, without the call
    return ask


def _passes_on(m: ChatRequest) -> bool:
    """Whether a chat has any member of ``_PASSED_ON``. By name: a loop costs ten times as much."""
    return not (
        m.seed is UNSET
        and m.metadata is UNSET
        and m.response_format is UNSET
        and m.logit_bias is UNSET
        and m.top_k is UNSET
        and m.ignore_eos is UNSET
        and m.tool_choice is UNSET
        and m.parallel_tool_calls is UNSET
        and m.function_call is UNSET
        and m.modalities is UNSET
        and m.audio is UNSET
        and m.reasoning_effort is UNSET
        and m.store is UNSET
    )


def _check_finite(api: Api, members: msgspec.Struct, extras: Extras) -> None:
    """Refuse infinities in members that nobody here reads: an engine would compute with them."""
    for name in _PASSED_ON[api]:
        value = getattr(members, name)
        if value is not UNSET:
            check_finite(name, value)
    for name in extras:
        check_finite(name, extras[name])


def _read_chat(
    ask: ParsedRequest,
    m: ChatRequest,
    limits: BodyConfig,
    extras: Extras,
    counts: Counts,
    prefix_blocks: int,
) -> int:
    messages = m.messages
    if messages is UNSET:
        raise _missing("messages")
    whole = size = len(messages)
    if memoryview(messages)[0] != _BRACKET or size < _SHORT_LIST:
        _check_messages(messages)
    lists, objects = counts
    if objects > limits.messages_max:  # else there cannot be too many messages among them
        _counted("messages", known.decode_raws(messages), limits.messages_max)
    if lists > 1 and size > known.MEDIA_FROM:
        size = known.message_bytes(messages)
    seed = b""
    if m.tools is not UNSET or m.functions is not UNSET:
        for name, tools in (("tools", m.tools), ("functions", m.functions)):
            defined = _counted(name, tools, limits.tools_max)
            seed += b",".join(defined)
            ask.tools = ask.tools or bool(defined)
        size += len(seed)
    ask.prompt_bytes = size
    if m.top_logprobs is not UNSET:
        _bounded("top_logprobs", m.top_logprobs, 0, limits.top_logprobs_max)
    _read_generation(ask, m, limits, extras)
    said = m.max_completion_tokens
    if said is not UNSET and said is not None:
        ask.max_tokens = _bounded("max_completion_tokens", said, 0, limits.max_tokens_max)
    if prefix_blocks and size >= BLOCK_BYTES:
        ask.prefix = _prefix(ask.body, whole - 2, prefix_blocks, seed)
    return whole + len(seed)


def _read_completions(
    ask: ParsedRequest,
    m: CompletionsRequest,
    limits: BodyConfig,
    extras: Extras,
    _: Counts,
    prefix_blocks: int,
) -> int:
    one_text = False
    weighed = 0
    if m.prompt is not UNSET and not (m.prompt == _NULL and "prompt_embeds" in extras):
        one_text = _read_texts(ask, "prompt", m.prompt, limits)
        weighed = len(m.prompt)
        if prefix_blocks:
            ask.prefix = Blocks(memoryview(m.prompt), prefix_blocks)
    elif "prompt_embeds" not in extras:
        raise _missing("prompt")
    best_of = 0 if m.best_of is UNSET else _bounded("best_of", m.best_of, 1, limits.n_max)
    _read_generation(ask, m, limits, extras)
    ask.choices = max(ask.n, best_of) * ask.prompts  # of best_of the engine returns n
    if ask.continuable and not one_text:
        ask.continuable, ask.reason = False, "the prompt is not one text"
    return weighed


def _read_generation(
    ask: ParsedRequest, m: ChatRequest | CompletionsRequest, limits: BodyConfig, extras: Extras
) -> None:
    """What chat and completions have in common."""
    if m.max_tokens is not UNSET:
        ask.max_tokens = _bounded("max_tokens", m.max_tokens, 0, limits.max_tokens_max)
    if m.n is not UNSET:
        ask.n = ask.choices = _bounded("n", m.n, 1, limits.n_max) or 1
    if m.stream_options is not UNSET:
        options = _read("stream_options", known.decode_options, m.stream_options)
        ask.has_stream_options = True
        ask.wants_usage = options is not None and options.include_usage is True
        ask.wants_running_usage = (
            ask.wants_usage and options is not None and options.continuous_usage_stats is True
        )
    if m.stop is not UNSET:
        stop = _read("stop", known.decode_stop, m.stop) or ()
        ask.stop = (stop,) if isinstance(stop, str) else tuple(stop)
        if len(ask.stop) > limits.stop_max:
            raise _too_many("stop", limits.stop_max)
    if m.logit_bias is not UNSET:
        bias = _read("logit_bias", known.decode_object, m.logit_bias)
        if bias is not None and len(bias) > limits.logit_bias_max:
            raise _too_many("logit_bias", limits.logit_bias_max)
        ask.shaped = bool(bias)
    if extras and not known.SHAPING.isdisjoint(extras):
        ask.shaped = True
    if m.logprobs is not UNSET:
        count = _read("logprobs", known.decode_count, m.logprobs)
        if _bounded("logprobs", count, 0, limits.top_logprobs_max):
            ask.statistic = "logprob"
    if "prompt_logprobs" in extras:
        count = _read("prompt_logprobs", known.decode_count, extras["prompt_logprobs"])
        _bounded("prompt_logprobs", count, -1, limits.top_logprobs_max)  # vLLM: -1 is all of them
    if m.presence_penalty is not UNSET:
        _read("presence_penalty", known.decode_number, m.presence_penalty)
    if m.frequency_penalty is not UNSET:
        _read("frequency_penalty", known.decode_number, m.frequency_penalty)
    guided = False
    if m.response_format is not UNSET:
        form = _read("response_format", known.decode_format, m.response_format)
        guided = form is not None and form.type != "text"
        ask.json_expected = guided and form is not None and form.type in _JSON_FORMATS
    if ask.stream:
        ask.reason = known.GUIDED if guided else known.forbids_continuation(m, extras)
        ask.continuable = not ask.reason


def _read_embeddings(
    ask: ParsedRequest,
    m: EmbeddingsRequest,
    limits: BodyConfig,
    extras: Extras,
    _: Counts,
    prefix_blocks: int,
) -> int:
    ask.statistic = "norm"
    if m.input is not UNSET:
        _read_texts(ask, "input", m.input, limits)
        ask.prompts = 1  # read at once, and nothing is written for any of them
        if prefix_blocks:
            ask.prefix = Blocks(memoryview(m.input), prefix_blocks)
        return len(m.input)
    if "messages" in extras:  # vLLM embeds chats, with pictures
        messages = extras["messages"]
        ask.prompt_bytes = known.message_bytes(messages)
        return len(messages)
    raise _missing("input")


def _read_rerank(ask: ParsedRequest, m: known.RerankRequest, limits: BodyConfig, *_: object) -> int:
    ask.statistic = "score"
    documents = _counted("documents", m.documents, limits.inputs_max)
    if not documents:
        raise _missing("documents")
    if m.query is UNSET:
        raise _missing("query")
    size = sum(map(len, documents))
    ask.prompt_bytes = len(m.query) * len(documents) + size  # read with each document
    return len(m.query) + size


def _read_responses(
    ask: ParsedRequest,
    m: known.ResponsesRequest,
    limits: BodyConfig,
    extras: Extras,
    _: Counts,
    prefix_blocks: int,
) -> int:
    weighed = 0
    if m.input is not UNSET:
        if m.input == _NULL:
            raise _missing("input", _TURNS)
        _read_texts(ask, "input", m.input, limits, limits.messages_max, _TURNS)
        ask.prompts = 1  # turns of one conversation
        weighed = len(m.input)
        if weighed > known.MEDIA_FROM and memoryview(m.input)[0] == _BRACKET:
            ask.prompt_bytes = known.message_bytes(m.input)
        if prefix_blocks:
            ask.prefix = Blocks(memoryview(m.input), prefix_blocks)
    elif "prompt" not in extras:  # the name of a stored one
        raise _missing("input", _TURNS)
    if m.instructions is not UNSET:
        ask.prompt_bytes += len(m.instructions)
        weighed += len(m.instructions)
    if m.max_output_tokens is not UNSET:
        said = m.max_output_tokens
        ask.max_tokens = _bounded("max_output_tokens", said, 0, limits.max_tokens_max)
    ask.tools = bool(_counted("tools", m.tools, limits.tools_max))
    if m.text is not UNSET:
        options = _read("text", known.decode_text_options, m.text)
        form = None if options is None else options.format
        ask.json_expected = form is not None and form.type in _JSON_FORMATS
    if m.background is True:
        raise invalid(_NO_BACKGROUND, "background")
    if m.conversation is not UNSET and m.conversation != _NULL:
        raise invalid(_NO_CONVERSATION, "conversation")
    if m.previous_response_id is not UNSET:
        ask.response_id = m.previous_response_id or ""
    ask.hedgeable = m.store is False  # stored unless the client says otherwise
    ask.stores = not ask.hedgeable
    return weighed


def _read_speech(ask: ParsedRequest, m: known.SpeechRequest, limits: BodyConfig, *_: object) -> int:
    if m.input is UNSET:
        raise _missing("input")
    _read_texts(ask, "input", m.input, limits)
    ask.choices = ask.prompts
    ask.hedgeable = False  # each costs as much as a long answer
    ask.opaque = True
    return len(m.input)


def _read_images(ask: ParsedRequest, m: known.ImagesRequest, limits: BodyConfig, *_: object) -> int:
    if m.prompt is UNSET:
        raise _missing("prompt")
    _read_texts(ask, "prompt", m.prompt, limits)
    if m.n is not UNSET:
        ask.n = _bounded("n", m.n, 1, limits.n_max) or 1
    ask.choices = ask.n * ask.prompts
    ask.hedgeable = False  # as speech
    return len(m.prompt)


def _read_moderations(
    ask: ParsedRequest,
    m: known.ModerationsRequest,
    limits: BodyConfig,
    _: Extras,
    __: Counts,
    ___: int,
) -> int:
    if m.input is UNSET:
        raise invalid("input must be a text or a list of texts.", "input")
    _read_texts(ask, "input", m.input, limits)
    ask.prompts = 1  # read at once, and nothing is written for any of them
    return len(m.input)


_Reader = tuple[Callable[[bytes], Any], Callable[..., int]]  # which returns the bytes it weighed
_READERS: Final[dict[Api, _Reader]] = {
    Api.CHAT: (msgspec.json.Decoder(ChatRequest).decode, _read_chat),
    Api.COMPLETIONS: (msgspec.json.Decoder(CompletionsRequest).decode, _read_completions),
    Api.EMBEDDINGS: (msgspec.json.Decoder(EmbeddingsRequest).decode, _read_embeddings),
    Api.MODERATIONS: (msgspec.json.Decoder(known.ModerationsRequest).decode, _read_moderations),
    Api.RERANK: (msgspec.json.Decoder(known.RerankRequest).decode, _read_rerank),
    Api.RESPONSES: (msgspec.json.Decoder(known.ResponsesRequest).decode, _read_responses),
    Api.SPEECH: (msgspec.json.Decoder(known.SpeechRequest).decode, _read_speech),
    Api.IMAGES: (msgspec.json.Decoder(known.ImagesRequest).decode, _read_images),
}
_STRUCTS: Final[dict[Api, type[msgspec.Struct]]] = {
    Api.CHAT: ChatRequest,
    Api.COMPLETIONS: CompletionsRequest,
    Api.EMBEDDINGS: EmbeddingsRequest,
    Api.MODERATIONS: known.ModerationsRequest,
    Api.RERANK: known.RerankRequest,
    Api.RESPONSES: known.ResponsesRequest,
    Api.SPEECH: known.SpeechRequest,
    Api.IMAGES: known.ImagesRequest,
}
_READ_OR_TEXT: Final = frozenset(
    {
        *("temperature", "top_p", "presence_penalty", "frequency_penalty", "logprobs"),
        *("stream_options", "stop"),
        *("messages", "prompt", "input", "instructions", "query", "suffix"),
    }
)
# Raw members, often sent and passed on unread, whose numbers must be finite all the same. Not
# those that make up the prompt: long, and no engine computes with a number in them.
_PASSED_ON: Final[dict[Api, tuple[str, ...]]] = {
    api: tuple(
        field.name
        for field in msgspec.structs.fields(struct)
        if field.type == known.Part and field.name not in _READ_OR_TEXT
    )
    for api, struct in _STRUCTS.items()
}
_decode_infer: Final = msgspec.json.Decoder(known.InferRequest).decode


def _parse_infer(
    route: Route,
    content_type: bytes,
    path: bytes,
    body: bytes,
    limits: BodyConfig,
    headers: Mapping[bytes, bytes],
) -> ParsedRequest:
    """A request of KServe's protocol: JSON, or JSON followed by the bytes of its tensors."""
    model, version = path_model(route, path)
    length = headers.get(_HEAD_LENGTH)
    head, tensors = body, b""
    if length is not None:
        if not length.isdigit() or len(length) > 9 or int(length) > len(body):
            name = _HEAD_LENGTH.decode()
            raise invalid(f"{name} must be the length of the JSON before the tensors.", name)
        head, tensors = body[: int(length)], body[int(length) :]
    elif content_type:
        _check_content_type(content_type)
    m, text, _, _ = open_object(_decode_infer, head, FIXES, limits.json_depth_max)
    inputs = _counted("inputs", m.inputs, limits.inputs_max)
    if not inputs:
        raise _missing("inputs")
    ask = ParsedRequest(route, route.api, model, text, _JSON_LINE, version=version)
    ask.statistic = "" if version else "tensor"  # another version is another distribution
    if length is not None:
        ask.body = text + tensors
        ask.type_line = _OCTETS_LINE
        ask.headers = b"%b: %d\r\n" % (_HEAD_LENGTH, len(text))
    ask.prompt_bytes = len(text)
    if tensors and known.holds_texts(inputs):
        ask.prompt_bytes += len(tensors)
    ask.prompt_tokens = estimate_tokens(ask.prompt_bytes)
    return ask


def _kept_response(route: Route, path: bytes) -> ParsedRequest:
    """A request about an answer that a replica keeps; its body, if any, says nothing."""
    name, _ = path_response(path)
    ask = ParsedRequest(route, route.api, "", b"", b"", response_id=name)
    ask.hedgeable, ask.stores = False, True
    return ask


def _parse_form(
    route: Route, content_type: bytes, body: bytes, limits: BodyConfig
) -> ParsedRequest:
    """A form with a file. Its text fields are the members."""
    boundary = multipart.boundary_of(content_type)
    fields = multipart.parse(body, boundary, limits.multipart_fields_max)
    texts: dict[str, str] = {}
    for field in fields:
        if field.name in {"model", "stream", "response_format", "prompt", "user"}:
            if field.name in texts or field.filename is not None:
                raise invalid(f"{field.name} must be one plain field of the form.", field.name)
            texts[field.name] = field.text()
    check_fields(fields, media_hosts(limits.media_hosts))
    if all(field.filename is None for field in fields):
        raise _missing("file")
    model = _checked_model(texts.get("model", UNSET))
    type_line = b"content-type: %b\r\n" % multipart.content_type_of(boundary)
    ask = ParsedRequest(route, route.api, model, body, type_line)
    ask.fields, ask.boundary = fields, boundary
    if texts.get("stream", "false").lower() not in {"", "0", "false"}:
        raise invalid("stream is not supported here; leave it out.", "stream")
    ask.opaque = texts.get("response_format", "json") not in {"", "json", "verbose_json"}
    ask.session = texts.get("user", "")[:_SESSION_CHARACTERS]
    # The file is sound; whatever else the engine reads as text is counted.
    ask.prompt_bytes = sum(len(field.value) for field in fields if field.filename is None)
    ask.prompt_tokens = estimate_tokens(ask.prompt_bytes)
    return ask


# --- single members -------------------------------------------------------------------------------

_Value = TypeVar("_Value")
_MODELS_KEPT: Final = 1_024  # names found to be sane, so that each is looked at once
_sane_models: Final[set[str]] = set()


def _read(name: str, decode: Callable[[Raw], _Value], raw: Raw) -> _Value:
    try:
        return decode(raw)
    except ValueError:  # of msgspec, which says less than we know
        raise invalid(f"{name} must be {FIXES[name]}.", name) from None


def _checked_model(model: str | UnsetType | None) -> str:
    if model in _sane_models:
        return model
    if model is UNSET:
        raise _missing("model")
    if model is None or not is_sane_model(model):
        raise invalid(f"model must be {FIXES['model']}.", "model")
    if len(_sane_models) == _MODELS_KEPT:
        _sane_models.clear()
    _sane_models.add(model)
    return model


def _bounded(name: str, value: int | None, least: int, most: int) -> int:
    """A number within its bounds; 0 if it was not said."""
    if value is None:
        return 0
    if not least <= value <= most:
        raise invalid(f"{name} must be from {least} to {most}.", name)
    return value


def _counted(name: str, items: Items, most: int) -> list[Raw]:
    """A list within its bound; empty if it was not sent."""
    if items is UNSET or not items:
        return []
    if len(items) > most:
        raise _too_many(name, most)
    return items


def _read_texts(
    ask: ParsedRequest,
    name: str,
    raw: Raw,
    limits: BodyConfig,
    count_max: int | None = None,
    fix: str = "",
) -> bool:
    """Weigh a text, a list of them, or token ids; whether it is one text."""
    first = memoryview(raw)[0]
    ask.prompt_bytes = len(raw)
    if first == _QUOTE:
        return True
    items = _read(name, known.decode_raws, raw) if first == _BRACKET else None
    if not items:
        raise invalid(f"{name} must be {fix or FIXES[name]}, and not empty.", name)
    first = memoryview(items[0])[0]
    ids = b'"' not in bytes(raw)  # texts among them weigh what they are long
    if first in _NUMBER:
        if ids:
            ask.prompt_bytes = 4 * len(items)  # exactly known, and divided by 4 again
        return False
    if len(items) > (limits.inputs_max if count_max is None else count_max):
        raise _too_many(name, limits.inputs_max if count_max is None else count_max)
    ask.prompts = len(items)
    if first == _BRACKET and ids:
        ask.prompt_bytes = 4 * sum([item.count(b",") + 1 for item in map(bytes, items)])
    return False


def _check_messages(messages: Raw) -> None:
    """Refuse what is no list, and a list without a message."""
    text = bytes(messages)
    if text[0] != _BRACKET and text != b"null":
        raise invalid(f"messages must be {FIXES['messages']}.", "messages")
    if text == b"null" or not known.decode_raws(messages):
        raise _missing("messages")


def _prefix(body: bytes, size: int, blocks_max: int, tools: bytes) -> Blocks:
    """Block hashes of the beginning of a conversation: the messages and the commas between them.

    The name stands in the body as it is looked for; in a string its quotes would be escaped. A
    member inside another may have it too: its sender's prompts then have no home, or one together.
    """
    start = body.find(_MESSAGES) + len(_MESSAGES)
    seed = crc32(tools[:_SEED_BYTES]) if tools else 0
    return Blocks(body, blocks_max, start, size, seed)


def _missing(name: str, fix: str = "") -> ApiError:
    message = f"{name} is required and must be {fix or FIXES.get(name, 'a file')}."
    return invalid(message, name, "missing_required_parameter")


def _too_many(name: str, most: int) -> ApiError:
    return invalid(f"{name} has too many entries; send at most {most}.", name)


def _check_content_type(content_type: bytes) -> None:
    """Only JSON. Other types may be sent by any web page to any address without being asked."""
    kind = content_type.partition(b";")[0].strip().lower()
    if kind != _JSON and not (kind.startswith(b"application/") and kind.endswith(b"+json")):
        message = "Send the body as JSON, with content-type: application/json."
        raise ApiError(415, INVALID, "unsupported_media_type", message)


def check_coding(coding: bytes) -> None:
    """Raise ``ApiError`` 415 unless this Content-Encoding is ``identity``.

    A short compressed body could expand beyond every limit.
    """
    if coding.strip().lower() != b"identity":
        message = "Send the body as it is, without content-encoding."
        raise ApiError(415, INVALID, "unsupported_media_type", message)


__all__ = ["ParsedRequest", "check_coding", "parse"]
