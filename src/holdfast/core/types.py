"""The values that all policies share: time, requests, replicas, decisions.

What may live here: values that at least two policies exchange. No behaviour beyond validation.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final

SECOND: Final = 1_000_000_000  # all core time is integer nanoseconds: exact, ordered, replayable
MILLISECOND: Final = 1_000_000


def nanos(seconds: float) -> int:
    """Convert seconds, as configs have them, to the integer nanoseconds of the core."""
    return round(seconds * SECOND)


def seconds(duration: int) -> float:
    """Convert nanoseconds of the core to seconds, for people and for rates."""
    return duration / SECOND


class ConfigError(ValueError):
    """Raised for a setting that cannot work; names the field, the problem and the fix.

    A ``ValueError``.
    """

    def __init__(self, field: str, problem: str, fix: str) -> None:
        super().__init__(f"{field}: {problem}; {fix}")
        self.field = field
        self.problem = problem
        self.fix = fix

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[str, str, str]]:
        return type(self), (self.field, self.problem, self.fix)  # args hold the joined text only


def require(condition: bool, field: str, problem: str, fix: str) -> None:
    """Raise ``ConfigError`` with these texts unless ``condition`` holds; else do nothing."""
    if not condition:
        raise ConfigError(field, problem, fix)


class Priority(IntEnum):
    """The class of a request: interactive goes before batch. Lower is more urgent."""

    INTERACTIVE = 0
    BATCH = 1


class State(StrEnum):
    """The state of one (replica, model) as control holds it, from starting to dead.

    The allowed transitions are in ``health.lifecycle``.
    """

    STARTING = "starting"
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    SUSPECT = "suspect"
    QUARANTINED = "quarantined"
    DRAINING = "draining"
    STOPPED = "stopped"
    DEAD = "dead"


class HostCondition(StrEnum):
    """Whether a host can run replicas, as its platform says; unknown is no condition at all."""

    READY = "ready"
    NOT_READY = "not_ready"  # its own agent says so: its runtime or its network is down
    UNREACHABLE = "unreachable"  # its agent does not report any more
    LEAVING = "leaving"  # cordoned, drained, or about to be taken back


class Halt(StrEnum):
    """Why no answer is expected of the requests that a replica has now: stalled or stopped."""

    STALLED = "stalled"  # requests run there and no token comes: found by a canary and its peers
    STOPPED = "stopped"  # its process is gone, stopped, or about to be: a fact


@dataclass(slots=True, frozen=True)
class Replica:
    """What is declared of one engine unit that serves one model; nothing about its health."""

    id: str
    model: str
    revision: str = "1"
    zone: str = "zone-a"
    region: str = "region-a"
    slots: int = 0  # requests it runs at once; 0 = not declared, only the adaptive limit holds
    weight: float = 1.0  # relative capacity within its pool
    # The machine that it lives and dies with; empty: unknown. Not compared: a platform may name it
    # later than the rest, and that does not make it another replica.
    host: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        require(bool(self.id), "replica.id", "is empty", "give every replica a unique name")
        require(bool(self.model), "replica.model", "is empty", "name the model it serves")
        require(self.slots >= 0, "replica.slots", f"is {self.slots}", "use 0 for undeclared")
        require(self.weight > 0, "replica.weight", f"is {self.weight}", "use a positive weight")


class Request:
    """One client's request, as policies see it: model, tenant, sizes, deadline. Read only.

    Times are ns. A plain slotted class for speed: what comes before the star is best given in
    order, as keywords double the time of the call.
    """

    __slots__ = (
        "arrived",
        "cappable",
        "choices",
        "content",
        "continuable",
        "deadline",
        "deaths_max",
        "degradable",
        "hedgeable",
        "holder",
        "id",
        "max_tokens",
        "model",
        "needs",
        "path",
        "prefix",
        "priority",
        "prompt_tokens",
        "regions",
        "session",
        "size",
        "stores",
        "tenant",
        "whole",
    )

    def __init__(
        self,
        id: int | str,  # noqa: A002
        model: str,
        arrived: int,
        deadline: int = 0,
        prompt_tokens: int = 0,
        max_tokens: int = 0,
        whole: bool = False,
        *,
        tenant: str = "default",
        priority: Priority = Priority.INTERACTIVE,
        prefix: Sequence[int] = (),
        session: str = "",
        hedgeable: bool = True,
        continuable: bool = True,
        regions: tuple[str, ...] = (),
        degradable: bool = True,
        stores: bool = False,
        content: bytes = b"",
        choices: int = 1,
        deaths_max: int = 2,
        needs: Collection[str] = (),
        cappable: bool = True,
        path: str = "",
        holder: str = "",
    ) -> None:
        self.id = id
        self.model = model
        self.arrived = arrived
        self.deadline = deadline  # absolute; 0 = the flow's default for the whole request
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens  # of one choice; 0 = the client did not say
        self.choices = choices  # answers that the engine makes: n of each prompt
        self.tenant = tenant
        self.priority = priority
        self.prefix = prefix  # block hashes of the prompt, longest prefix first block first
        self.session = session
        self.hedgeable = hedgeable  # False where a second execution would have an effect
        self.continuable = continuable  # False for n > 1, logprobs, tools, guided decoding …
        self.regions = regions  # where it may be served; empty = anywhere
        self.whole = whole  # its answer comes in one piece, so the first token is also the last
        self.degradable = degradable  # a ladder may answer it with a smaller model
        self.cappable = cappable  # False where half of an answer is none: tools, guided decoding
        self.needs = needs  # of the model that answers it, by the names that ``lacks`` uses
        self.stores = stores  # the engine keeps what it answers: a second execution keeps it twice
        self.deaths_max = deaths_max  # of replicas under it; a third would show nothing new
        self.content = content  # to tell equal requests from others; empty = like no other
        self.path = path  # of the engine that it asks; one of few, as routes are
        self.holder = holder  # the one replica that keeps what it is about; empty = any will do
        # What the wait for its first content depends on: an answer in one piece takes as long as
        # it is allowed to grow.
        self.size = (max_tokens or prompt_tokens) if whole else prompt_tokens

    def __repr__(self) -> str:
        return f"Request({self.id!r}, {self.model!r}, tenant={self.tenant!r})"


@dataclass(slots=True, frozen=True)
class Decision:
    """A yes or no (``allowed``) together with its reason in words; true or false in conditions."""

    allowed: bool
    reason: str

    def __bool__(self) -> bool:
        return self.allowed


__all__ = [
    "MILLISECOND",
    "SECOND",
    "ConfigError",
    "Decision",
    "Halt",
    "HostCondition",
    "Priority",
    "Replica",
    "Request",
    "State",
    "nanos",
    "require",
    "seconds",
]
