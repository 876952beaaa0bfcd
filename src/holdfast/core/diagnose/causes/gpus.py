"""Rules of causes in GPUs that still work, and in how their room is used.

A GPU that failed is ``GPU_FAULT``, in ``surroundings.py``. These are hot, slowed, due for a reset,
idle in front of a queue, or free where nobody can use them.
"""

from typing import Final

from holdfast.core.diagnose.causes.loading import WAITING
from holdfast.core.diagnose.causes.rule import CauseRule, Scope, proof
from holdfast.core.diagnose.evidence import Remedy, Sign
from holdfast.core.failure import Cause, Class

_SLOWER: Final = frozenset(
    {
        *(Sign.CANARY_SLOW, Sign.CANARY_DRIFTED, Sign.SLOW_TOKENS, Sign.SLOW_ANSWERS),
        *(Sign.BACKPRESSURE, Sign.NO_FIRST_TOKEN),
        *WAITING,
    }
)
_EXPLAINED: Final = frozenset(
    {
        *(Cause.SLOW, Cause.DRIPPING, Cause.ENVIRONMENT_CHANGED, Cause.LATENCY_TAIL),
        *(Cause.OVERLOADED, Cause.QUEUE_STALLED),
    }
)

GPUS: Final[dict[Cause, CauseRule]] = {
    Cause.GPU_OVERHEATED: CauseRule(
        Class.RUNTIME,
        (
            proof(Sign.GPU_HOT, at=0.7),
            proof(Sign.GPU_THROTTLED, at=0.8),
            proof(Sign.GPU_HOT, Sign.GPU_THROTTLED, at=0.9),
        ),
        story="A GPU has been at the temperature that its maker allows, or has slowed itself down, "
        "for minutes. Everything on it gets slower by the same factor, without an error anywhere, "
        "and heat shortens its life.",
        look="`nvidia-smi -q -d TEMPERATURE,PERFORMANCE` on its host: the temperature, and which "
        "slowdown is active. See whether its neighbours are as hot: one GPU is a fan or a paste, "
        "all of them are the room.",
        fix="Mend the cooling: fans, filters, the air of the rack, a card too close beside it[. It "
        "is at {temperature_c} °C][ and has been so for {lasted_s:s}]. Until then give it less "
        "work, or lower its power limit a little.",
        remedy=Remedy.PAGE,
        scope=Scope.HOST,
        consequences=_SLOWER,
        explains=_EXPLAINED,
    ),
    Cause.GPU_POWER_LIMITED: CauseRule(
        Class.RUNTIME,
        (proof(Sign.GPU_POWER_LIMITED, at=0.8),),
        story="A GPU works at a power limit well below the one that it came with, so it is slower "
        "than its peers for as long as it is busy. A busy GPU at its own limit is well; here "
        "somebody lowered the limit.",
        look="`nvidia-smi -q -d POWER` on its host: the enforced limit and the default limit. "
        "Compare with the GPUs of its peers.",
        fix="Set the limit back (`nvidia-smi -pl`), or give this replica a smaller share on "
        "purpose[. The limit is {limit_w} W][ of {default_w} W].",
        remedy=Remedy.PAGE,
        scope=Scope.HOST,
        consequences=_SLOWER,
        explains=_EXPLAINED,
    ),
    Cause.GPU_RESET_DUE: CauseRule(
        Class.RUNTIME,
        (proof(Sign.GPU_RESET_DUE, at=0.85),),
        story="A row of a GPU's memory is bad, and the spare one for it is taken into use only at "
        "the next reset. Nothing is wrong with answers now; the next error in that row ends what "
        "runs there.",
        look="`nvidia-smi -q -d ROW_REMAPPER` on its host: a pending remapping, and how many "
        "spare rows are left.",
        fix="Drain the replicas on this GPU at a quiet time and reset it (`nvidia-smi -r`), or "
        "restart its host.",
        remedy=Remedy.PAGE,
        scope=Scope.HOST,
        standing=True,
    ),
    Cause.GPU_IDLE: CauseRule(
        Class.RUNTIME,
        (proof(Sign.GPU_IDLE, at=0.6),),
        story="Requests wait for a replica whose GPU does nothing. Whatever stands between the "
        "queue and the GPU holds them: a limit on requests at once, a tokenizer on one busy CPU, "
        "a scheduler that waits.",
        look="Compare requests that run with those that wait in the engine's metrics; `top` on "
        "its host for one thread at 100 %; `py-spy dump` of the engine.",
        fix="Raise what limits requests at once, or give the engine more CPU[. {waiting} wait][, "
        "and its GPU has been idle for {idle_s:s}].",
        remedy=Remedy.PAGE,
        consequences=WAITING,
        explains=frozenset({Cause.QUEUE_STALLED}),
    ),
    Cause.LATENCY_TAIL: CauseRule(
        Class.RUNTIME,
        (proof(Sign.LATENCY_TAIL, at=0.6),),
        story="Half of the users are served as ever, and one in a hundred waits ten times as long "
        "or more. A long request holds up short ones in the same batch, or one replica straggles "
        "now and then. Averages and medians do not show it.",
        look="The lengths of requests at that time, and on which replica the long waits were: the "
        "evidence names it where one has most of them.",
        fix="Keep long requests apart from short ones (the routing policy length_classes, or a "
        "model entry of their own), lower the longest prompt that is computed at once, or look "
        "at the replica that the evidence names[. The slowest hundredth takes {times:n} times "
        "the median][, in {requests} of {seen} requests].",
        remedy=Remedy.OBSERVE,
        scope=Scope.MODEL,
    ),
    Cause.GPUS_STRANDED: CauseRule(
        Class.ROUTING,
        (proof(Sign.GPUS_STRANDED, at=0.9),),
        story="A replica waits for several GPUs on one host. So many are free in total, and on no "
        "host enough of them: small replicas are spread over all hosts, and each blocks a place "
        "for a large one.",
        look="The free GPUs of each host in `holdfast top`, and which small replicas run there.",
        fix="Move small replicas together, so that one host is free[: {needed} are needed on one "
        "host][, {free} are free on {hosts} hosts][, {largest} on the best of them]. To keep it "
        "so, pack: a scheduler that fills hosts one after the other, or hosts for large replicas "
        "alone.",
        remedy=Remedy.PAGE,
        scope=Scope.MODEL,
        consequences=WAITING | {Sign.NOT_PLACED},
        explains=frozenset({Cause.NOT_PLACED, Cause.QUEUE_STALLED}),
    ),
}

__all__ = ["GPUS"]
