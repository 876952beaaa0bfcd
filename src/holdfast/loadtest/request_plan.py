"""The requests of a load test before they are sent: when, how long, and their bodies.

    shape   arrivals and lengths drawn from laws (Poisson, constant, bursts, a day)
    trace   arrivals and lengths of a trace (Azure CSV, Mooncake JSONL); texts are made up
    file    the user's own requests, one JSON object a line, with or without arrival times

A plan yields requests in order of time, for ever or to the end of its file. A closed loop uses the
same requests and ignores their times.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import orjson

from holdfast.core.types import SECOND, ConfigError, require
from holdfast.loadtest.prompts import PromptWriter
from holdfast.sim.workload import Lengths, Workload, arrivals

FILE_BYTES_MAX: Final = 256 << 20
SHAPES: Final[dict[str, tuple[str, Lengths, Lengths]]] = {
    # name: what it stands for, prompt, answer
    "chat": ("short questions, answers of some sentences", Lengths(300, 1.0), Lengths(200, 0.8)),
    "rag": ("long documents, short answers", Lengths(4_000, 0.5), Lengths(150, 0.7)),
    "code": ("files in, completions out", Lengths(2_000, 1.0), Lengths(50, 1.0)),
    "summary": ("long texts, summaries", Lengths(6_000, 0.4), Lengths(300, 0.4)),
    "fixed": ("every request alike", Lengths(256, 0.0), Lengths(128, 0.0)),
}


@dataclass(slots=True, frozen=True)
class PlannedRequest:
    """One request: when it is due, its body, and the tokens that the plan wants."""

    at_s: float  # since the load began
    body: bytes
    prompt_tokens: int
    output_tokens: int


@dataclass(slots=True, frozen=True)
class BodyForm:
    """How bodies are written: the API, the model, and what servers need for whole answers."""

    model: str
    chat: bool = True
    ignore_eos: bool = True  # answers are as long as the plan wants; not all servers know it

    @property
    def path(self) -> bytes:
        """Where bodies of this form are sent."""
        return b"/v1/chat/completions" if self.chat else b"/v1/completions"

    def body(self, prompt: str, max_tokens: int) -> bytes:
        """The body of one request that streams its answer and reports its usage."""
        text = {"messages": [{"role": "user", "content": prompt}]} if self.chat else {}
        asked = {
            "model": self.model,
            **(text if self.chat else {"prompt": prompt}),
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": max_tokens,
            **({"ignore_eos": True} if self.ignore_eos else {}),
        }
        return orjson.dumps(asked)


class RequestPlan:
    """The plan of one load: a workload, or a file of requests, and the form of their bodies."""

    def __init__(
        self, workload: Workload, form: BodyForm, *, seed: int = 1, file: Path | None = None
    ) -> None:
        self.workload = workload
        self.form = form
        self.seed = seed
        self.file = file
        self.writer = PromptWriter(seed)
        self._own = read_requests(file, form) if file is not None else ()

    @property
    def rate(self) -> float | None:
        """Requests per second that the plan wants on average; None: its source decides."""
        return None if self.timed else self.workload.rate

    @property
    def timed(self) -> bool:
        """Whether the source has arrival times of its own."""
        if self.workload.trace:
            return True
        return bool(self._own) and self._own[-1].at_s > 0

    def at_rate(self, rate: float) -> "RequestPlan":
        """The same plan at another rate."""
        other = RequestPlan.__new__(RequestPlan)
        other.workload = replace(self.workload, rate=rate)
        other.form, other.seed, other.file = self.form, self.seed, self.file
        other.writer, other._own = self.writer, self._own  # noqa: SLF001 - of the same class
        return other

    def requests(self, salt: int = 0) -> Iterator[PlannedRequest]:
        """Yield the requests in order of time; ``salt`` draws others of the same law."""
        if self._own:
            yield from self._of_file(salt)
            return
        for asked, tokens in arrivals(self.workload, self.form.model, self.seed + 7_919 * salt):
            prompt = self.writer.write(max(1, asked.prompt_tokens), asked.prefix)
            body = self.form.body(prompt, tokens)
            at_s = asked.arrived / SECOND
            yield PlannedRequest(at_s, body, asked.prompt_tokens, tokens)

    def _of_file(self, salt: int) -> Iterator[PlannedRequest]:
        own = self._own
        if self.timed:
            for planned in own:
                yield replace(planned, at_s=planned.at_s / self.workload.speed)
            return
        times = arrivals(self.workload, self.form.model, self.seed + 7_919 * salt)
        for number, (asked, _) in enumerate(times):
            yield replace(own[number % len(own)], at_s=asked.arrived / SECOND)

    def described(self) -> dict[str, Any]:
        """The plan as plain data, for the file of the benchmark."""
        source = self.workload
        told: dict[str, Any] = {
            "seed": self.seed,
            "api": "chat" if self.form.chat else "completions",
        }
        if self.file is not None:
            return {**told, "file": self.file.name, "requests": len(self._own)}
        if source.trace:
            return {**told, "trace": Path(source.trace).name, "speed": source.speed}
        lengths = {
            name: {"mean": law.mean, "cv": law.cv, "law": law.law}
            for name, law in (("prompt", source.prompt), ("output", source.output))
        }
        return {**told, "pattern": source.pattern, **lengths}


class _Line(msgspec.Struct):
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    max_tokens: int = 128
    at: float = 0.0


def read_requests(path: Path, form: BodyForm) -> tuple[PlannedRequest, ...]:
    """Read a file of requests: a JSON object per line, ``prompt`` or ``messages``, and more.

    ``max_tokens`` (128) bounds the answer, ``at`` is the arrival in seconds. Raises ``ConfigError``
    that names the line.
    """
    fix = 'write lines like {"prompt": "…", "max_tokens": 64, "at": 0.5}'
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError("--file", f"{path} exceeds {FILE_BYTES_MAX >> 20} MB", "cut it")
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError("--file", f"{path} cannot be read: {error.strerror}", fix) from error
    found: list[PlannedRequest] = []
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            line = msgspec.json.decode(text, type=_Line)
        except msgspec.DecodeError as error:
            raise ConfigError("--file", f"line {number} of {path}: {error}", fix) from error
        where = f"line {number} of {path}"
        require(line.max_tokens >= 1, "--file", f"{where} has max_tokens below 1", fix)
        late = found[-1].at_s if found else 0.0
        require(line.at >= late, "--file", f"{where} goes back in time", "sort the lines by 'at'")
        found.append(_planned(line, form, where, fix))
    require(bool(found), "--file", f"{path} holds no request", fix)
    return tuple(found)


def _planned(line: _Line, form: BodyForm, where: str, fix: str) -> PlannedRequest:
    body = orjson.loads(form.body("", line.max_tokens))
    if line.messages is not None and form.chat:
        body["messages"] = line.messages
    elif line.prompt is not None:
        body.update(orjson.loads(form.body(line.prompt, line.max_tokens)))
    else:
        missing = "neither prompt nor messages" if form.chat else "no prompt"
        raise ConfigError("--file", f"{where} has {missing}", fix)
    # Their lengths in tokens are the engine's business: the record has what it counted.
    return PlannedRequest(line.at, orjson.dumps(body), 0, line.max_tokens)


__all__ = [
    "FILE_BYTES_MAX",
    "SHAPES",
    "BodyForm",
    "PlannedRequest",
    "RequestPlan",
    "read_requests",
]
