"""Measures answers for drift detection: mean log probability of a text, norm of an embedding.

Drift of a model's output shows in these numbers before a user notices a wrong answer. Only what the
client asked for is measured: to ask for log probabilities on its behalf would change its answer and
its cost. One embedding per replica and second is measured, because reading a vector costs more than
everything else that the gateway does with it.

An ordinary request does not pass through this module: the readers below decode a payload a second
time instead of burdening the first decoder with members that hardly any answer has.
"""

from array import array
from base64 import b64decode
from collections.abc import Callable
from math import hypot, isfinite
from typing import Final

import msgspec

from holdfast.core.messages import Measured
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
    """The mean log probability of the tokens in the first choice of one answer."""

    __slots__ = ("_count", "_sum", "readable")

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0
        self.readable = True  # False: an engine has its own way to write them

    def add(self, payload: bytes) -> None:
        """Add the log probabilities in a whole answer or in one chunk of it.

        Those of choice 0 only. A payload in an unknown form makes the answer unreadable for good;
        nothing is raised.
        """
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
        """Return a chunk reader like ``read`` that first passes each payload to ``add``."""

        def both(payload: bytes) -> Chunk:
            self.add(payload)
            return read(payload)

        return both

    def measured(self) -> Measured | None:
        """Return ``(("logprob", mean),)``; None if the answer had none or they were unreadable."""
        if not (self._count and self.readable):
            return None
        return (("logprob", self._sum / self._count),)


def measured_logprob(body: bytes) -> Measured | None:
    """Return ``(("logprob", mean),)`` of a whole answer's first choice; None if it has none."""
    logprobs = LogprobMean()
    logprobs.add(body)
    return logprobs.measured()


def measured_norm(body: bytes) -> Measured | None:
    """Return ``(("norm", length),)``: the Euclidean length of an answer's first embedding.

    None if the answer is over 1 MiB, or the vector is not a plain list of finite numbers or base64.
    """
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
    return (("norm", norm),) if numbers and isfinite(norm) else None


__all__ = ["LogprobMean", "measured_logprob", "measured_norm"]
