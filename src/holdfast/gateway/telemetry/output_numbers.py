"""Measures numbers in answers for drift detection: scores of a ranking, values of tensors.

    ranking ─► its best score ("score")
    tensor  ─► mean and largest value of its first row ("NAME.mean", "NAME.max")
    classes ─► the score of the first one ("NAME.max")

One number for each answer and statistic: a baseline is a distribution of answers, not of values.
The mean alone would not do, because probabilities that add up to one have the same mean for ever;
the largest of them is how sure the model is. The best score of a ranking does not depend on how
many results the client asked for. The first row is the first item of a batch: how many follow is
the client's choice.

An ordinary answer does not pass through this module; a few of a replica's are measured in a
second, and none that is large.
"""

import re
import struct
from array import array
from collections.abc import Sequence
from math import isfinite, prod
from typing import Any, Final

import msgspec

from holdfast.core.messages import Measured
from holdfast.gateway.api import answer_schema

BYTES_MAX: Final = 256 << 10  # of an answer; larger ones cost more than they are worth
OUTPUTS_MAX: Final = 4  # of one answer, the first ones
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,48}")

# KServe's types to codes of the standard library; what is not here has no single number.
_CODES: Final = {
    "FP64": "d",
    "FP32": "f",
    "INT64": "q",
    "INT32": "i",
    "INT16": "h",
    "INT8": "b",
    "UINT64": "Q",
    "UINT32": "I",
    "UINT16": "H",
    "UINT8": "B",
}
_HALF: Final = "FP16"
_CLASSES: Final = "BYTES"


class _Parameters(msgspec.Struct, gc=False):
    binary_data_size: int | None = None


class _Tensor(msgspec.Struct, gc=False):
    name: str = ""
    datatype: str = ""
    shape: list[int] = []
    data: msgspec.Raw = msgspec.Raw(b"null")
    parameters: _Parameters | None = None


class _Tensors(msgspec.Struct, gc=False):
    outputs: list[_Tensor] = []


_decode_tensors: Final = msgspec.json.Decoder(_Tensors).decode
_decode_numbers: Final = msgspec.json.Decoder(list[float]).decode
_decode_rows: Final = msgspec.json.Decoder(list[list[float]]).decode
_decode_texts: Final = msgspec.json.Decoder(list[str]).decode


def measured_score(body: bytes) -> Measured | None:
    """Return ``(("score", value),)``: the best score of a rerank answer; None if not measurable.

    Not measurable: over 256 KiB, unreadable, or no finite score.
    """
    if len(body) > BYTES_MAX:
        return None
    try:
        if body.lstrip()[:1] == b"[":
            ranks = answer_schema.decode_ranks(body)
        else:
            told = answer_schema.decode_rerank(body)
            ranks = (told.data if told.results is None else told.results) or []
    except (ValueError, RecursionError):
        return None
    scores = [one.relevance_score if one.score is None else one.score for one in ranks]
    known = [score for score in scores if score is not None and isfinite(score)]
    return (("score", max(known)),) if known else None


def measured_tensors(head: bytes, rest: bytes = b"") -> Measured | None:
    """Return mean and largest value of the first row of an infer answer's first four outputs.

    As (name, value) pairs such as ``("NAME.mean", 0.2)``; None if none is measurable or it is over
    256 KiB. ``head`` is the answer's JSON, ``rest`` the binary tensors that follow it.
    """
    if len(head) + len(rest) > BYTES_MAX:
        return None
    try:
        outputs = _decode_tensors(head).outputs[:OUTPUTS_MAX]
    except (ValueError, RecursionError):
        return None
    found: list[tuple[str, float]] = []
    at = 0
    for output in outputs:
        size = output.parameters.binary_data_size if output.parameters is not None else None
        raw = None
        if size is not None:
            if not 0 <= size <= len(rest) - at:
                break  # where the next one begins is not known either
            raw, at = rest[at : at + size], at + size
        if _NAME.fullmatch(output.name):
            found += _statistics(output, raw)
    return tuple(found) or None


def _statistics(output: _Tensor, raw: bytes | None) -> list[tuple[str, float]]:
    try:
        if output.datatype == _CLASSES:
            first = _decode_texts(bytes(output.data))[0] if raw is None else ""
            return _finite(f"{output.name}.max", float(first.partition(":")[0]))
        values = _numbers(output) if raw is None else _unpacked(output.datatype, raw)
    except (ValueError, IndexError, RecursionError, struct.error):
        return []  # text, or a shape that is no row of numbers
    row = values[: max(1, prod(output.shape[1:]))] if output.shape else values
    if not row:
        return []
    mean = _finite(f"{output.name}.mean", sum(row) / len(row))
    return mean + _finite(f"{output.name}.max", max(row))


def _numbers(output: _Tensor) -> Sequence[float]:
    if output.datatype not in _CODES and output.datatype != _HALF:
        raise ValueError("no numbers")
    data = bytes(output.data)
    try:
        return _decode_numbers(data)
    except msgspec.ValidationError:
        return _decode_rows(data)[0]  # nested, as the protocol allows


def _unpacked(datatype: str, raw: bytes) -> Sequence[float]:
    if datatype == _HALF:
        return struct.unpack(f"<{len(raw) // 2}e", raw)
    values: array[Any] = array(_CODES.get(datatype, ""))
    values.frombytes(raw)
    return values


def _finite(name: str, value: float) -> list[tuple[str, float]]:
    return [(name, value)] if isfinite(value) else []


__all__ = ["BYTES_MAX", "OUTPUTS_MAX", "measured_score", "measured_tensors"]
