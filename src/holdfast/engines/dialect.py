"""Describes one engine: its paths, abilities and readers as data, without I/O.

``if engine == "vllm"`` anywhere else is a mistake; add a field here. A class per engine with
methods to override was rejected: engines differ in facts, and facts in a table can be printed,
compared and tested. The facts are those of releases since 2025. What depends on the model served
is stated as absent: a continuation that silently begins anew is worse than none.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

from holdfast.core.canary import Shape
from holdfast.core.failure import Kind
from holdfast.core.types import State

# As vLLM, SGLang, OpenAI and others say it. A path is not found without a word of the model.
_NO_MODEL: Final = re.compile(
    rb"(?is)model\b[^{}]{0,300}\b(not found|not exist|not loaded|unknown)|(unknown|no such) model"
).search
_ERROR_BYTES: Final = 2_000  # of an engine's error: what it is about stands at its beginning


class Continuation(StrEnum):
    """How an engine can continue a chat answer that another replica began."""

    NONE = "none"
    FINAL_MESSAGE = "final_message"  # add_generation_prompt: false, continue_final_message: true
    PREFILL = "prefill"  # a last message of the assistant is continued as it is


@dataclass(slots=True, frozen=True)
class Load:
    """The load that an engine reports of itself; ``None`` = not reported, which is not zero."""

    running: int | None = None
    waiting: int | None = None
    kv_used: float | None = None  # share of the KV cache, 0 to 1
    generated: int | None = None  # tokens since its start, counted as they come out
    preemptions: int | None = None  # since its start
    prefix_asked: int | None = None  # tokens looked up in the prefix cache, since its start
    prefix_found: int | None = None  # tokens of those that were there
    prefix_hits: float | None = None  # share that was there, lately, of one that counts no tokens
    steps: int | None = None  # passes or tokens since its start, counted while it reads a prompt


@dataclass(slots=True, frozen=True)
class InferenceCounts:
    """What an inference server counted of one model since its start; ``None`` = not reported."""

    successes: int | None = None  # requests that were answered
    failures: int | None = None  # requests that failed in the server; refused ones are not in it
    inferences: int | None = None  # a request that holds a batch of four counts four times
    executions: int | None = None  # of the model: several requests may share one
    queue_s: float | None = None  # that all requests together waited for their execution
    compute_s: float | None = None  # that all requests together were computed, with their tensors
    pending: int | None = None  # requests that wait now
    batch_max: int | None = None  # the largest batch that was executed
    model_gpu_bytes: int | None = None  # of this model alone, where its backend tells
    gpu_used_bytes: int | None = None  # of the server's devices, with what others use there
    gpu_total_bytes: int | None = None
    gpu_busy: float | None = None  # share of the time, mean over its devices, 0 to 1

    def filled_from(self, other: "InferenceCounts") -> "InferenceCounts":
        """These counts, with what is unknown here taken from another page of the same server."""
        told = (getattr(self, one.name) for one in fields(self))
        more = (getattr(other, one.name) for one in fields(other))
        return InferenceCounts(
            *(a if a is not None else b for a, b in zip(told, more, strict=True))
        )


@dataclass(slots=True, frozen=True)
class LoadPhase:
    """A phase of an engine's start, as one line of its log shows it."""

    name: str  # starting, loading, compile, warm-up, serving
    state: State | None  # what a replica is from this line on; WARMING = it can be asked
    compiling: bool = False  # long and silent by nature: be patient


STARTING: Final = LoadPhase("starting", State.STARTING)
LOADING: Final = LoadPhase("loading", State.LOADING)
COMPILING: Final = LoadPhase("compile", State.LOADING, compiling=True)
WARM_UP: Final = LoadPhase("warm-up", State.LOADING, compiling=True)
SERVING: Final = LoadPhase("serving", State.WARMING)  # ready is what canaries say, not a log


@dataclass(slots=True, frozen=True)
class Recipe:
    """How an engine is started: its command with {places}, and the flags of its settings.

    A setting's name leads to a flag, or to an environment variable where it begins with no dash.
    A setting without an option cannot be set by us, and is refused rather than dropped.
    """

    program: tuple[str, ...]
    options: tuple[tuple[str, str], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    told_always: tuple[str, ...] = ()  # settings whose default is not the engine's own
    context_is_shared: bool = False  # its context counts the tokens of all slots together
    embedded: tuple[str, ...] = ()  # the same engine as a library, started by our own module
    embedded_options: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True, frozen=True)
class Dialect:
    """All that is specific to one engine: its paths, abilities, readers and command."""

    name: str
    health_path: str | None  # answers 200 when the engine says it is well; None: it has no page
    metrics_path: str | None  # below its own URL; None: none is there
    read_load: Callable[[str], Load]  # from what metrics_path answered
    chat_continuation: Continuation = Continuation.NONE
    prompt_continuation: bool = True  # /v1/completions goes on from a longer prompt
    running_usage: bool = False  # stream_options.continuous_usage_stats: usage in every chunk
    final_usage: bool = True  # stream_options.include_usage: usage in a last chunk
    one_token_per_event: bool = False  # its stream never packs two tokens into one event
    version_page: tuple[str, str] | None = None  # a path, and the member of its JSON that says it
    start_path: str | None = None  # read while it starts, where it has no health page
    model_health_path: str | None = None  # with {model}: the health of one model of several
    answers_in_json: bool = True  # errors are JSON objects with a message
    metrics_ports: tuple[int, int] | None = None  # its usual port, and the metrics page's beside it
    recipe_metrics_url: str = ""  # of the metrics page of one that its recipe started
    read_counts: Callable[[str, str], InferenceCounts] | None = None  # metrics page, model's name
    statistics_path: str | None = None  # with {model}: counts of one model, as JSON
    read_statistics: Callable[[bytes, str], InferenceCounts] | None = None
    token_header: str = ""  # in which pages of operators want the engine's token, bare
    metrics_need: str = ""  # what an operator must switch on before metrics_path answers
    busy_bodies: tuple[bytes, ...] = ()  # any of these in a 503 says: queue full, not ill
    loading_bodies: tuple[bytes, ...] = ()  # any of these in a 503 says: the model is not there yet
    draining_bodies: tuple[bytes, ...] = ()  # any of these in a 503 says: no new work, by intent
    loading_header: tuple[str, str] | None = None  # name and value that say the same of a 503
    missing_bodies: tuple[bytes, ...] = ()  # any of these in a 400 or 404 says: no such model here
    canary_shape: Shape = Shape.CHAT  # what it is asked unless the config says otherwise
    takes_memory_at_start: bool = False  # what it holds of a GPU says nothing of its load
    bit_stable: bool = False  # greedy output is the same alone, under load and from a warm cache
    phases: tuple[tuple[str, LoadPhase], ...] = ()  # words of a log line, first match counts
    fatals: tuple[tuple[str, Kind, str], ...] = ()  # words, what they mean, and that for people
    quotes: tuple[str, ...] = ()  # words of log lines that repeat what users wrote: never read
    needs_gpu: bool = False  # it serves on no CPU: launched, it gets devices of its host
    counts_gpus: bool = False  # of visible GPUs it takes numbers and fails on UUIDs
    recipe: Recipe | None = None  # None: only a command of the user's own starts it

    @property
    def launches(self) -> bool:
        """Whether this engine can be started without a command from the fleet file."""
        return self.recipe is not None

    def says_busy(self, status: int, body: bytes) -> bool:
        """Whether a 503 without Retry-After is backpressure, by this engine's error text.

        A bare 503 is a failure everywhere else; 429 needs no text. One that drains pushes back too:
        the request goes elsewhere, and nothing failed. Ask with the code inside an error event too:
        SGLang refuses a stream with a 200 and a 503 in its first event.
        """
        words = (*self.busy_bodies, *self.draining_bodies)
        return status == 503 and any(said in body for said in words)

    def says_draining(self, status: int, body: bytes) -> bool:
        """Whether a 503 means that the engine takes no new work on purpose and finishes the rest.

        Ask before ``says_busy``, which holds of it too: a full queue has room again in a moment.
        """
        return status == 503 and any(words in body for words in self.draining_bodies)

    def says_loading(
        self, status: int, body: bytes, headers: Mapping[str, str] | None = None
    ) -> bool:
        """Whether a 503 means that the engine still loads: neither healthy nor failed.

        Names of headers are in lower case. Ask before Retry-After is taken for backpressure: one
        engine sends it while it loads.
        """
        if status != 503:
            return False
        if self.loading_header is not None and headers:
            name, value = self.loading_header
            if headers.get(name, "").strip().lower() == value:
                return True
        return any(words in body for words in self.loading_bodies)

    def says_missing(self, status: int, body: bytes) -> bool:
        """Whether a refusal says, in this engine's text, that it does not have the model."""
        return status in {400, 404} and any(words in body for words in self.missing_bodies)

    def says_no_model(self, status: int, body: bytes) -> bool:
        """Whether a 404 is about the model, which is not there, and not about the path.

        By this engine's text, or by words that most engines have for it in common.
        """
        return self.says_missing(status, body) or (
            status == 404 and _NO_MODEL(body, 0, _ERROR_BYTES) is not None
        )


__all__ = [
    "COMPILING",
    "LOADING",
    "SERVING",
    "STARTING",
    "WARM_UP",
    "Continuation",
    "Dialect",
    "InferenceCounts",
    "Load",
    "LoadPhase",
    "Recipe",
]
