"""Rules of causes around a replica: GPU, peers, host, killing requests and waiting work.

Whatever stops a replica shows in a queue later. These rules therefore name a queue as the cause
only where nothing behind it explains it.
"""

from typing import Final

from holdfast.core.diagnose.causes.loading import FLOW, WAITING
from holdfast.core.diagnose.causes.rule import CauseRule, Scope, proof
from holdfast.core.diagnose.evidence import Remedy, Sign
from holdfast.core.failure import Cause, Class

_FAILS: Final = frozenset(
    {
        *(Sign.EXITED, Sign.EXITS_AGAIN, Sign.EXITED_ON_REQUEST, Sign.EXITED_LOADING),
        *(Sign.REFUSES, Sign.UNREACHABLE, Sign.CONNECTIONS_LOST, Sign.STREAMS_CUT, Sign.ERRORS),
        *(Sign.FAST_ERRORS, Sign.ATTRACTS, Sign.NO_FIRST_TOKEN, Sign.NO_NEXT_TOKEN),
        *(Sign.CANARY_SILENT, Sign.CANARY_ERRORS, Sign.NOTHING_ANSWERS, Sign.CANARY_SLOW),
        *(Sign.STALLED, Sign.STARVED, Sign.SLOW_TOKENS, Sign.BACKPRESSURE, Sign.SILENT_SERVING),
        Sign.SLOW_ANSWERS,
        *(Sign.LOG_ENGINE_DEAD, Sign.EXIT_137, Sign.LOAD_STUCK, Sign.SILENT_LOADING),
        *WAITING,
    }
)
_STANDS: Final = frozenset(
    {Cause.HUNG, Cause.STALLED, Cause.STARVED, Cause.SLOW, Cause.DRIPPING, Cause.SERVER_ERRORS}
)
_DIES: Final = frozenset(
    {Cause.CRASHED, Cause.CONNECTION_LOST, Cause.TRUNCATED, Cause.FAST_FAILURES}
)

SURROUNDINGS: Final[dict[Cause, CauseRule]] = {
    Cause.GPU_FAULT: CauseRule(
        Class.RUNTIME,
        (
            proof(Sign.GPU_FAULT, at=0.85),
            proof(Sign.LOG_GPU_DAMAGED, at=0.85),
            proof(Sign.GPU_MEMORY_ERRORS, at=0.8),
            proof(Sign.GPU_ROWS_EXHAUSTED, at=0.85),
        ),
        story="The GPU itself failed: the driver reported a fault, memory that cannot be "
        "corrected, or a device that fell off the bus. What ran on it is lost, and a restart on "
        "the same GPU often fails again.",
        look="`dmesg | grep -i xid` and `nvidia-smi -q` (ECC errors, pending retirements) on its "
        "host.",
        fix="Move the replica to another GPU, reset or drain the host, and have the device "
        "replaced if it comes back[. Xid {xid}][. {errors} memory errors could not be corrected].",
        remedy=Remedy.RELOCATE,
        scope=Scope.HOST,
        consequences=_FAILS | {Sign.LOG_CUDA_CORRUPTED, Sign.CANARY_WRONG, Sign.DEGENERATE},
        explains=FLOW
        | _STANDS
        | _DIES
        | {Cause.CUDA_CORRUPTED, Cause.COLLECTIVE_TIMEOUT, Cause.TRANSFER_FAILED}
        | {Cause.DEGENERATE_OUTPUT, Cause.WRONG_OUTPUT, Cause.LOAD_FAILED, Cause.GPU_RESET_DUE},
    ),
    Cause.CUDA_CORRUPTED: CauseRule(
        Class.RUNTIME,
        (proof(Sign.LOG_CUDA_CORRUPTED, at=0.87),),
        story="The replica's CUDA context is lost after an illegal access or a failed assertion on "
        "the device. Every further request fails inside the same process, while its server and "
        "its health page go on.",
        look="Its log says 'illegal memory access' or 'device-side assert'. Every request after "
        "that line fails.",
        fix="Restart it: only a new process gets a new context. If one request brings it back, "
        "find and refuse that request.",
        remedy=Remedy.DRAIN_AND_RESTART,
        consequences=_FAILS | {Sign.DEGENERATE, Sign.CANARY_WRONG, Sign.EMPTY_ANSWERS},
        explains=FLOW
        | _STANDS
        | _DIES
        | {Cause.DEGENERATE_OUTPUT, Cause.WRONG_OUTPUT, Cause.EMPTY_OUTPUT}
        | {Cause.COLLECTIVE_TIMEOUT, Cause.TRANSFER_FAILED},
    ),
    Cause.KV_EXHAUSTED: CauseRule(
        Class.RUNTIME,
        (
            proof(Sign.PREEMPTS, at=0.55),
            proof(Sign.KV_FULL, at=0.4),
            proof(Sign.LOG_KV_EXHAUSTED, at=0.4),
            proof(Sign.KV_FULL, Sign.PREEMPTS, at=0.8),
            proof(Sign.KV_FULL, Sign.LOG_KV_EXHAUSTED, at=0.7),
            proof(Sign.KV_FULL, Sign.BACKPRESSURE, at=0.8),
            proof(Sign.KV_FULL, Sign.NO_FIRST_TOKEN, at=0.85),
            proof(Sign.PREEMPTS, Sign.NO_NEXT_TOKEN, at=0.9),
            proof(Sign.PREEMPTS, Sign.NO_FIRST_TOKEN, at=0.85),
            proof(Sign.KV_FULL, Sign.STARVED, at=0.85),
            proof(Sign.KV_FULL, Sign.NO_NEXT_TOKEN, at=0.88),
            proof(Sign.LOG_KV_EXHAUSTED, Sign.BACKPRESSURE, at=0.7),
            proof(Sign.LOG_KV_EXHAUSTED, Sign.NO_FIRST_TOKEN, at=0.75),
            proof(Sign.LOG_KV_EXHAUSTED, Sign.ERRORS, at=0.8),
            proof(Sign.KV_FULL, Sign.ERRORS, at=0.7),
        ),
        story="The cache that running requests need is full. The engine puts requests off, or "
        "throws running ones out and computes them again, so that everybody gets slower the "
        "busier it is.",
        look="Its metrics: cache usage near one, preemptions rising, requests waiting. Look at "
        "the lengths of the requests at that time.",
        fix="Send it fewer or shorter requests: lower the requests at once or the longest "
        "context, give the cache more memory, or add replicas[. Cache {kv_used:%} used].",
        remedy=Remedy.DEGRADE,
        consequences=_FAILS,
        explains=FLOW
        | {Cause.SLOW, Cause.STARVED, Cause.DRIPPING, Cause.STALLED, Cause.HUNG}
        | {Cause.SERVER_ERRORS, Cause.FAST_FAILURES},
    ),
    Cause.COLLECTIVE_TIMEOUT: CauseRule(
        Class.RUNTIME,
        (proof(Sign.LOG_COLLECTIVE, at=0.87),),
        story="The GPUs or hosts that serve one model together lost each other: a collective "
        "operation waited in vain for a rank that is gone or slow. All of them stand still, and "
        "the one that complains is seldom the one that is ill.",
        look="Find the rank that did not arrive in the logs of all ranks; look at its GPU and at "
        "the links between (nvidia-smi topo, the network's counters).",
        fix="Restart all ranks of the replica together; mend the rank or link that was missing.",
        remedy=Remedy.DRAIN_AND_RESTART,
        consequences=_FAILS | {Sign.LOG_WATCHDOG},
        explains=FLOW | _STANDS | _DIES | {Cause.TRANSFER_FAILED},
        symptom=True,
    ),
    Cause.QUERY_OF_DEATH: CauseRule(
        Class.RUNTIME,
        (proof(Sign.SAME_REQUEST_KILLS, at=0.93),),
        story="One request kills the replicas that run it. Retries carry it from one to the next, "
        "so that a single request can take down a fleet.",
        look="The incident names the fingerprint. Find that request at the client, and send it to "
        "a replica that nobody needs.",
        fix="The fingerprint is refused for an hour after two replicas. Report the request to "
        "whoever makes the engine, and refuse its shape at the gateway meanwhile[. It killed "
        "{replicas} replicas].",
        remedy=Remedy.OBSERVE,
        scope=Scope.MODEL,
        consequences=_FAILS
        | {Sign.KILLED_FOR_MEMORY, Sign.LOG_CUDA_CORRUPTED, Sign.LOG_GPU_MEMORY, Sign.GPU_FAULT},
        explains=FLOW
        | _STANDS
        | _DIES
        | {Cause.OUT_OF_MEMORY, Cause.CUDA_CORRUPTED, Cause.TRANSFER_FAILED}
        | {Cause.GPU_FAULT, Cause.COLLECTIVE_TIMEOUT},
    ),
}

ROUTING: Final[dict[Cause, CauseRule]] = {
    Cause.MISPLACED: CauseRule(
        Class.ROUTING,
        (
            proof(Sign.ON_CPU, at=0.95),
            proof(Sign.NO_ROOM, at=0.85),
        ),
        story="The replica runs on a host that cannot carry it: a model for a GPU on a host "
        "without one, or more memory than the host has left. It may well start, and is then slow "
        "or killed.",
        look="Compare what the model needs with what its host has: GPUs, free memory, what else "
        "is placed there.",
        fix="Move it to a host that fits, and give the scheduler the constraint it lacked[. It "
        "needs {needed_bytes:GB}][, and {room_bytes:GB} are left there].",
        remedy=Remedy.RELOCATE,
        consequences=_FAILS
        | {Sign.KILLED_FOR_MEMORY, Sign.LOG_HOST_MEMORY, Sign.LOG_GPU_MEMORY}
        | {Sign.LOG_CPU_FALLBACK},
        explains=FLOW
        | _STANDS
        | _DIES
        | {Cause.LOAD_FAILED, Cause.LOAD_STALLED, Cause.LOAD_OUT_OF_MEMORY, Cause.OUT_OF_MEMORY}
        | {Cause.TRANSFER_FAILED, Cause.ENVIRONMENT_CHANGED, Cause.DRIVER_MISMATCH},
    ),
    Cause.UNREACHABLE: CauseRule(
        Class.ROUTING,
        (
            proof(Sign.UNREACHABLE, at=0.75),
            proof(Sign.UNREACHABLE, Sign.NOTHING_ANSWERS, at=0.87),
            # Nothing to act on: it gets no requests before it was ever ready.
            proof(Sign.NEVER_SEEN, at=0.8, acts=False),
        ),
        story="Connections to the replica time out: its packets get lost on the way or its host "
        "is gone. Or nothing at its address ever accepted one. Whether it is ill cannot be told "
        "from here.",
        look="Connect to its port from the gateway's host, and from a host beside it. If only one "
        "works, it is the network between; if neither does, look at the host.",
        fix="Mend the path (routes, firewalls, addresses) or the host; of an endpoint that was "
        "never seen, see first that it runs and that the fleet file has its address. It stays "
        "out until it can be reached.",
        remedy=Remedy.TAKE_OUT,
        consequences=_FAILS,
        explains=FLOW
        | {Cause.HUNG, Cause.STALLED, Cause.CONNECTION_LOST, Cause.SERVER_ERRORS}
        | {Cause.TRANSFER_FAILED, Cause.COLLECTIVE_TIMEOUT},
    ),
    Cause.HOST_UNAVAILABLE: CauseRule(
        Class.ROUTING,
        (
            proof(Sign.HOST_LOST, at=0.95),
            proof(Sign.HOST_NOT_READY, at=0.93),
            proof(Sign.HOST_LEAVING, at=0.8),
        ),
        story="The host of the replica is not ready, does not report to its platform any more, or "
        "is being drained, and the replica on it is silent. Nothing is wrong with the engine as "
        "far as anybody can tell: it is not run, or cannot be reached. Its platform starts it "
        "elsewhere after some minutes, where it may.",
        look="`kubectl describe node`, or the platform's page of the host: since when, and who did "
        "it. Does it answer a ping, do other pods on it answer? A kubelet that is down leaves "
        "engines running; a host without power or network does not.",
        fix="Mend or replace the host, or finish its drain: delete what still hangs on it, so that "
        "it is started elsewhere[. It has been so for {lasted_s:s}]. Do not look for the reason in "
        "the engine before the host is back.",
        remedy=Remedy.PAGE,
        scope=Scope.HOST,
        consequences=_FAILS | {Sign.FROZEN},
        explains=FLOW
        | _STANDS
        | _DIES
        | {Cause.FROZEN, Cause.UNREACHABLE, Cause.LOAD_STALLED, Cause.ALL_SILENT}
        | {Cause.TRANSFER_FAILED, Cause.COLLECTIVE_TIMEOUT},
    ),
    Cause.OVERLOADED: CauseRule(
        Class.ROUTING,
        (
            proof(Sign.BACKPRESSURE, at=0.6),
            proof(Sign.QUEUE_GROWS, at=0.7, least={"finished_s": 0.01}),
        ),
        story="There is more work than the replicas of this model can take: they answer busy and "
        "nothing else. They are well; there are too few of them.",
        look="Compare arrivals with answers of the model, and see whether other replicas of it "
        "are out of rotation.",
        fix="Add replicas, lower what batch work may take, or let requests go to a smaller model "
        "for a while.",
        remedy=Remedy.DEGRADE,
        scope=Scope.MODEL,
        consequences=WAITING
        | {Sign.NO_FIRST_TOKEN, Sign.KV_FULL, Sign.PREEMPTS, Sign.STARVED, Sign.CANARY_SLOW},
        explains=frozenset({Cause.QUEUE_STALLED}),
    ),
    Cause.CHAIN_BACKED_UP: CauseRule(
        Class.ROUTING,
        (
            proof(Sign.CHAIN_WAITS, at=0.75),
            proof(Sign.CHAIN_WAITS, Sign.QUEUE_GROWS, at=0.85),
        ),
        story="Requests go through several models one after the other, and a later one is too "
        "slow. Work piles up in front of the earlier ones, which are well.",
        look="Compare the queues of all models of the chain: the last one that grows stands in "
        "front of the bottleneck.",
        fix="Add replicas to the model that the evidence names, not to the one whose queue grows.",
        remedy=Remedy.PAGE,
        scope=Scope.MODEL,
        consequences=WAITING | {Sign.BACKPRESSURE},
        explains=frozenset({Cause.QUEUE_STALLED, Cause.OVERLOADED}),
    ),
    Cause.QUEUE_STALLED: CauseRule(
        Class.ROUTING,
        (
            proof(Sign.QUEUE_GROWS, at=0.6),
            proof(Sign.DEAD_LETTERS, at=0.55),
            proof(Sign.NO_REPLICA_READY, at=0.6),
            proof(Sign.NO_REPLICA_READY, Sign.QUEUE_GROWS, at=0.8),
        ),
        story="Work waits and does not get done, and nothing is known of a replica that would "
        "explain it. Somebody takes too little of it, or nobody takes it at all.",
        look="See whether the model has replicas, whether they take from this queue, and whether "
        "the same messages are handed out again and again.",
        fix="Look at the consumers before the queue: changing the queue's settings mends nothing "
        "where they fail[. {waiting} wait].",
        remedy=Remedy.PAGE,
        scope=Scope.MODEL,
        consequences=WAITING,
    ),
    Cause.TRANSFER_FAILED: CauseRule(
        Class.ROUTING,
        (proof(Sign.LOG_TRANSFER, at=0.87),),
        story="The KV cache does not get from the replicas that read prompts to those that "
        "answer. Requests hang or fail at the receiving side, which looks ill and is not.",
        look="Find the peer that its log names and look at that one first; then at the link "
        "between the two (RDMA counters, ports, addresses).",
        fix="Mend or replace the peer or the link. Do not restart the side that complains: it "
        "loses its cache and complains again.",
        remedy=Remedy.PAGE,
        consequences=_FAILS | {Sign.LOG_WATCHDOG},
        explains=FLOW | _STANDS | {Cause.TRUNCATED, Cause.EMPTY_OUTPUT},
        symptom=True,
    ),
    Cause.WRONG_REVISION: CauseRule(
        Class.ROUTING,
        (proof(Sign.WRONG_REVISION, at=0.93),),
        story="The replica serves another revision of the model than was declared for it. Requests "
        "sent there get answers of a model that nobody asked for.",
        look="Ask its model page what it serves, and compare it with the fleet's declaration.",
        fix="Restart it as declared, or correct the declaration. It gets no work until both agree.",
        remedy=Remedy.DRAIN_AND_RESTART,
        consequences=frozenset({Sign.CANARY_WRONG, Sign.PEERS_DISAGREE, Sign.OUTPUT_DRIFTED})
        | WAITING
        | {Sign.FINISHES_CHANGED, Sign.VERSIONS_DIFFER, Sign.OUTPUT_SUSPECTED},
        explains=FLOW | {Cause.WRONG_OUTPUT, Cause.OUTPUT_DRIFT, Cause.ENVIRONMENT_CHANGED},
    ),
    Cause.CHECKER_BROKEN: CauseRule(
        Class.ROUTING,
        (proof(Sign.CANARIES_DOUBTED, at=0.87),),
        story="Every canary of a model fails at once, while its replicas answer and may well "
        "serve. The expected answer, or whoever asks, is more suspect than all replicas together, "
        "so that nobody is taken out for it.",
        look="Ask one replica the canary's question by hand. If the answer is right, see what "
        "changed in the expected answer, the template, or the checker's way to the replicas.",
        fix="Correct the expected answer or the checker; replicas are judged by users' requests "
        "until then.",
        remedy=Remedy.PAGE,
        scope=Scope.MODEL,
        consequences=frozenset({Sign.CANARY_WRONG, Sign.CANARY_ERRORS, Sign.CANARY_SILENT})
        | {Sign.CANARY_SLOW, Sign.NOTHING_ANSWERS, Sign.REFUSES},
        explains=frozenset({Cause.WRONG_OUTPUT, Cause.SERVER_ERRORS, Cause.HUNG}),
        standing=True,
    ),
    Cause.ALL_SILENT: CauseRule(
        Class.ROUTING,
        (proof(Sign.CANARIES_UNANSWERED, at=0.8),),
        story="No replica of a model answers: its canaries get nothing back, and no user gets a "
        "token. When all are silent at once, what they share is more suspect than each of them: "
        "the network to them, a host, a filesystem, something that all of them wait for. Nobody "
        "is taken out for it, since nobody else would be better.",
        look="Ask one replica by hand, from its own host and from here. It answers there only: the "
        "way between is cut. It answers nowhere: see what all of them wait for (py-spy dump, "
        "dmesg, the mount of the weights).",
        fix="Mend what they share. If each of them hangs by itself, restart them one after the "
        "other.",
        remedy=Remedy.PAGE,
        scope=Scope.MODEL,
        consequences=frozenset({Sign.CANARY_SILENT, Sign.NOTHING_ANSWERS, Sign.CANARY_SLOW}),
        explains=frozenset({Cause.HUNG}),
        standing=True,
        shared=True,
    ),
    Cause.CONTROL_LATE: CauseRule(
        Class.ROUTING,
        (proof(Sign.CONTROL_LATE, at=0.9),),
        story="Control itself stands still, again and again, for longer than a busy machine "
        "explains. While it does it asks no canaries, starts and drains nobody, and tells "
        "gateways nothing new; what it says of replicas is late and may be wrong. Gateways go on "
        "by their own breakers and deadlines.",
        look="`top` on control's host: is control short of CPU, does it swap, is its disk slow? "
        "`py-spy dump` shows what its main thread does while it stands.",
        fix="Give control a core of its own (fewer engine threads, a CPU reservation, another "
        "host), and keep its run directory off slow or network disks[. It stood still for "
        "{late_s:s} of {window_s:s}].",
        remedy=Remedy.PAGE,
        scope=Scope.FLEET,
        standing=True,
    ),
    Cause.NOT_PLACED: CauseRule(
        Class.ROUTING,
        (proof(Sign.NOT_PLACED, at=0.95),),
        story="Replicas of a model are wanted, and their platform does not run them: no host has "
        "room, no node can be made, or their image cannot be fetched. The model serves with what "
        "it has, or not at all.",
        look="The platform's own words in the evidence; then `kubectl describe pod`, or the events "
        "of the service. No room: what is free on each host, in `holdfast top`; of replicas that "
        "Holdfast launches, who holds which GPU is in the evidence. An image: its name, and "
        "whether this host may fetch it.",
        fix="Make room, ask for less, or correct the image[; {pending} wait, {running} run].",
        remedy=Remedy.PAGE,
        scope=Scope.MODEL,
        consequences=frozenset({Sign.NO_REPLICA_READY, Sign.QUEUE_GROWS}),
        explains=frozenset({Cause.OVERLOADED, Cause.QUEUE_STALLED}),
        standing=True,
    ),
    Cause.SOURCE_BLIND: CauseRule(
        Class.ROUTING,
        (proof(Sign.SOURCE_BLIND, at=0.95),),
        story="A platform could not be read for a while: its API does not answer, or refuses. What "
        "it said before is kept and shown with its age; replicas that it would have found, or "
        "told to end, are not seen. Requests are served on.",
        look="The part and the reason in the evidence, and `holdfast top`: which rows are old. "
        "403: which right is missing in the role; 401: whether the token was renewed; no answer: "
        "the way from control to the API.",
        fix="Mend the access, or remove the source from the fleet file[. It has been blind for "
        "{failing_s:s}].",
        remedy=Remedy.PAGE,
        scope=Scope.FLEET,
        standing=True,
    ),
    Cause.CONTROL_FROZEN: CauseRule(
        Class.ROUTING,
        (proof(Sign.CONTROL_FROZEN, at=0.95),),
        story="The control process was frozen: the kernel had it stopped, or its event loop did "
        "not turn for half a minute. The supervisor killed it and started another, which adopted "
        "the replicas. Meanwhile no canary was asked and no view was sent; gateways served from "
        "their last one.",
        look="The log of `holdfast serve` from that moment on, and who sends signals on this "
        "host: a batch scheduler, a job control, a backup that suspends processes. A loop that "
        "did not turn: a disk or a network filesystem that hangs.",
        fix="Stop what suspends the process. To look at it, attach a debugger: a process under "
        "one is not replaced[. It stood still for {lasted_s:s}].",
        remedy=Remedy.PAGE,
        scope=Scope.FLEET,
        standing=True,
    ),
    Cause.GATEWAY_FROZEN: CauseRule(
        Class.ROUTING,
        (proof(Sign.GATEWAY_FROZEN, at=0.95),),
        story="A gateway process was frozen: the kernel had it stopped, or its event loop did not "
        "turn for half a minute. Its share of the clients waited. The supervisor killed it and "
        "started another: connections that waited at its socket went to the successor, those that "
        "it had accepted were reset. No replica is to blame.",
        look="The log of `holdfast serve` from that moment on, and who sends signals on this "
        "host: a batch scheduler, a job control, a backup that suspends processes. A loop that "
        "did not turn: `py-spy dump` while it lasts.",
        fix="Stop what suspends the process. To look at it, attach a debugger: a process under "
        "one is not replaced[. It stood still for {lasted_s:s}].",
        remedy=Remedy.PAGE,
        scope=Scope.FLEET,
        standing=True,
    ),
    Cause.GATEWAY_LATE: CauseRule(
        Class.ROUTING,
        (proof(Sign.GATEWAY_LATE, at=0.8),),
        story="The event loop of a gateway process has not turned for seconds while its "
        "supervisor was in time: its clients wait, and what it says of replicas is late. It is "
        "not stopped, so it is not replaced.",
        look="`holdfast status` names the process. `top` on its host: is it short of CPU, does it "
        "swap? A debugger holds a process, too. `py-spy dump` shows what it does.",
        fix="Give gateways a core each (fewer engine threads, a CPU reservation), and keep the "
        "host out of swap[. It has stood still for {lasted_s:s}].",
        remedy=Remedy.PAGE,
        scope=Scope.FLEET,
        standing=True,
    ),
    Cause.SUPERVISOR_FROZEN: CauseRule(
        Class.ROUTING,
        (proof(Sign.SUPERVISOR_FROZEN, at=0.95),),
        story="The process of `holdfast serve` or `up` that starts all others is stopped or stuck. "
        "Control and gateways go on, and clients are served; but whoever of them dies or freezes "
        "is not replaced, and a signal to the fleet has no effect.",
        look="The pid in the evidence: `ps -o pid,stat,wchan -p PID`; T is stopped. Who sends "
        "signals on this host: a job control (Ctrl-Z), a batch scheduler, a backup that suspends "
        "processes?",
        fix="Wake it with `kill -CONT PID`. If it does not turn again, start "
        "`holdfast serve --takeover` with the same file and then end the old one with "
        "`kill -KILL PID` (its children drain and end); where models are launched, end it first "
        "and start it anew: control adopts what runs[. It has stood still for {lasted_s:s}].",
        remedy=Remedy.PAGE,
        scope=Scope.FLEET,
        standing=True,
    ),
    Cause.OWN_SHORTAGE: CauseRule(
        Class.ROUTING,
        (proof(Sign.OWN_SHORTAGE, at=0.9),),
        story="A gateway or control itself has no descriptor, kernel memory or local port left for "
        "another connection. Clients are turned away with 503, or wait to be accepted, although "
        "replicas are idle. Nothing of it counts against a replica.",
        look="`holdfast_shortages_total` says which resource. `ls /proc/PID/fd | wc -l` and "
        "`grep files /proc/PID/limits` on that process; `ss -s` for local ports. Are there many "
        "connections from few addresses (`ss -tn`)?",
        fix="Raise the limit on open files to two for each of gateway.http.connections_max: "
        "`ulimit -n`, LimitNOFILE= in the unit, or --ulimit nofile= of the container[ (it is "
        "{descriptors:d})]; or serve by more gateway processes.",
        remedy=Remedy.PAGE,
        scope=Scope.FLEET,
        standing=True,
    ),
}

__all__ = ["ROUTING", "SURROUNDINGS"]
