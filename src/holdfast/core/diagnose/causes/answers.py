"""Rules of causes that show in answers: broken off, cut short, wrong, empty, refused, drifting.

These replicas are up and answer. The fault is in what they say, and shows only in a whole answer or
in comparison with what it should be.
"""

from typing import Final

from holdfast.core.diagnose.causes.loading import FLOW, WAITING
from holdfast.core.diagnose.causes.rule import CauseRule, During, Scope, proof
from holdfast.core.diagnose.evidence import Remedy, Sign
from holdfast.core.failure import Cause, Class

_SAID_WRONG: Final = frozenset(
    {
        *(Sign.CANARY_WRONG, Sign.CANARY_ERRORS, Sign.PEERS_DISAGREE, Sign.OUTPUT_DRIFTED),
        *(Sign.OUTPUT_SUSPECTED, Sign.FINISHES_CHANGED, Sign.EMPTY_ANSWERS, Sign.STREAMS_CUT),
        Sign.MALFORMED,
    }
)
_ANSWERS: Final = frozenset({Cause.WRONG_OUTPUT, Cause.OUTPUT_DRIFT})
_TAKE_OUT_FIX: Final = "It is taken out of rotation; restart it and watch whether it comes back"

ANSWERS: Final[dict[Cause, CauseRule]] = {
    Cause.CONNECTION_LOST: CauseRule(
        Class.RUNTIME,
        (proof(Sign.CONNECTIONS_LOST, at=0.7, during=During.SERVING),),
        story="Connections to the replica are reset under its answers. Either its server drops "
        "them, or something between does: a proxy, a firewall, a host that is short of sockets.",
        look="Stream an answer from the gateway's host and from the replica's own host: if only "
        "the first breaks off, look at what is between. See the engine's log for exceptions.",
        fix=f"{_TAKE_OUT_FIX}. If it is the network, mend the path and let it back.",
        remedy=Remedy.TAKE_OUT,
        consequences=WAITING | {Sign.CANARY_ERRORS, Sign.STREAMS_CUT, Sign.ERRORS},
        explains=FLOW,
    ),
    Cause.TRUNCATED: CauseRule(
        Class.RUNTIME,
        (
            proof(Sign.STREAMS_CUT, at=0.75),
            # Cut off at a length, where others and its own past come to an end by themselves.
            proof(Sign.FINISHES_CHANGED, at=0.75, least={"length": 1.0}),
        ),
        story="Streams end in good order and without a reason to finish: the answer is cut short "
        "and looks complete. Clients that do not check the finish reason never notice.",
        look="Stream an answer by hand and look at its last chunks: a finish reason and [DONE] "
        "have to be there. Look for a proxy with a short timeout in front of the engine.",
        fix=f"{_TAKE_OUT_FIX}. Check timeouts and buffers of whatever stands between.",
        remedy=Remedy.TAKE_OUT,
        consequences=WAITING | _SAID_WRONG | {Sign.CONNECTIONS_LOST},
        explains=FLOW | _ANSWERS,
        symptom=True,
    ),
    Cause.WRONG_OUTPUT: CauseRule(
        Class.RUNTIME,
        (
            # Once may be a change of the canary itself: the fleet doubts it, and asks again soon.
            proof(Sign.CANARY_WRONG, at=0.75, acts=False),
            proof(Sign.CANARY_WRONG, at=0.76, least={"wrong": 2.0}),
            proof(Sign.PEERS_DISAGREE, at=0.7, acts=False),
            proof(Sign.CANARY_WRONG, Sign.PEERS_DISAGREE, at=0.95),
        ),
        story="The replica gives fluent answers that differ from what this model is known to "
        "answer, or from what its peers answer to the same requests. Damaged weights, a wrong "
        "file, a broken kernel or bad memory do this; every status is 200.",
        look="Ask it and a peer the same question at temperature 0 and compare. Compare checksums "
        "of the weights, versions of engine and driver, and the GPU's ECC counters.",
        fix="Keep it out of rotation, keep the process as evidence, and compare its weights and "
        "versions with a peer's. Move it to another GPU if both are equal.",
        remedy=Remedy.TAKE_OUT,
        consequences=_SAID_WRONG,
        explains=frozenset({Cause.OUTPUT_DRIFT}),
    ),
    Cause.DEGENERATE_OUTPUT: CauseRule(
        Class.RUNTIME,
        (
            proof(Sign.DEGENERATE, at=0.85),
            proof(Sign.LOG_NOT_FINITE, at=0.7),
        ),
        story="The replica repeats one token, or tokens without sense, for ever. Its numbers have "
        "collapsed inside, most often not-a-number values in its cache or in a kernel; a restart "
        "clears it, and every status is 200.",
        look="Ask it anything: '!!!!' or one word over and over. Ask for logprobs: equal or not "
        "finite values confirm it.",
        fix="Restart it. If it comes back, note the load and the lengths under which it began and "
        "try without the newest kernels or quantised caches.",
        remedy=Remedy.DRAIN_AND_RESTART,
        consequences=WAITING | _SAID_WRONG,
        explains=_ANSWERS | {Cause.EMPTY_OUTPUT, Cause.MALFORMED_OUTPUT},
    ),
    Cause.EMPTY_OUTPUT: CauseRule(
        Class.RUNTIME,
        (proof(Sign.EMPTY_ANSWERS, at=0.8),),
        story="Answers finish without a single token of content, with status 200. A wrong chat "
        "template, a stop word that always matches, or a broken engine does this.",
        look="Ask it something that cannot be answered by silence. Compare its chat template, its "
        "stop words and its end-of-text token with a peer's.",
        fix=f"{_TAKE_OUT_FIX}. If all replicas do it, look at the template and the revision.",
        remedy=Remedy.TAKE_OUT,
        consequences=WAITING | _SAID_WRONG,
        explains=FLOW | _ANSWERS,
        symptom=True,
    ),
    Cause.MALFORMED_OUTPUT: CauseRule(
        Class.RUNTIME,
        (proof(Sign.MALFORMED, at=0.8),),
        story="What comes from the replica is not the protocol: chunks that are no JSON, frames "
        "that are no frames. Its server is broken, or something on the way rewrites its answers.",
        look="Fetch one raw answer with curl, once from its own host and once from the gateway's, "
        "and look at the bytes.",
        fix=f"{_TAKE_OUT_FIX}. If the bytes are right on its own host, mend the path.",
        remedy=Remedy.TAKE_OUT,
        consequences=WAITING | _SAID_WRONG | {Sign.ERRORS, Sign.CONNECTIONS_LOST},
        explains=FLOW | _ANSWERS,
    ),
    Cause.SERVER_ERRORS: CauseRule(
        Class.RUNTIME,
        (
            proof(Sign.ERRORS, at=0.75),
            proof(Sign.CANARY_ERRORS, at=0.5),
            # Callers that come through no gateway may cause it, and one of them alone: no act.
            proof(Sign.INFERENCES_FAIL, at=0.6, acts=False),
            proof(Sign.ERRORS, Sign.INFERENCES_FAIL, at=0.85),
        ),
        story="The replica answers with errors of its own (5xx) after trying. Its server works and "
        "what is behind it does not.",
        look="Send one request by hand and read the body of the error; find the same moment in "
        "the engine's log.",
        fix=f"{_TAKE_OUT_FIX}. The engine's log names the exception.",
        remedy=Remedy.TAKE_OUT,
        consequences=WAITING | {Sign.CANARY_ERRORS, Sign.CONNECTIONS_LOST, Sign.STREAMS_CUT},
        explains=FLOW,
    ),
    Cause.FAST_FAILURES: CauseRule(
        Class.RUNTIME,
        (
            proof(Sign.FAST_ERRORS, at=0.8),
            proof(Sign.FAST_ERRORS, Sign.ATTRACTS, at=0.93),
        ),
        story="The replica fails faster than others answer. Whoever balances by load or latency "
        "takes it for the least busy one and sends it ever more: a black hole.",
        look="Compare its time to an error with its peers' time to an answer, and its share of "
        "attempts with a fair share.",
        fix=f"{_TAKE_OUT_FIX}. Behind another balancer, make failures count as slow there.",
        remedy=Remedy.TAKE_OUT,
        consequences=WAITING
        | {Sign.ERRORS, Sign.CANARY_ERRORS, Sign.ATTRACTS, Sign.CONNECTIONS_LOST}
        | {Sign.INFERENCES_FAIL},
        explains=FLOW | {Cause.SERVER_ERRORS, Cause.CONNECTION_LOST},
    ),
    Cause.OUTPUT_DRIFT: CauseRule(
        Class.RUNTIME,
        (
            proof(Sign.OUTPUT_DRIFTED, at=0.7),
            proof(Sign.FINISHES_CHANGED, at=0.55),
            proof(Sign.OUTPUT_DRIFTED, Sign.FINISHES_CHANGED, at=0.85),
        ),
        story="Answers have moved away from how this model answered when it was healthy: longer "
        "or shorter, less certain, other scores, other reasons to finish. No single answer is "
        "wrong; all of them together are different.",
        look="Compare the statistic with its baseline and see what changed at that time: a "
        "dependency, a driver, a template, or what users ask for.",
        fix="Find what changed when it began. If it is the traffic and it is meant, accept the "
        "new baseline; if not, go back to the revision or the environment before.",
        remedy=Remedy.PAGE,
        consequences=frozenset({Sign.PEERS_DISAGREE, Sign.FINISHES_CHANGED, Sign.OUTPUT_SUSPECTED}),
        standing=True,
    ),
    Cause.ENVIRONMENT_CHANGED: CauseRule(
        Class.RUNTIME,
        (proof(Sign.CANARY_DRIFTED, at=0.7),),
        story="The same question takes longer than it did, with nothing else running. The model "
        "is the same, so what is under it changed: clocks, driver, host, neighbours.",
        look="Compare GPU clocks, power limits and temperature with a peer's; look at what was "
        "updated or placed on the host at that time. Of a model instead of a replica: most other "
        "hosts slowed down with it, so look at what they share.",
        fix="Find what changed on its host[: the same question took {before_s:s} and takes "
        "{now_s:s} now].",
        remedy=Remedy.OBSERVE,
        consequences=frozenset({Sign.SLOW_TOKENS, Sign.QUEUE_GROWS}),
        standing=True,
    ),
    Cause.VERSION_SKEW: CauseRule(
        Class.RUNTIME,
        (
            proof(Sign.VERSIONS_DIFFER, at=0.85),
            proof(Sign.MUTABLE_IMAGE, at=0.2),
        ),
        story="Replicas of one deployment run on different versions of CUDA, driver, engine, "
        "weights or image. They all answer, a little differently, and nobody is told.",
        look="Compare `nvidia-smi`, the engine's version page and the image digest of the named "
        "replicas with the others.",
        fix="Make them equal: pin the image by digest and the hosts by driver version, and "
        "replace the replicas that differ[: {odd} of {replicas}].",
        remedy=Remedy.STOP_ROLLOUT,
        scope=Scope.MODEL,
        consequences=frozenset({Sign.PEERS_DISAGREE, Sign.OUTPUT_DRIFTED, Sign.FINISHES_CHANGED})
        | {Sign.CANARY_DRIFTED, Sign.MUTABLE_IMAGE, Sign.OUTPUT_SUSPECTED},
        explains=frozenset({Cause.OUTPUT_DRIFT, Cause.WRONG_OUTPUT, Cause.ENVIRONMENT_CHANGED}),
        standing=True,
    ),
}

__all__ = ["ANSWERS"]
