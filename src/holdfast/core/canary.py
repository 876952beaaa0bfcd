"""The values that canaries exchange: what is asked, what was answered, and the verdict.

A canary is a real question on the real path, read to its last token. Its answer is compared with
what this revision is known to answer (``answers.py``) and its latency with its own past
(``baseline.py``). Only values live here.

Rejected: a health page, or the first chunk of an answer. A hung engine serves its health page, and
one with broken weights its first chunk.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from math import inf
from typing import Final

from holdfast.core.types import SECOND, require


class CanaryVerdict(StrEnum):
    """How one canary ended.

    The place of a verdict is its number in history files: a new one goes to the end. Each verdict
    is of exactly one of three kinds: an answer came and was judged (``answered``), the replica
    failed to give one (``failed``), or nothing can be concluded (not ``conclusive``).
    """

    PASS = "pass"  # noqa: S105 the right answer
    SLOW = "slow"  # the right answer, late; only the fleet, which knows the usual time, says so
    BUSY = "busy"  # the replica pushed back, or still loads
    UNSETTLED = "unsettled"  # replicas disagree, and nobody knows yet which of them is right
    UNKNOWN = "unknown"  # the canary itself cannot be trusted: whoever asked was late
    WRONG = "wrong"  # another answer than expected
    FAIL = "fail"  # an error instead of an answer, or a connection that broke
    REFUSED = "refused"  # nobody listens
    TIMEOUT = "timeout"  # no complete answer within the deadline

    @property
    def right(self) -> bool:
        """Whether the expected answer came, in good time or late."""
        return self in _RIGHT

    @property
    def answered(self) -> bool:
        """Whether an answer came and was judged: right, right but late, or wrong."""
        return self in _ANSWERED

    @property
    def failed(self) -> bool:
        """Whether it counts against the replica as no answer: an error, refused, or timed out."""
        return self in _FAILED

    @property
    def conclusive(self) -> bool:
        """Whether the verdict says anything about the replica, good or bad."""
        return self in _ANSWERED or self in _FAILED

    @property
    def silent(self) -> bool:
        """Whether no word of the replica came: refused, timed out, or the canary is not trusted."""
        return self in _SILENT

    @property
    def computed(self) -> bool:
        """Whether the engine may have spent tokens on it; false if refused or not trusted."""
        return self not in _NOT_COMPUTED

    @property
    def failed_early(self) -> bool:
        """Whether it failed before its deadline: the process may have exited a moment ago."""
        return self in _FAILED and self is not CanaryVerdict.TIMEOUT

    def with_lateness(self, *, slow: bool) -> "CanaryVerdict":
        """Return ``SLOW`` for a ``PASS`` if ``slow``; every other verdict as it is."""
        return CanaryVerdict.SLOW if slow and self is CanaryVerdict.PASS else self


# A canary may hear of a death before the launcher does; taken for an illness of unknown cause, it
# would have the peers asked at once, while they go on with the answers of the dead. So of a replica
# that was launched here, what failed early is told after this time, unless its process has exited.
EXIT_NEWS: Final = SECOND // 2

_RIGHT: Final = frozenset({CanaryVerdict.PASS, CanaryVerdict.SLOW})
_ANSWERED: Final = _RIGHT | {CanaryVerdict.WRONG}
_FAILED: Final = frozenset({CanaryVerdict.FAIL, CanaryVerdict.REFUSED, CanaryVerdict.TIMEOUT})
_NOT_COMPUTED: Final = frozenset({CanaryVerdict.REFUSED, CanaryVerdict.UNKNOWN})
_SILENT: Final = _NOT_COMPUTED | {CanaryVerdict.TIMEOUT}


class CanarySuspect(StrEnum):
    """What is suspected when every canary of a model fails at once.

    The values are the names under which such a change is stored among the fleet's events.
    """

    CHECKER = "canaries doubted"  # the expected answer, or whoever asks; the replicas are well
    SHARED = "canaries unanswered"  # something that all replicas share stands still
    REPLICAS = "canaries confirmed"  # the replicas themselves: the canaries are right
    NOBODY = "canaries trusted again"  # not all of them fail any more


class Shape(StrEnum):
    """The kinds of question that a canary can ask: chat, completion, embedding, inference, HTTP."""

    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDING = "embedding"
    INFER = "infer"  # a KServe inference request: tensors in, tensors out
    HTTP = "http"  # any other endpoint, judged by a check of the user's


class Rule(StrEnum):
    """The ways in which two canary answers can be compared."""

    EXACT = "exact"
    SIMILAR = "similar"  # most of the words, in their order
    CONTAINS = "contains"  # one of the expected texts occurs in it
    COSINE = "cosine"
    TENSOR = "tensor"  # each number, within the tolerance
    CHECK = "check"  # the user's own function decides


class CanaryCost(StrEnum):
    """What a canary costs, and so how often one is sent."""

    SLOT = "slot"  # what it displaces: nothing while the replica has a free slot
    BILLED = "billed"  # money for each: canaries keep to their share of users' tokens at all times


# Of these one answer is the work of seconds, whatever is asked.
_COSTLY_PATHS: Final = ("/v1/images/", "/v1/audio/", "/v1/videos")
_TEXTUAL: Final = (Rule.EXACT, Rule.SIMILAR, Rule.CONTAINS)
RULES: Final[dict[Shape, tuple[Rule, ...]]] = {  # what an answer of each shape can be judged by
    Shape.CHAT: _TEXTUAL,
    Shape.COMPLETION: _TEXTUAL,
    Shape.EMBEDDING: (Rule.COSINE,),
    Shape.INFER: (Rule.TENSOR,),
    Shape.HTTP: (Rule.CHECK, *_TEXTUAL),
}
_NUMERIC: Final = (Shape.EMBEDDING, Shape.INFER)


@dataclass(slots=True, frozen=True)
class CanaryConfig:
    """Settings of one model's canaries: what they ask, how answers are compared, their cost.

    Answers must match ``expect``, or are learned where it is empty; one is slow from a multiple of
    the replica's own median latency on. Checked when built: raises ``ConfigError``.
    """

    shape: Shape | None = None  # default: what the engine is for, mostly a chat
    prompt: str = "Count from one to five in words."  # short, and hardly open to interpretation
    tokens: int = 8  # of the answer: enough to be wrong in, few enough to ask every few seconds
    expect: tuple[str, ...] = ()  # accepted answers; empty = learned by agreement of replicas
    rule: Rule | None = None  # default: exact where greedy output is bit-stable, else similar
    similarity: float = 0.8  # share of words two answers have in common, for similar
    cosine_min: float = 0.99  # rounding moves an embedding by far less, another model by far more
    tolerance: float = 1e-3  # relative, for tensors: half precision keeps three digits
    path: str | None = None  # for http: where to POST
    body: str = ""  # for http and infer: the JSON to POST
    check: str | None = None  # for http: package.module:function(status, body) -> bool or why not
    slow_factor: float = 2.0  # times its own median: a threefold slowdown clears it, noise and all
    slow_floor_s: float = 0.25  # beyond the median, at least: below it nobody notices
    samples_min: int = 5  # of its own before its latency is judged
    cost: CanaryCost | None = None  # default: a slot; billed for images, audio and video
    share_max: float = 0.01  # of what users get, that canaries may be: if saturated, or billed
    slots_share: float = 0.02  # of free slots' time, for canaries beside those due; 0 = for none
    stretch_max_s: float = 300.0  # where the share pays for none, one is sent this often
    headroom_min: float = 0.05  # share of the KV cache that must be free; less: no room for users

    def __post_init__(self) -> None:
        require(bool(self.prompt.strip()), "canary.prompt", "is empty", "ask something")
        fits = 1 <= self.tokens <= 4096
        require(fits, "canary.tokens", f"is {self.tokens}", "use 1 to 4096")
        blank = any(not text.strip() for text in self.expect)
        require(not blank, "canary.expect", "holds an empty answer", "remove it")
        for name in ("similarity", "share_max"):
            value = getattr(self, name)
            require(0 < value <= 1, f"canary.{name}", f"is {value}", "use a share in (0, 1]")
        share, fix = self.slots_share, "use a share in [0, 1], 0 for none but those that are due"
        require(0 <= share <= 1, "canary.slots_share", f"is {share}", fix)
        cosine, room = self.cosine_min, self.headroom_min
        require(-1 <= cosine <= 1, "canary.cosine_min", f"is {cosine}", "use -1 to 1")
        require(0 <= room < 1, "canary.headroom_min", f"is {room}", "use a share in [0, 1)")
        loose = self.tolerance
        require(0 <= loose < 1, "canary.tolerance", f"is {loose}", "use a share in [0, 1)")
        factor, floor = self.slow_factor, self.slow_floor_s
        require(1 < factor < inf, "canary.slow_factor", f"is {factor}", "use a factor above 1")
        require(0 <= floor < inf, "canary.slow_floor_s", f"is {floor}", "use 0 or more seconds")
        least, most = self.samples_min, self.stretch_max_s
        require(2 <= least <= 64, "canary.samples_min", f"is {least}", "use 2 to 64")
        require(
            0 < most <= 86_400, "canary.stretch_max_s", f"is {most}", "use up to a day, above 0"
        )
        self._check_request()
        self._check_judge()

    @property
    def billed(self) -> bool:
        """Whether canaries keep to their share of users' tokens even where a slot is free.

        As ``cost`` says; where it is not set, true for the paths of images, audio and video.
        """
        if self.cost is None:
            return self.path is not None and self.path.startswith(_COSTLY_PATHS)
        return self.cost is CanaryCost.BILLED

    def _check_request(self) -> None:
        http = self.shape is Shape.HTTP
        bodied = http or self.shape is Shape.INFER
        alone = "is set for a canary that has none"
        require(bodied or not self.body, "canary.body", alone, "remove it, or name the shape")
        sent = not bodied or _is_json(self.body)
        require(sent, "canary.body", "is missing or no JSON", "give the JSON to send")
        path_fits = (self.path is not None and self.path.startswith("/")) == http
        fix = "give an absolute path with shape: http, and none without"
        require(path_fits, "canary.path", f"is {self.path}", fix)

    def _check_judge(self) -> None:
        """Something must be able to say wrong, and only one thing."""
        http, rule, check = self.shape is Shape.HTTP, self.rule, self.check
        require(http or check is None, "canary.check", "is set", "use it with shape: http")
        module, _, function = (check or "a:b").partition(":")
        named = all(part.isidentifier() for part in [*module.split("."), function])
        require(named, "canary.check", f"is {check}", "write package.module:function")
        judged = not http or (check is not None) != bool(self.expect)
        fix = "give a check or the texts to expect, not both"
        require(judged, "canary.check", "is missing, or set beside canary.expect", fix)
        if self.shape is not None and rule is not None:
            fits, problem = rule in RULES[self.shape], f"is {rule}, for a canary of {self.shape}"
            require(fits, "canary.rule", problem, f"use {' or '.join(RULES[self.shape])}")
        called = rule is None or (rule is Rule.CHECK) == (check is not None)
        require(called, "canary.rule", f"is {rule}", "use check with canary.check, and only then")
        numeric = self.shape in _NUMERIC or rule in (Rule.COSINE, Rule.TENSOR)
        fix = "remove it: numbers are learned by agreement of replicas"
        require(not (numeric and self.expect), "canary.expect", "is set for numbers", fix)
        sought = rule is not Rule.CONTAINS or bool(self.expect)
        require(sought, "canary.expect", "is missing", "name the texts that the answer may contain")

    @property
    def question(self) -> str:
        """Return a hex digest of what is asked: shape, prompt, tokens, path and body.

        Answers and latencies compare only within an equal one.
        """
        asked = (self.shape, self.prompt, self.tokens, self.path, self.body)
        return blake2b(json.dumps(asked).encode(), digest_size=16).hexdigest()


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


@dataclass(slots=True, frozen=True)
class TokenChoice:
    """One token of an answer with its log probability, and the likeliest tokens in its place.

    Never logged, as it quotes the model.
    """

    text: str
    logprob: float
    likeliest: tuple[tuple[str, float], ...] = ()  # texts and log probabilities; itself, mostly


@dataclass(slots=True, frozen=True)
class NearTie:
    """A place in a known answer where other tokens were nearly as likely as the one that came."""

    at: int  # letters of the answer before it, blanks in front not counted
    others: tuple[str, ...]  # their texts; an empty one ends the answer


@dataclass(slots=True, frozen=True)
class Said:
    """One complete answer to a canary, as text, vector or tensors, with the tokens it cost.

    It is not judged yet, save by the user's own check. Never logged, as it quotes the model.
    """

    text: str | None = None
    vector: tuple[float, ...] = ()
    tensors: tuple[tuple[str, tuple[float, ...]], ...] = ()
    check: bool | None = None  # what the user's own check found
    note: str = ""  # its reason
    prompt_tokens: int = 0  # by the engine's usage; 0 = it did not say
    tokens: int = 0
    near_ties: tuple[NearTie, ...] | None = None  # of a known text; None: not known


@dataclass(slots=True, frozen=True)
class AnswerKey:
    """The key of learned canary answers: replicas with an equal one must answer alike.

    Model, revision, engine and precision; not the question.
    """

    model: str
    revision: str
    engine: str
    precision: str = ""


__all__ = [
    "EXIT_NEWS",
    "RULES",
    "AnswerKey",
    "CanaryConfig",
    "CanaryCost",
    "CanarySuspect",
    "CanaryVerdict",
    "NearTie",
    "Rule",
    "Said",
    "Shape",
    "TokenChoice",
]
