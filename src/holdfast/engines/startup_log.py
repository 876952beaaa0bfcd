r"""Reads a line of an engine's log: how far its start has come, or what went wrong with it.

    line ─► phase_of ─► LoadPhase: starting, loading, compile, warm-up, serving
         ─► fatal_of ─► kind of failure, and why, for people
         ─► nccl_of  ─► the version of NCCL

Most engines refuse connections until they are done, so only their log shows whether a load moves or
hangs. A line *explains*; it never decides alone. Whether a replica serves is decided by
canaries, whether it lives by its process.

A log also holds what users wrote, where an operator has switched that on. A prompt that says "CUDA
out of memory" must not look like the real error, so only the beginning of a line is read, and
lines that quote requests or log accesses are skipped. Rejected: one expression for each engine.
Words in a table can be printed and compared, and these loops run for some hundred lines of each
start.
"""

import re
from typing import Final

from holdfast.core.failure import Kind
from holdfast.engines.dialect import Dialect, LoadPhase

HEAD_CHARACTERS: Final = 240  # timestamps, ranks and the engine's own words; what follows is data

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*+[A-Za-z]")

# Lines of access logs: what stands in them was chosen by whoever asked.
ACCESSES: Final = (" HTTP/1.", " HTTP/2", "[GIN]")

# What drivers, runtimes and kernels say, whichever engine they are below.
FATALS: Final[tuple[tuple[str, Kind, str], ...]] = (
    ("CUDA out of memory", Kind.OUT_OF_MEMORY, "the GPU's memory is full"),
    ("CUDA error: out of memory", Kind.OUT_OF_MEMORY, "the GPU's memory is full"),
    ("cudaMalloc failed: out of memory", Kind.OUT_OF_MEMORY, "the GPU's memory is full"),
    ("OutOfMemoryError", Kind.OUT_OF_MEMORY, "the GPU's memory is full"),
    ("std::bad_alloc", Kind.OUT_OF_MEMORY, "the host's memory is full"),
    ("Cannot allocate memory", Kind.OUT_OF_MEMORY, "the host's memory is full"),
    (
        "an illegal memory access was encountered",
        Kind.EXITED,
        "its CUDA context is corrupted; only a restart heals that",
    ),
    ("uncorrectable ECC error", Kind.EXITED, "the GPU's memory is damaged"),
    ("no kernel image is available", Kind.EXITED, "it was built for another GPU"),
    ("CUDA driver version is insufficient", Kind.EXITED, "the GPU's driver is too old for it"),
    ("ddress already in use", Kind.EXITED, "another process holds its port"),
)


def phase_of(dialect: Dialect, line: str) -> LoadPhase | None:
    """The phase of loading that this log line shows; None if it shows none."""
    head = head_of(dialect, line)
    if not head or _fatal(dialect, head) is not None:
        return None
    return next((phase for words, phase in dialect.phases if words in head), None)


def fatal_of(dialect: Dialect, line: str) -> tuple[Kind, str] | None:
    """The kind of failure that this log line shows, and a text for people without the line."""
    return _fatal(dialect, head_of(dialect, line))


# As vLLM says it, and as NCCL itself does where NCCL_DEBUG is VERSION or more.
_NCCL: Final = re.compile(
    r"\bnccl(?:==| version )v?(\d{1,3}\.\d{1,3}(?:\.\d{1,3})?)", re.IGNORECASE
)


def nccl_of(dialect: Dialect, line: str) -> str:
    """The version of NCCL that this log line tells; empty if it tells none."""
    found = _NCCL.search(head_of(dialect, line))
    return found[1] if found is not None else ""


def head_of(dialect: Dialect, line: str) -> str:
    """The part of a log line that may be trusted; empty if the line repeats what users wrote."""
    head = line[: 2 * HEAD_CHARACTERS]  # colours take room too
    if "\x1b" in head:
        head = _COLOUR.sub("", head)
    head = head[:HEAD_CHARACTERS]
    return "" if any(words in head for words in (*dialect.quotes, *ACCESSES)) else head


def _fatal(dialect: Dialect, head: str) -> tuple[Kind, str] | None:
    for words, kind, why in (*dialect.fatals, *FATALS):
        if words in head:
            return kind, why
    return None


__all__ = [
    "ACCESSES",
    "FATALS",
    "HEAD_CHARACTERS",
    "LoadPhase",
    "fatal_of",
    "head_of",
    "nccl_of",
    "phase_of",
]
