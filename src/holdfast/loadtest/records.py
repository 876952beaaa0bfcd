"""The file of a benchmark: what was asked, and one record per request, without any text of it.

    BenchFile ─┬─ target, model, workload, slo    what was asked of whom
               ├─ steps                           one per load that was held: its window, its client
               ├─ fleet                           what the admin port told beside it, if it did
               └─ requests                        one record each, in order of arrival

Times are seconds since ``began_at``. ``None`` is unknown, which is neither zero nor none. Other
programs read this file (``holdfast twin calibrate``, ``holdfast bench compare``): fields may be
added, with defaults; none is renamed or removed while ``version`` stays.
"""

from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from holdfast.core.types import ConfigError

FORMAT: Final = "holdfast-bench"
VERSION: Final = 1
_FILE_BYTES_MAX: Final = 512 << 20  # a million requests take about 350 MB


class BenchOutcome(StrEnum):
    """How a request ended, in the five outcomes that a gateway counts."""

    SUCCESS = "success"  # 2xx, and an end with a finish reason
    FAILURE = "failure"  # 5xx, a broken or endless answer, an error within the stream
    BACKPRESSURE = "backpressure"  # 429, and 503 with Retry-After
    CLIENT_ERROR = "client_error"  # any other 4xx: the request was wrong, or the key
    CANCELLED = "cancelled"  # by the benchmark itself: never sent, or ended with it


class BenchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request: when it was due, sent and answered, how many tokens, by whom, how it ended."""

    step: int  # place in BenchFile.steps
    arrived_s: float  # when the plan wanted it sent: latency counts from here
    sent_s: float | None = None  # when the client sent it; later than planned if the client was
    first_s: float | None = None  # its first content was here
    last_s: float | None = None  # its last content was here
    ended_s: float | None = None  # its end was here, or the failure
    asked_prompt_tokens: int = 0  # what the plan wanted
    asked_output_tokens: int = 0
    prompt_tokens: int | None = None  # what the engine counted
    cached_tokens: int | None = None  # of these, from a prefix cache, where the engine tells
    output_tokens: int | None = None
    events: int = 0  # pieces of content that came; an engine may put several tokens into one
    gap_max_s: float | None = None  # longest time between two of them
    replica: str | None = None  # x-holdfast-replica
    attempts: int | None = None  # x-holdfast-attempts, where it is told
    status: int | None = None  # of HTTP; None: no answer came
    outcome: BenchOutcome = BenchOutcome.SUCCESS
    problem: str = ""  # in a few words, never of the prompt or the answer

    @property
    def ttft_s(self) -> float | None:
        """From the intended moment of sending to the first content."""
        return None if self.first_s is None else self.first_s - self.arrived_s

    @property
    def total_s(self) -> float | None:
        """From the intended moment of sending to the end of a successful answer."""
        if self.ended_s is None or self.outcome is not BenchOutcome.SUCCESS:
            return None
        return self.ended_s - self.arrived_s

    @property
    def tokens(self) -> int | None:
        """Tokens of the answer as the engine counted them; else its events; None: no answer."""
        if self.output_tokens is not None:
            return self.output_tokens
        return self.events or None

    @property
    def tpot_s(self) -> float | None:
        """Mean time per token after the first; None for answers of one token."""
        tokens = self.tokens
        if self.first_s is None or self.last_s is None or tokens is None or tokens < 2:
            return None
        return (self.last_s - self.first_s) / (tokens - 1)


class ClientState(msgspec.Struct, frozen=True, kw_only=True):
    """What the client measured of itself in one step: was it fast enough for this load."""

    cpu_share: float = 0.0  # of one core
    waited_share: float | None = None  # of the time, runnable while another process had the core
    late_p99_s: float = 0.0  # how late its event loop was
    late_max_s: float = 0.0
    sent_late_p99_s: float = 0.0  # how late requests were sent, against the plan
    streams_max: int = 0  # most answers under way at once
    unsent: int = 0  # requests never sent, because the bound of streams was reached


class BenchStep(msgspec.Struct, frozen=True, kw_only=True):
    """One load that was held for a while: open loop at a rate, or closed loop with users."""

    name: str  # for people: "20 requests/s", "64 users"
    mode: Literal["open", "closed"]
    rate: float | None = None  # open: requests per second that were planned, on average
    users: int | None = None  # closed: how many ask at once
    replicas: int | None = None  # how many were in service, where that was set for this step
    began_s: float = 0.0
    counted_from_s: float = 0.0  # arrivals from here on count; before is warm-up
    counted_to_s: float = 0.0  # the load ends here; answers may end later
    refused: str = ""  # why nothing is reported of this step; its requests are no measurement
    client: ClientState = ClientState()


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """What one device of one replica said at one moment of the run."""

    at_s: float
    replica: str
    device: str
    busy_share: float | None = None  # 0 to 1
    memory_share: float | None = None


class FleetState(msgspec.Struct, frozen=True, kw_only=True):
    """What the admin port told of the fleet; empty where no admin port was reached."""

    replicas: int | None = None  # of the model, in service at the start
    gpus: tuple[GpuReading, ...] = ()
    gpus_why: str = ""  # why there are no readings of GPUs


class BenchFile(msgspec.Struct, frozen=True, kw_only=True):
    """A whole benchmark."""

    format: str = FORMAT
    version: int = VERSION
    made_by: str = ""  # program and version
    began_at: float = 0.0  # Unix time
    target: str = ""  # URL, without credentials
    model: str = ""
    label: str = ""  # a name that the user gave
    workload: dict[str, Any] = {}
    slo: dict[str, float] = {}  # ttft, tpot, total: seconds
    steps: tuple[BenchStep, ...] = ()
    fleet: FleetState = FleetState()
    remarks: tuple[str, ...] = ()  # what a reader of the figures must know
    requests: tuple[BenchRecord, ...] = ()

    def of_step(self, place: int, *, warm: bool = False) -> list[BenchRecord]:
        """The records of one step that count; ``warm``: those of the warm-up too."""
        begun = self.steps[place].counted_from_s
        return [
            record
            for record in self.requests
            if record.step == place and (warm or record.arrived_s >= begun)
        ]

    def measured(self) -> list[BenchRecord]:
        """All records that count, of all steps that were not refused."""
        counted = {
            place: step.counted_from_s for place, step in enumerate(self.steps) if not step.refused
        }
        return [
            record
            for record in self.requests
            if record.step in counted and record.arrived_s >= counted[record.step]
        ]


def save(file: BenchFile, path: Path) -> None:
    """Write a benchmark as JSON; raises ``OSError``."""
    draft = path.with_name(f"{path.name}.new")
    draft.write_bytes(msgspec.json.encode(file))
    draft.replace(path)


def load(path: Path) -> BenchFile:
    """Read a benchmark; raises ``ConfigError`` that names the file, the field and the fix."""
    fix = "name a file that 'holdfast bench' wrote"
    try:
        if path.stat().st_size > _FILE_BYTES_MAX:
            raise ConfigError(str(path), f"exceeds {_FILE_BYTES_MAX >> 20} MB", fix)
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}", fix) from error
    try:
        head = msgspec.json.decode(content, type=_Head)
        if head.format != FORMAT:
            raise ConfigError(str(path), "is no file of a benchmark", fix)
        if head.version != VERSION:
            problem = f"has version {head.version}; this program reads {VERSION}"
            raise ConfigError(str(path), problem, "use the version of Holdfast that wrote it")
        file = msgspec.json.decode(content, type=BenchFile)
    except msgspec.DecodeError as error:
        raise ConfigError(str(path), f"is no file of a benchmark: {error}", fix) from error
    for number, record in enumerate(file.requests):
        if not 0 <= record.step < len(file.steps):
            problem = f"requests[{number}].step is {record.step}, of {len(file.steps)} steps"
            raise ConfigError(str(path), problem, fix)
    return file


class _Head(msgspec.Struct):
    format: str = ""
    version: int = 0


__all__ = [
    "FORMAT",
    "VERSION",
    "BenchFile",
    "BenchOutcome",
    "BenchRecord",
    "BenchStep",
    "ClientState",
    "FleetState",
    "GpuReading",
    "load",
    "save",
]
