"""Computes a stand-in's answers: words that follow from the model and the prompt alone.

A digest of model and prompt seeds a chain of digests, and each byte of the chain picks one of 256
made-up words. So a test knows every byte of every answer without asking, and a second stand-in can
continue what a first one began: it computes the whole answer and goes on behind the part that was
sent. One word is one token.

In a chat the first word has no space before it; behind a completions prompt every word has one, as
tokenizers do it. A longer prompt is recognised as a continuation by walking back over our own words
at its end, which ordinary prompts do not contain: the words mean nothing in any language.

Rejected: remembering which prompts were answered. The continuation goes to another process.
"""

import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec
import orjson

_ONSETS: Final = tuple(consonant + vowel for consonant in "bdkm" for vowel in "aeio")
_ENDINGS: Final = (
    *("lun", "rax", "zil", "tov", "gur", "pesk", "fim", "nolt"),
    *("vash", "rund", "sif", "quil", "jor", "hask", "wen", "yolp"),
)
WORDS: Final = tuple(onset + ending for onset in _ONSETS for ending in _ENDINGS)
_SPACED: Final = tuple(f" {word}" for word in WORDS)
_NUMBER: Final = {word: number for number, word in enumerate(WORDS)}
_PIECES: Final = {word[:end] for word in WORDS for end in range(1, len(word) + 1)}
_TOKEN: Final = re.compile(r" ?[^ ]+| +")
_BLOCK: Final = 64  # words per digest
_FIRST: Final = bytes(4)  # number of the first block

WRONG: Final = b"\x1cwrong"  # added to a seed: as fluent, and not the answer


class ChatMessage(msgspec.Struct):
    """The fields of a chat message that the answer depends on."""

    role: str = ""
    content: Any = None
    tool_calls: Any = None
    tool_call_id: str | None = None

    def text(self) -> str:
        """The text of the message; parts that are not text are represented as JSON."""
        content = self.content
        if isinstance(content, str):
            return content
        if content is None:
            return ""
        if isinstance(content, list):
            return "".join(_part(part) for part in content)
        return orjson.dumps(content, option=orjson.OPT_SORT_KEYS).decode()


def _part(part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) else None
    if isinstance(text, str):
        return text
    return orjson.dumps(part, option=orjson.OPT_SORT_KEYS).decode()


def chat_seed(model: str, messages: Sequence[ChatMessage]) -> bytes:
    """Return the bytes that determine the answer to a chat, from its model and messages."""
    parts = [model]
    for message in messages:
        content = message.content
        text = content if isinstance(content, str) else message.text()
        parts.append(f"{message.role}\x1f{text}")
        if message.tool_calls is not None or message.tool_call_id is not None:
            calls = [message.tool_calls, message.tool_call_id]
            parts.append(orjson.dumps(calls, option=orjson.OPT_SORT_KEYS).decode())
    whole = "\x1e".join(parts)
    return blake2b(whole.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def prompt_seed(model: str, prompt: str) -> bytes:
    """The seed of the continuation of a prompt."""
    return blake2b(f"{model}\x1d{prompt}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


def choice_seed(seed: bytes, choice: int) -> bytes:
    """The seed of one of several answers to the same prompt; the first is unchanged."""
    return seed if choice == 0 else seed + choice.to_bytes(2, "big")


def picks(seed: bytes, count: int) -> bytes:
    """The first bytes of the chain of a seed; each byte picks a word."""
    if count <= _BLOCK:
        return blake2b(seed + _FIRST).digest()[:count]
    blocks = -(-count // _BLOCK)
    chain = b"".join(blake2b(seed + number.to_bytes(4, "big")).digest() for number in range(blocks))
    return chain[:count]


def chat_tokens(seed: bytes, count: int) -> list[str]:
    """The tokens of an answer in a chat."""
    tokens = [_SPACED[pick] for pick in picks(seed, count)]
    if tokens:
        tokens[0] = tokens[0][1:]
    return tokens


def prompt_tokens(seed: bytes, count: int) -> list[str]:
    """The tokens of the continuation of a prompt."""
    return [_SPACED[pick] for pick in picks(seed, count)]


def behind(tokens: list[str], said: str) -> list[str] | None:
    """The tokens that are missing after ``said``; None if ``said`` does not begin the answer."""
    whole = "".join(tokens)
    if not whole.startswith(said):
        return None
    return _TOKEN.findall(whole[len(said) :])


def said_within(model: str, prompt: str, count: int) -> tuple[bytes, str]:
    """Split a prompt that ends with our own answer: the seed of its first part, and the answer."""
    starts: list[int] = []
    end = len(prompt)
    place = prompt.rfind(" ")
    while place >= 0 and len(starts) < count:
        word = prompt[place + 1 : end]
        if word not in _NUMBER and (starts or end < len(prompt) or word not in _PIECES):
            break
        starts.append(place)
        end = place
        place = prompt.rfind(" ", 0, end)
    if len(starts) == 1 and prompt[starts[0] + 1 :] not in _NUMBER:
        starts = []  # a lone piece such as " do" is more likely a word of the user
    if starts:
        starts.reverse()
        found = _match(model, prompt, starts, count)
        if found is not None:
            return found
    return prompt_seed(model, prompt), ""


def _match(model: str, prompt: str, starts: list[int], count: int) -> tuple[bytes, str] | None:
    """Try the longest end first; the common beginning is digested once."""
    head = f"{model}\x1d{prompt[: starts[0]]}".encode("utf-8", "surrogatepass")
    digest = blake2b(head, digest_size=16)
    done = starts[0]
    for start in starts:
        digest.update(prompt[done:start].encode())
        done = start
        said = prompt[start:]
        seed = digest.digest()
        if "".join(prompt_tokens(seed, min(count, len(said)))).startswith(said):
            return seed, said
    return None


def expected_text(
    model: str, asked: Sequence[Mapping[str, Any]] | str, tokens: int = 20, *, choice: int = 0
) -> str:
    """The text that a healthy stand-in answers to the messages of a chat or to a prompt."""
    if isinstance(asked, str):
        seed = choice_seed(prompt_seed(model, asked), choice)
        return "".join(prompt_tokens(seed, tokens))
    messages = msgspec.convert(list(asked), list[ChatMessage])
    return "".join(chat_tokens(choice_seed(chat_seed(model, messages), choice), tokens))


__all__ = [
    "WORDS",
    "WRONG",
    "ChatMessage",
    "behind",
    "chat_seed",
    "chat_tokens",
    "choice_seed",
    "expected_text",
    "picks",
    "prompt_seed",
    "prompt_tokens",
    "said_within",
]
