"""The supervisor's report on control and the gateway processes: a file that control reads.

    supervisor ─ replaces the file when something changes ─► run directory ─► control, once a second

A file and not a message, because control itself may be the process that is frozen: its successor
finds here what became of it. It is replaced by renaming, so that a reader sees the old report or
the new one, never a part. A report that is missing or unreadable says nothing about anybody.
"""

import os
from pathlib import Path
from typing import Final

import msgspec

REPORT_FILE: Final = "processes.json"
REPLACED_MAX: Final = 64  # the latest replacements; their number is counted apart
_REPORT_BYTES_MAX: Final = 1 << 20


class ProcessRow(msgspec.Struct, frozen=True):
    """One process of Holdfast with its condition and since when, as last judged."""

    name: str
    pid: int
    condition: str  # a Condition of core/health/process_watch.py
    since: float  # wall time


class Replacement(msgspec.Struct, frozen=True):
    """One frozen process that the supervisor killed and replaced."""

    number: int  # grows by one
    at: float  # wall time
    name: str
    pid: int
    condition: str
    lasted_s: float


class ProcessReport(msgspec.Struct, frozen=True):
    """One supervisor's report: its processes, the last replacements, and counts of all.

    Numbers of replacements are only comparable for the same ``supervisor``.
    """

    supervisor: str  # unlike that of any other: numbers of replacements are its own
    processes: list[ProcessRow] = []
    replaced: list[Replacement] = []  # the oldest first
    counts: dict[str, int] = {}  # of all replacements, by kind and condition: "gateway stopped"


def write_report(path: Path, report: ProcessReport) -> None:
    """Replace the report at ``path``, atomically by renaming."""
    draft = path.with_suffix(".new")
    draft.write_bytes(msgspec.json.encode(report))
    os.replace(draft, path)  # noqa: PTH105 the same call, and its atomicity is what matters


def read_report(path: Path) -> ProcessReport | None:
    """Read the supervisor's report; None where there is none or it cannot be decoded."""
    try:
        with path.open("rb") as stream:
            return msgspec.json.decode(stream.read(_REPORT_BYTES_MAX), type=ProcessReport)
    except (OSError, msgspec.MsgspecError):
        return None


__all__ = [
    "REPLACED_MAX",
    "REPORT_FILE",
    "ProcessReport",
    "ProcessRow",
    "Replacement",
    "read_report",
    "write_report",
]
