"""The plan of a game day: which faults, on which replicas, when and for how long.

Every step has an end: a plan without one would be an outage.
"""

from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import Field, model_validator

from holdfast.config.sections import Duration, Section
from holdfast.config.tenants import Name
from holdfast.core.types import require

FOR_S_MAX: Final = 3_600.0  # of one fault; whoever needs longer starts it again
PLAN_S_MAX: Final = 6 * 3_600.0
STEPS_MAX: Final = 200

FaultName = Literal[
    # by name as in core.faults
    "crash",
    "hang",
    "slow",
    "drip",
    "flaky",
    "black_hole",
    "oom",
    "wrong_output",
    "garbage",
    "empty",
    "cut",
    "load_stall",
    "leak",
    "refuse_busy",
    "zone_loss",
    "region_loss",
    "spot_notice",
    "partition",
    "probe_blind",
    # and those that only a real fleet has
    "stop",
    "latency",
    "stall",
    "reset",
    "corrupt",
    "refuse",
    "memory",
    "silence",
    "skew",
]
FAULTS: Final[tuple[str, ...]] = get_args(FaultName)
ANY: Final = "any"  # a replica that is ready, chosen by the plan's seed

FAULT_STORIES: Final[dict[str, str]] = {
    "crash": "its process is killed with SIGKILL",
    "hang": "takes requests and never answers; its health page stays green",
    "slow": "takes `factor` times as long for every answer",
    "drip": "one piece of an answer per `delay`",
    "flaky": "resets a `share` of its requests",
    "black_hole": "answers 500 within a millisecond",
    "oom": "its process is killed by the next request",
    "wrong_output": "letters of its answers are others; the protocol stays valid",
    "garbage": "every letter of its answers is an exclamation mark",
    "empty": "answers 200 without a single token",
    "cut": "answers end in good order after `pieces` pieces",
    "load_stall": "is restarted, and its process stopped while it loads",
    "leak": "a process beside it takes `megabytes` more and more, in its cgroup if it has its own",
    "refuse_busy": "answers 429",
    "zone_loss": "every replica of its zone is killed with SIGKILL",
    "region_loss": "every replica of its region is killed with SIGKILL",
    "spot_notice": "control is told that the platform will take it away",
    "partition": "takes connections and lets nothing through, not even its health page",
    "probe_blind": "control's canaries of it fail, and it serves well",
    "stop": "its process is stopped with SIGSTOP and goes on afterwards",
    "latency": "every piece of an answer comes `delay` later",
    "stall": "answers stop after `pieces` pieces, and their connections stay open",
    "reset": "answers end with a reset after `pieces` pieces",
    "corrupt": "the JSON around its answers breaks",
    "refuse": "nobody listens at its port",
    "memory": "a process beside it takes `megabytes`, in its cgroup if it has its own",
    "silence": "control hears nothing of its log and its metrics",
    "skew": "control is told that it runs another CUDA version",
}


class StepSection(Section):
    """One fault of a plan: its kind, replica, start and length."""

    at: Annotated[Duration, Field(ge=0, le=PLAN_S_MAX, description="seconds from the start")] = 0.0
    fault: Annotated[FaultName, Field(description="a fault", examples=["hang"])]
    replica: Annotated[Name, Field(description="a replica's id, or 'any'")] = ANY
    lasts: Annotated[
        Duration, Field(gt=0, le=FOR_S_MAX, alias="for", description="seconds, up to an hour")
    ] = 30.0
    delay: Annotated[Duration, Field(gt=0, le=600, description="seconds")] = 0.5
    factor: Annotated[float, Field(gt=1, le=10_000, description="a factor above 1")] = 10.0
    pieces: Annotated[int, Field(ge=0, le=1_000_000, description="pieces of an answer")] = 5
    share: Annotated[float, Field(gt=0, le=1, description="a share of requests")] = 0.5
    megabytes: Annotated[int, Field(ge=1, le=1_000_000, description="megabytes")] = 256


class TrafficSection(Section):
    """Requests that the game day sends itself, to count how many are harmed."""

    rate: Annotated[float, Field(gt=0, le=1_000, description="requests per second")] = 5.0
    tokens: Annotated[int, Field(ge=1, le=4_096, description="tokens of an answer")] = 16
    late: Annotated[Duration, Field(gt=0, le=600, description="seconds")] = 10.0
    stream: bool = True  # false: answers in one piece, as clients without streams ask for them


class PlanFile(Section):
    """The plan file of a game day."""

    name: Annotated[str, Field(min_length=1, max_length=200, description="its name")] = "game day"
    model: Annotated[Name | None, Field(description="whose replicas; default: the first")] = None
    seed: Annotated[int, Field(ge=0, description="for every choice of 'any'")] = 1
    settle: Annotated[Duration, Field(ge=0, le=3_600, description="seconds after the end")] = 30.0
    traffic: TrafficSection | None = TrafficSection()  # its own requests; null sends none
    harmed_max: Annotated[float, Field(ge=0, le=1, description="a share of requests")] = 0.01
    steps: Annotated[  # the faults
        list[StepSection], Field(min_length=1, max_length=STEPS_MAX, description="faults")
    ]

    @model_validator(mode="after")
    def _ends(self) -> Self:
        for index, step in enumerate(self.steps):
            fits = step.at + step.lasts <= PLAN_S_MAX
            fix = "end within six hours"
            require(fits, f"plan.steps.{index}.for", f"ends {step.at + step.lasts:.0f} s in", fix)
        return self

    @property
    def length_s(self) -> float:
        """Seconds until the last fault is undone and the fleet has settled."""
        return max(step.at + step.lasts for step in self.steps) + self.settle


def one_step(fault: str, replica: str, **how: Any) -> PlanFile:
    """Build the plan of a single fault from the options of the command line."""
    step = {"fault": fault, "replica": replica, **how}
    return PlanFile.model_validate({"name": fault, "settle": 0.0, "traffic": None, "steps": [step]})


__all__ = [
    "ANY",
    "FAULTS",
    "FAULT_STORIES",
    "PlanFile",
    "StepSection",
    "TrafficSection",
    "one_step",
]
