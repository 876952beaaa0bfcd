"""Measures answers for drift: the mean of their log probabilities, the norm of a vector.

Drift of a model's output shows in them before anybody reads a wrong answer. Only what the client
asked for is measured: to ask for log probabilities on its behalf would change what it gets and what
it costs. Of embeddings one is measured now and then, because reading a vector costs more than all
else that is done with it here.

Nothing here is on the way of an ordinary request: the readers below decode a payload a second time
instead of burdening the first decoder with members that hardly any answer has.
"""

from array import array
from base64 import b64decode
from collections.abc import Callable
from math import hypot, isfinite
from typing import Final

import msgspec

from holdfast.gateway.api.answer_schema import decode_embeddings
from holdfast.gateway.api.chunks import Chunk

_NORM_BYTES_MAX: Final = 1 << 20  # of an answer; a batch of thousands is not worth a millisecond
_QUOTE: Final = b'"'


class _Token(msgspec.Struct, gc=False):
    logprob: float | None = None


class _Logprobs(msgspec.Struct, gc=False):
    content: list[_Token] | None = None  # of a chat
    token_logprobs: list[float | None] | None = None  # of completions


class _Choice(msgspec.Struct, gc=False):
    index: int | None = 0
    logprobs: _Logprobs | None = None


class _Answer(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None


_decode_answer: Final = msgspec.json.Decoder(_Answer).decode
_decode_numbers: Final = msgspec.json.Decoder(list[float]).decode


class LogprobMean:
    """Computes the mean log probability of the tokens in the first choice of one answer."""

    __slots__ = ("_count", "_sum", "readable")

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0
        self.readable = True  # False: an engine has its own way to write them

    def add(self, payload: bytes) -> None:
        """Take in a whole answer, or one chunk of it."""
        try:
            choices = _decode_answer(payload).choices
        except (ValueError, RecursionError):
            self.readable = False
            return
        for choice in choices or ():
            told = choice.logprobs
            if told is None or choice.index:
                continue
            values = [token.logprob for token in told.content or ()]
            values += told.token_logprobs or ()
            for value in values:
                if value is not None:
                    self._sum += value
                    self._count += 1

    def reading(self, read: Callable[[bytes], Chunk]) -> Callable[[bytes], Chunk]:
        """A reader of chunks that takes them in as well."""

        def both(payload: bytes) -> Chunk:
            self.add(payload)
            return read(payload)

        return both

    def measured(self) -> tuple[str, float] | None:
        """The mean, under its name; nothing where none was told."""
        if not (self._count and self.readable):
            return None
        return ("logprob", self._sum / self._count)


def measured_logprob(body: bytes) -> tuple[str, float] | None:
    """The mean log probability of an answer in one piece."""
    logprobs = LogprobMean()
    logprobs.add(body)
    return logprobs.measured()


def measured_norm(body: bytes) -> tuple[str, float] | None:
    """The length of the first vector in an answer; nothing where it is none, or too long."""
    if len(body) > _NORM_BYTES_MAX:
        return None
    try:
        raw = bytes(decode_embeddings(body).data[0].embedding)
        if raw[:1] == _QUOTE:
            numbers = array("f", b64decode(raw[1:-1], validate=True)).tolist()
        else:
            numbers = _decode_numbers(raw)
    except (ValueError, IndexError, RecursionError):
        return None  # sparse vectors and tokens' own ones have no single length
    norm = hypot(*numbers)
    return ("norm", norm) if numbers and isfinite(norm) else None


__all__ = ["LogprobMean", "measured_logprob", "measured_norm"]
