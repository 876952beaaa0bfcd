"""Rules of causes in a replica's process: it died, it hangs, or it runs short of a resource.

From outside, all of these look alike. What tells them apart is how far an answer gets: no
connection, no first token, no next token, or all of it, late.
"""

from typing import Final

from holdfast.core.diagnose.causes.loading import FLOW, WAITING
from holdfast.core.diagnose.causes.rule import CauseRule, During, proof
from holdfast.core.diagnose.evidence import Remedy, Sign
from holdfast.core.failure import Cause, Class

_FAILS: Final = frozenset(
    {
        *(Sign.CANARY_SILENT, Sign.CANARY_ERRORS, Sign.CANARY_SLOW, Sign.NOTHING_ANSWERS),
        *(Sign.NO_FIRST_TOKEN, Sign.NO_NEXT_TOKEN, Sign.ERRORS, Sign.BACKPRESSURE),
        Sign.INFERENCES_FAIL,
        *(Sign.STALLED, Sign.STARVED, Sign.SLOW_TOKENS, Sign.SILENT_SERVING, Sign.CANARY_DRIFTED),
        Sign.SLOW_ANSWERS,
        *WAITING,
    }
)
_ENDS: Final = frozenset(
    {
        *(Sign.EXITED, Sign.EXIT_137, Sign.EXITED_ON_REQUEST, Sign.EXITS_AGAIN, Sign.REFUSES),
        *(Sign.UNREACHABLE, Sign.CONNECTIONS_LOST, Sign.STREAMS_CUT, Sign.LOG_ENGINE_DEAD),
        *(Sign.FAST_ERRORS, Sign.ATTRACTS, Sign.EXITED_LOADING, Sign.EMPTY_ANSWERS),
    }
)
# Who gave up or stood still before it was killed was not killed for its memory.
_STOOD: Final = (Sign.LOG_ENGINE_DEAD, Sign.LOG_WATCHDOG, Sign.FROZEN, Sign.CANARY_SILENT)
_FIRST: Final = 20.0  # requests: whoever served more did not die of its first ones
# An end breaks off what was under way, in whatever way the connection happens to tell it.
_BROKEN_OFF: Final = frozenset(
    {
        *(Cause.CONNECTION_LOST, Cause.TRUNCATED, Cause.SERVER_ERRORS, Cause.FAST_FAILURES),
        *(Cause.TRANSFER_FAILED, Cause.EMPTY_OUTPUT),
    }
)

PROCESS: Final[dict[Cause, CauseRule]] = {
    Cause.CRASHED: CauseRule(
        Class.RUNTIME,
        (
            proof(Sign.EXITED, at=0.85),
            proof(Sign.REFUSES, at=0.75, during=During.SERVING),
            proof(Sign.LOG_ENGINE_DEAD, at=0.75),
        ),
        story="The replica's process ended by itself, or nobody listens on its port any more. "
        "Answers under way broke off. It is started again where Holdfast manages it.",
        look="Look at the exit code or signal and at the last lines of its log; `dmesg` shows "
        "whether the kernel had a hand in it. Where only the endpoint is known, see on its host "
        "whether the process runs.",
        fix="Find the reason in its log[; exit code {code}][; signal {signal}]. One crash is "
        "mended by its restart; if it comes back, hold the version or the request it dies of.",
        remedy=Remedy.OBSERVE,
        consequences=_FAILS | _ENDS,
        explains=FLOW | _BROKEN_OFF,
    ),
    Cause.OUT_OF_MEMORY: CauseRule(
        Class.RUNTIME,
        (
            proof(Sign.KILLED_FOR_MEMORY, at=0.92),
            # A runtime that says 137 had no other word for it; a signal may be anybody's kill.
            proof(Sign.EXIT_137, at=0.6, least={"code": 137}, without=_STOOD),
            proof(
                *(Sign.EXIT_137, Sign.EXITED_ON_REQUEST),
                at=0.75,
                without=_STOOD,
                most={"served": _FIRST},
            ),
            proof(Sign.EXIT_137, Sign.EXITS_AGAIN, at=0.7, without=_STOOD),
            proof(Sign.LOG_GPU_MEMORY, at=0.75, during=During.SERVING),
            proof(Sign.LOG_HOST_MEMORY, at=0.75, during=During.SERVING),
        ),
        story="The replica ran out of memory while it served. The kernel kills such a process "
        "without a word in its own log, so that it seems to vanish, is replaced, and dies again.",
        look="Exit code 137 or signal 9; `dmesg | grep -i oom`, the cgroup's memory.events "
        "(oom_kill), or 'CUDA out of memory' in the engine's log. See which requests were on it.",
        fix="Give it more memory, or let it take less: fewer requests at once, a shorter context, "
        "a lower share of GPU memory for the cache[. It held {used_bytes:GB}][ of "
        "{limit_bytes:GB}].",
        remedy=Remedy.OBSERVE,
        consequences=_FAILS | _ENDS,
        explains=FLOW | _BROKEN_OFF | {Cause.CRASHED, Cause.COLLECTIVE_TIMEOUT},
    ),
    Cause.UNDERSIZED: CauseRule(
        Class.RUNTIME,
        (
            proof(Sign.RESERVED_TOO_LITTLE, at=0.65),
            proof(Sign.LIMIT_TOO_LOW, at=0.75),
            proof(Sign.RESERVED_TOO_LITTLE, Sign.EXIT_137, at=0.9),
            proof(Sign.LIMIT_TOO_LOW, Sign.EXIT_137, at=0.93),
            proof(Sign.RESERVED_TOO_LITTLE, Sign.KILLED_FOR_MEMORY, at=0.95),
            proof(Sign.LIMIT_TOO_LOW, Sign.KILLED_FOR_MEMORY, at=0.97),
        ),
        story="The replica needs more memory than was set aside for it. With a low reservation "
        "too many replicas are placed on one host; with a low limit it loads, takes its first "
        "request and is killed, again and again, while the queue in front of it stalls.",
        look="Compare the declared reservation and limit with the peak of its resident memory "
        "(memory.peak of the cgroup): weights, cache, buffers and about 0.3 GB for the system.",
        fix="[Memory reservation {reserved_bytes:GB}, footprint[ at least{at_least:flag}] "
        "{footprint_bytes:GB}[ measured{measured:flag}]"
        "[ measured on a peer{of_peers:flag}][ as declared{declared:flag}]: set "
        "{suggested_bytes:GB}.] [Memory limit {limit_bytes:GB}, footprint[ at least{at_least:flag}]"
        " {footprint_bytes:GB}: set {suggested_bytes:GB}.] Reservation and limit should both be "
        "what it really needs.",
        remedy=Remedy.PAGE,
        consequences=_FAILS | _ENDS | {Sign.KILLED_FOR_MEMORY, Sign.LOG_HOST_MEMORY},
        explains=FLOW | {Cause.OUT_OF_MEMORY},
        standing=True,
    ),
    Cause.LEAK: CauseRule(
        Class.RUNTIME,
        (
            proof(Sign.MEMORY_LEAKS, at=0.8, acts=False),
            # A restart is worth its while when memory is nearly gone, not a day before.
            proof(
                Sign.MEMORY_LEAKS,
                at=0.85,
                least={"exhausted_in_s": 0.0},
                most={"exhausted_in_s": 6 * 3_600.0},
            ),
        ),
        story="Its memory climbs whether or not there is traffic. Long before it is exhausted, "
        "allocations get slow or fail, requests wait for memory that never comes, and the health "
        "page stays green.",
        look="Plot its memory over hours beside its requests: the lower edge rises while traffic "
        "does not. A restart brings it back to where it began. Caches that the first requests "
        "fill are no leak: each request adds less than the one before.",
        fix="Restart it before memory is exhausted[, in {exhausted_in_s:s}], and report the leak "
        "to whoever makes the engine[: {bytes_per_s:MBmin} at {used_bytes:GB} now].",
        remedy=Remedy.DRAIN_AND_RESTART,
        consequences=_FAILS
        | _ENDS
        | {Sign.KILLED_FOR_MEMORY, Sign.LOG_GPU_MEMORY, Sign.LOG_HOST_MEMORY, Sign.FRAGMENTED}
        | {Sign.LOG_ALLOCATION, Sign.RESERVED_TOO_LITTLE, Sign.LIMIT_TOO_LOW, Sign.KV_FULL},
        explains=FLOW
        | {Cause.OUT_OF_MEMORY, Cause.UNDERSIZED, Cause.FRAGMENTED, Cause.STARVED, Cause.HUNG}
        | {Cause.STALLED, Cause.SLOW, Cause.DRIPPING, Cause.ENVIRONMENT_CHANGED}
        | {Cause.KV_EXHAUSTED, Cause.SERVER_ERRORS},
        standing=True,
    ),
    Cause.FRAGMENTED: CauseRule(
        Class.RUNTIME,
        (
            proof(Sign.FRAGMENTED, at=0.7),
            proof(Sign.LOG_ALLOCATION, at=0.6),
            proof(Sign.FRAGMENTED, Sign.LOG_ALLOCATION, at=0.85),
        ),
        story="Memory is free in sum and not in one piece: the replica refuses or postpones "
        "requests that would fit. It gets worse with its age and does not heal by itself.",
        look="Compare free memory with the size of the allocations that fail in its log; engines "
        "on PyTorch print reserved and allocated memory with the error.",
        fix="Restart it; for PyTorch engines set expandable segments in the allocator's options, "
        "and bound the lengths that it serves.",
        remedy=Remedy.DRAIN_AND_RESTART,
        consequences=_FAILS | _ENDS,
        explains=FLOW
        | {Cause.STARVED, Cause.SERVER_ERRORS, Cause.KV_EXHAUSTED, Cause.HUNG, Cause.SLOW},
    ),
    Cause.STARVED: CauseRule(
        Class.RUNTIME,
        (
            proof(Sign.STARVED, at=0.75),
            proof(Sign.STARVED, Sign.NO_FIRST_TOKEN, at=0.85),
        ),
        story="The replica accepts requests and schedules none of them: they wait in its own "
        "queue while its peers serve. Its health page is green and its connections are open.",
        look="Read its metrics: requests waiting above zero, requests running at zero or frozen, "
        "tokens generated unchanged. Look for a full cache or a stuck scheduler in its log.",
        fix="Restart it. If it comes back, lower the requests it may hold and find what its "
        "scheduler waits for.",
        remedy=Remedy.DRAIN_AND_RESTART,
        consequences=_FAILS | _ENDS,
        explains=FLOW | {Cause.HUNG, Cause.SLOW},
    ),
    Cause.HUNG: CauseRule(
        Class.RUNTIME,
        (
            proof(Sign.CANARY_SILENT, at=0.7),
            proof(Sign.NO_FIRST_TOKEN, at=0.6),
            proof(Sign.NO_FIRST_TOKEN, Sign.NO_NEXT_TOKEN, at=0.92),
            proof(Sign.LOG_WATCHDOG, at=0.65),
            proof(Sign.SILENT_SERVING, at=0.55),
        ),
        story="The replica accepts requests and never answers them. Its process runs, its port is "
        "open and its health page is green: everything that is usually watched looks well.",
        look="Send it one short request by hand and wait; ask its health page beside it. Take the "
        "stacks of its processes (py-spy dump) before it is restarted.",
        fix="Restart it; keep the stacks for whoever makes the engine[. It has been silent for "
        "{silent_s:s}].",
        remedy=Remedy.DRAIN_AND_RESTART,
        consequences=_FAILS | _ENDS,
        explains=FLOW,
    ),
    Cause.STALLED: CauseRule(
        Class.RUNTIME,
        (
            proof(Sign.NO_NEXT_TOKEN, at=0.8),
            proof(Sign.STALLED, at=0.6),
        ),
        story="Answers begin and stop: requests run in the engine, and no token comes out. A check "
        "that is content with a first token sees nothing wrong.",
        look="Stream one longer answer by hand and watch where it stops; read its metrics twice: "
        "requests running, tokens generated unchanged.",
        fix="Restart it: a scheduler that stands still with requests in it does not start again "
        "by itself.",
        remedy=Remedy.DRAIN_AND_RESTART,
        consequences=_FAILS | _ENDS,
        explains=FLOW,
    ),
    Cause.FROZEN: CauseRule(
        Class.RUNTIME,
        (
            proof(Sign.FROZEN, at=0.97),
            proof(Sign.NOTHING_ANSWERS, at=0.75),
            proof(Sign.NOTHING_ANSWERS, Sign.NO_FIRST_TOKEN, at=0.92),
        ),
        story="The process is not run at all: stopped by a signal, frozen by its cgroup, or held "
        "by its host. Its port still accepts connections, since the kernel does that, and nothing "
        "behind it answers, not even its health page.",
        look="`ps -o stat` shows T, or the cgroup's cgroup.freeze is 1; on virtual machines see "
        "whether the host was paused. The port opens and no byte comes back.",
        fix="Find who stopped it: a debugger, a snapshot, a pause of the container. Continue it "
        "(kill -CONT) or restart it.",
        remedy=Remedy.DRAIN_AND_RESTART,
        consequences=_FAILS | _ENDS,
        explains=FLOW
        | {Cause.HUNG, Cause.STALLED, Cause.SLOW, Cause.DRIPPING, Cause.STARVED}
        | {Cause.CONNECTION_LOST, Cause.TRANSFER_FAILED, Cause.COLLECTIVE_TIMEOUT}
        | {Cause.SERVER_ERRORS, Cause.ENVIRONMENT_CHANGED},
    ),
    Cause.SLOW: CauseRule(
        Class.RUNTIME,
        (
            proof(Sign.CANARY_SLOW, at=0.75),
            proof(Sign.SLOW_ANSWERS, at=0.75),
            proof(Sign.SLOW_TOKENS, at=0.7, least={"pace": 1.0}),
            proof(Sign.CANARY_SLOW, Sign.SLOW_TOKENS, at=0.9),
            proof(Sign.CANARY_SLOW, Sign.NO_FIRST_TOKEN, at=0.9),
            proof(Sign.LOG_CPU_FALLBACK, at=0.4),
            proof(Sign.LOG_CPU_FALLBACK, Sign.CANARY_SLOW, at=0.9),
        ),
        story="The replica answers right and takes many times as long as its peers for the same "
        "question. Users notice before any error shows.",
        look="Ask it and a peer the same short question, several times, with nothing else "
        "running. Look at GPU clocks (throttling), at neighbours on its host, and at swapping. "
        "What a neighbour takes from all replicas of a host, up to half of their speed, is held "
        "against none of them.",
        fix="It keeps a tenth of its share. Look for heat, power limits, a noisy neighbour or a "
        "fallback to slower kernels; move it if its host is the reason.",
        remedy=Remedy.OBSERVE,
        consequences=_FAILS,
        explains=FLOW | {Cause.ENVIRONMENT_CHANGED},
    ),
    Cause.DRIPPING: CauseRule(
        Class.RUNTIME,
        (
            proof(Sign.SLOW_TOKENS, at=0.65, most={"pace": 1.0}),
            # Below a token a second it is no slow engine any more, whatever its canaries say.
            proof(
                *(Sign.SLOW_TOKENS, Sign.CANARY_SLOW),
                at=0.96,
                least={"pace": 0.0},
                most={"pace": 1.0},
            ),
            proof(Sign.NO_NEXT_TOKEN, Sign.SLOW_TOKENS, at=0.92),
            proof(Sign.NO_NEXT_TOKEN, Sign.CANARY_SLOW, at=0.9),
        ),
        story="First tokens come in good time, and then one token every few seconds. Each answer "
        "holds its place for minutes, and a check of the first token finds nothing.",
        look="Stream one answer by hand and watch the time between tokens; compare it with a peer.",
        fix="Take it out and restart it; look for preemption, swapping of its cache to the host, "
        "or a network that loses packets[. It gives each request "
        "{pace:n} tokens/s, its peers {peers:n}].",
        remedy=Remedy.TAKE_OUT,
        consequences=_FAILS,
        explains=FLOW | {Cause.STALLED, Cause.HUNG},
    ),
}

__all__ = ["PROCESS"]
