"""Computes the tokens of an answer from the body of a chat or completions request.

Pure: the request and the style of the stand-in go in, choices come out. Parsing is lenient in
what it does not need, as engines are, and strict where a gateway could get a continuation wrong:
``continue_final_message`` beside ``add_generation_prompt`` is refused, as vLLM refuses it.
"""

import re
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

import msgspec
import orjson

from holdfast.testing.standin.options import Like, Options
from holdfast.testing.standin.text import (
    WORDS,
    WRONG,
    ChatMessage,
    behind,
    chat_seed,
    chat_tokens,
    choice_seed,
    picks,
    prompt_tokens,
    said_within,
)

N_MAX: Final = 128  # choices; real engines die of millions
GARBAGE_TOKENS: Final = 256  # of an answer in one piece that would otherwise never end
TOKENS_MAX: Final = 1_000_000
_JSON_TOKEN: Final = re.compile(r" ?[^ ]+| +")
_CALL_TOKEN: Final = re.compile(r".{1,8}", re.DOTALL)
_DEPTH_MAX: Final = 8


Texts = str | list[str | int | list[int]]


class RequestRefused(Exception):  # noqa: N818  # it is an answer, not an accident
    """A request that is answered with an error; holds its status and text."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param


class AnswerStyle(Enum):
    """Whether answers are sound, wrong, empty or garbage."""

    SOUND = 1
    WRONG = 2
    EMPTY = 3
    GARBAGE = 4


_SOUND: Final = AnswerStyle.SOUND  # looking a member up in its enum costs more than comparing it


class StreamOptions(msgspec.Struct):
    """Whether a stream carries usage, and how often."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Generate(msgspec.Struct):
    """The fields of a chat or completions request that matter here."""

    model: str = ""
    messages: list[ChatMessage] | None = None
    prompt: Texts | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = 1
    stop: str | list[str] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    response_format: Any = None
    continue_final_message: bool = False
    add_generation_prompt: bool = True
    ignore_eos: bool = False
    logprobs: bool | int | None = None  # told of whole answers only

    def limit(self) -> int | None:
        """The maximum number of tokens that the request asks for."""
        given = self.max_completion_tokens
        return self.max_tokens if given is None else given


class Choice:
    """One answer: its tokens and finish reason."""

    __slots__ = ("finish", "other", "said", "tokens", "tool", "unsaid")

    def __init__(
        self, tokens: list[str], finish: str, tool: str | None = None, said: str = ""
    ) -> None:
        self.tokens = tokens
        self.finish = finish
        self.tool = tool  # name of the function it calls
        self.said = said  # what stood before, where the engine repeats it
        self.unsaid = 0  # tokens that were computed and not shown: those of a stop string
        self.other = ""  # a first token that was as likely as the one it has


class AnswerPlan:
    """All answers to one request."""

    __slots__ = ("chat", "choices", "prompt_tokens", "rendered")

    def __init__(self, choices: list[Choice], prompt_tokens: int, *, chat: bool) -> None:
        self.rendered = b""  # all of it but what differs from one sending to the next
        self.choices = choices
        self.prompt_tokens = prompt_tokens
        self.chat = chat

    def longest(self) -> int:
        """Number of tokens of the longest answer, which decides how long the request takes."""
        return max(map(_tokens, self.choices))

    def total(self) -> int:
        """Number of tokens of all answers."""
        return sum(_tokens(choice) + choice.unsaid for choice in self.choices)


def _tokens(choice: Choice) -> int:
    return len(choice.tokens)


_READER: Final = msgspec.json.Decoder(Generate)


def read_generate(body: bytes) -> Generate:
    """Parse the body of a chat or completions request."""
    try:
        asked = _READER.decode(body)
    except msgspec.MsgspecError as error:
        raise RequestRefused(400, "the body is not a valid request", "BadRequestError") from error
    limit = asked.limit()
    if limit is not None and not 1 <= limit <= TOKENS_MAX:
        raise RequestRefused(400, "max_tokens must be at least 1", "BadRequestError", "max_tokens")
    if not 1 <= (asked.n or 1) <= N_MAX:
        raise RequestRefused(400, f"n must lie in 1 to {N_MAX}", "BadRequestError", "n")
    return asked


def plan_chat(asked: Generate, options: Options, mood: AnswerStyle) -> AnswerPlan:
    """Compute the answers to a chat."""
    messages = asked.messages
    if not messages:
        raise RequestRefused(400, "messages is missing or empty", "BadRequestError", "messages")
    if asked.continue_final_message and asked.add_generation_prompt:
        problem = "continue_final_message and add_generation_prompt cannot both be true"
        raise RequestRefused(400, problem, "BadRequestError", "continue_final_message")
    count = len(messages)
    for message in messages:
        content = message.content
        count += (content if isinstance(content, str) else message.text()).count(" ")
    going_on = asked.continue_final_message
    if messages[-1].role == "assistant" and options.like is Like.LLAMACPP:
        going_on = True
    if mood is _SOUND and not going_on and asked.n == 1 and _is_plain(asked):
        seed = chat_seed(asked.model, messages)
        tokens = chat_tokens(seed, _length(asked, options.tokens))
        return AnswerPlan([_finished(asked, tokens)], count, chat=True)
    if mood in (AnswerStyle.EMPTY, AnswerStyle.GARBAGE):
        return AnswerPlan([_moody(asked, mood) for _ in range(asked.n or 1)], count, chat=True)
    twist = WRONG if mood is AnswerStyle.WRONG else b""
    tool = forced_tool(asked)
    choices = []
    for number in range(asked.n or 1):
        if tool is not None:
            seed = choice_seed(chat_seed(asked.model, messages) + twist, number)
            choices.append(_tool_call(asked, tool, seed))
        elif asked.response_format is not None and _wants_json(asked.response_format):
            seed = choice_seed(chat_seed(asked.model, messages) + twist, number)
            choices.append(_json_text(asked, seed, options.tokens))
        elif going_on:
            choices.append(_continued(asked, messages, options, twist, number))
        else:
            seed = choice_seed(chat_seed(asked.model, messages) + twist, number)
            choices.append(_finished(asked, chat_tokens(seed, _length(asked, options.tokens))))
    return AnswerPlan(choices, count, chat=True)


def _is_plain(asked: Generate) -> bool:
    """Nothing but words is asked for."""
    return asked.tools is None and asked.response_format is None


def plan_completion(asked: Generate, options: Options, mood: AnswerStyle) -> AnswerPlan:
    """Compute the continuations of prompts."""
    prompts = _prompts(asked.prompt)
    count = sum(prompt.count(" ") + 1 for prompt in prompts)
    choices = []
    for prompt in prompts:
        for number in range(asked.n or 1):
            if mood in (AnswerStyle.EMPTY, AnswerStyle.GARBAGE):
                choices.append(_moody(asked, mood))
                continue
            longest = TOKENS_MAX if asked.ignore_eos else options.tokens
            seed, said = said_within(asked.model, prompt, longest)
            if mood is AnswerStyle.WRONG:
                seed += WRONG
            seed = choice_seed(seed, number)
            whole = prompt_tokens(seed, _length(asked, options.tokens, said))
            rest = behind(whole, said)
            choices.append(_finished(asked, whole if rest is None else rest))
    return AnswerPlan(choices, count, chat=False)


def note_ties(plan: AnswerPlan, others: AnswerPlan) -> None:
    """Note in each answer that the first token of the other one was as likely as its own."""
    for choice, other in zip(plan.choices, others.choices, strict=True):
        choice.other = other.tokens[0] if other.tokens else ""


def texts_of(given: Texts) -> list[str]:
    """Prompts as texts; token ids are turned into a text that stands for them."""
    if isinstance(given, str):
        return [given]
    if given and isinstance(given[0], int):
        return [" ".join(map(str, given))]
    return [one if isinstance(one, str) else orjson.dumps(one).decode() for one in given]


def _prompts(prompt: Texts | None) -> list[str]:
    prompts = texts_of(prompt or [])
    if not 1 <= len(prompts) <= N_MAX:
        raise RequestRefused(400, f"give 1 to {N_MAX} prompts", "BadRequestError", "prompt")
    return prompts


def _length(asked: Generate, tokens: int, said: str = "") -> int:
    """Words of the whole answer, the said ones included."""
    limit = asked.limit()
    if asked.ignore_eos and limit is not None:
        return limit + said.count(" ")
    return tokens


def _continued(
    asked: Generate, messages: list[ChatMessage], options: Options, twist: bytes, number: int
) -> Choice:
    """Go on behind the last message, with exactly the words that are missing."""
    said = messages[-1].text()
    seed = choice_seed(chat_seed(asked.model, messages[:-1]) + twist, number)
    length = _length(asked, options.tokens, said and f" {said}")
    rest = behind(chat_tokens(seed, length), said)
    if rest is None:  # somebody else's words: go on with something that follows from them
        seed = choice_seed(chat_seed(asked.model, messages) + twist, number)
        rest = prompt_tokens(seed, _length(asked, options.tokens))
    choice = _finished(asked, rest)
    if options.like is Like.LLAMACPP:
        choice.said = said  # llama.cpp repeats it in an answer that is not streamed
    return choice


def _moody(asked: Generate, mood: AnswerStyle) -> Choice:
    if mood is AnswerStyle.EMPTY:
        return Choice([], "stop")
    return Choice(["!"] * (asked.limit() or GARBAGE_TOKENS), "length")


def _finished(asked: Generate, tokens: list[str]) -> Choice:
    """Cut by a stop string or by the limit, whichever comes first."""
    limit, unsaid = asked.limit(), 0
    finish = "length" if asked.ignore_eos and limit is not None else "stop"
    if asked.stop:
        stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop
        text = "".join(tokens)
        ends = [end for end in (text.find(stop) for stop in stops if stop) if end >= 0]
        if ends:
            tokens = _up_to(tokens, min(ends))
            finish = "stop"
            unsaid = not tokens  # engines count what they compute; elsewhere nobody looks
    # The end of a text is a token too: a limit reached exactly leaves no room for it.
    if limit is not None and limit <= len(tokens):
        return Choice(tokens[:limit], "length")
    choice = Choice(tokens, finish)
    choice.unsaid = int(unsaid)
    return choice


def _up_to(tokens: list[str], end: int) -> list[str]:
    kept: list[str] = []
    for token in tokens:
        if end <= 0:
            break
        kept.append(token[:end])
        end -= len(token)
    return kept


# --- tools and JSON


def forced_tool(asked: Generate) -> str | None:
    """The function that the request requires to be called; None if the answer is text."""
    if not asked.tools or asked.tool_choice in (None, "auto", "none"):
        return None
    chosen = asked.tool_choice
    function = chosen.get("function") if isinstance(chosen, dict) else None
    if isinstance(function, dict) and isinstance(function.get("name"), str):
        return str(function["name"])
    first = asked.tools[0]
    function = first.get("function") if isinstance(first, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return str(name or "tool")


def _tool_call(asked: Generate, name: str, seed: bytes) -> Choice:
    schema: Any = {}
    for tool in asked.tools or ():
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict) and function.get("name") == name:
            schema = function.get("parameters") or {}
    arguments = orjson.dumps(sample({"type": "object", **schema}, _words(seed))).decode()
    return _finished_call(asked, _CALL_TOKEN.findall(arguments), name)


def _finished_call(asked: Generate, tokens: list[str], name: str) -> Choice:
    limit = asked.limit()
    if limit is not None and limit < len(tokens):
        return Choice(tokens[:limit], "length", name)
    return Choice(tokens, "tool_calls", name)


def _wants_json(wanted: Any) -> bool:
    return isinstance(wanted, dict) and wanted.get("type") in ("json_object", "json_schema")


def _json_text(asked: Generate, seed: bytes, count: int) -> Choice:
    value: Any = {"answer": "".join(chat_tokens(seed, count))}
    described = asked.response_format.get("json_schema")
    if isinstance(described, dict) and isinstance(described.get("schema"), dict):
        value = sample(described["schema"], _words(seed))
    return _finished(asked, _JSON_TOKEN.findall(orjson.dumps(value).decode()))


def _words(seed: bytes) -> Iterator[str]:
    number = 0
    while True:
        for pick in picks(choice_seed(seed, number), 64):
            yield WORDS[pick]
        number += 1


def sample(schema: Any, words: Iterator[str], depth: int = 0) -> Any:
    """A value that fits a JSON schema; keywords that it does not know are ignored."""
    if not isinstance(schema, dict) or depth > _DEPTH_MAX:
        return next(words)
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        fields = schema.get("properties")
        fields = fields if isinstance(fields, dict) else {"text": {"type": "string"}}
        return {str(name): sample(inner, words, depth + 1) for name, inner in fields.items()}
    if kind == "array":
        return [sample(schema.get("items"), words, depth + 1)]
    plain: dict[Any, Any] = {"integer": 7, "number": 7.5, "boolean": True, "null": None}
    return plain[kind] if isinstance(kind, str) and kind in plain else next(words)


__all__ = [
    "AnswerPlan",
    "AnswerStyle",
    "Choice",
    "Generate",
    "RequestRefused",
    "StreamOptions",
    "Texts",
    "forced_tool",
    "note_ties",
    "plan_chat",
    "plan_completion",
    "read_generate",
    "sample",
    "texts_of",
]
