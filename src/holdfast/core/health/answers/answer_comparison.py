"""Chooses live answers to compare with a second replica's, and judges whether the two agree.

A replica may give fluent wrong answers to one request in ten: its canaries pass nine times of ten,
and no status code shows it. Its peers would have answered otherwise, so a few greedy requests are
asked again of another replica, after the client has its answer.

    answer ended ─► sample: share, spare room ─► peer: same revision, room ─► agreement ─► result

Each replica's turn comes after about as many answers as its share says, and its peer is the one
that was compared longest ago. So none is left out for long: one that begins to lie is compared
after half of that time on average, and after little more than all of it at the latest.

A disagreement says that one of two is wrong, not which. So both are sampled more closely for a
while, and the detector looks for the one that disagrees with several.

Greedy output is not bit-stable: the batch that a request happens to be in changes the last bits of
a sum, and where two words are nearly equal one or the other is said. From there on two sound
answers share no more than two answers do. So answers that part after a long common beginning agree,
and only those that part early are compared word by word.

Rejected: a third opinion at once. Three answers for one request would be a load to reckon with, and
the next disagreement gives the same for less. Rejected: comparing before the client has its answer.
Clients must not wait for a check that finds nothing in all but a few cases. Rejected: a coin tossed
for each answer. It costs the same, and a liar waits twice as long for it, at times five times.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Final

from holdfast.core.canary import CanaryConfig, Rule, Said
from holdfast.core.health.answers.agreement import agree, words_of
from holdfast.core.request.breaker import BreakerState
from holdfast.core.request.candidate import Candidate
from holdfast.core.types import SECOND, Decision, require

RAISED: Final = 5.0  # times the share, of a replica that disagreed,
RAISED_FOR: Final = 30 * SECOND  # for so long: enough for a few more at a request per second
_SUSPECTS_MAX: Final = 1_024  # replicas of one model; the oldest go first
_JITTER: Final = 0.5  # of a turn, either way: no client asks in step with it
_TIE_WORDS: Final = 16  # a wrong model parts from a sound one within the first few words
_WORDS_MAX: Final = 64  # compared, of answers that part before
_CLOSED: Final = BreakerState.CLOSED
_RULE: Final = CanaryConfig()  # how far two texts may lie apart, as for canaries


@dataclass(slots=True, frozen=True)
class ComparingConfig:
    """Settings of answer comparison for one model: share of answers, spare capacity, concurrency.

    Checked when built: raises ``ConfigError``.
    """

    share: float = 0.05  # of greedy requests; a fault in one of ten shows within a minute or so
    in_flight_max: int = 4  # second questions at once, from one gateway
    saturation_max: float = 0.7  # of the model's capacity in use; above it, users need the rest
    text_max: int = 16_384  # bytes of an answer; longer ones are not kept for it

    def __post_init__(self) -> None:
        share, most = self.share, self.in_flight_max
        fix = "use a share in (0, 1], or remove the section"
        require(0 < share <= 1, "comparison.share", f"is {share}", fix)
        require(1 <= most <= 64, "comparison.in_flight_max", f"is {most}", "use 1 to 64")
        full, size = self.saturation_max, self.text_max
        require(0 < full <= 1, "comparison.saturation_max", f"is {full}", "use a share in (0, 1]")
        fits = 64 <= size <= 1 << 20
        require(fits, "comparison.text_max", f"is {size}", "use 64 bytes to one megabyte")


class AnswerComparison:
    """Decides which answers of one model at one gateway are repeated at a peer, and at which.

    It sends nothing; callers repeat the request and report the result to ``end``.
    """

    __slots__ = ("_in_flight", "_left", "_partner", "_raised", "_rng", "_turn", "_turns", "config")

    def __init__(self, config: ComparingConfig, rng: Random) -> None:
        self.config = config
        self._rng = rng
        self._in_flight = 0
        self._raised: dict[str, int] = {}  # until when, by replica; the latest last
        self._left: dict[str, float] = {}  # of a turn, until an answer of a replica is compared
        self._turn = 0
        self._turns: dict[str, int] = {}  # in which a replica was last compared; the latest last
        self._partner: dict[str, str] = {}  # with whom

    @property
    def in_flight(self) -> int:
        """How many requests repeated at peers have not ended yet."""
        return self._in_flight

    def share_of(self, replica: str, now: int) -> float:
        """The share (0 to 1) of a replica's answers to compare: higher after a disagreement."""
        share = self.config.share
        if self._raised and self._raised.get(replica, 0) > now:
            share = min(1.0, RAISED * share)
        return share

    def wants(self, replica: str, saturation: float | None, waiting: int, now: int) -> bool:
        """Whether the answer that this replica just gave is to be compared; counts it as its turn.

        Put off while requests wait, too many comparisons run, or ``saturation`` is too high
        (``None``: unknown, ignored).
        """
        left = self._left.get(replica)
        if left is None:
            left = self._rng.random()
            if len(self._left) >= _SUSPECTS_MAX:
                del self._left[next(iter(self._left))]
        share = self.share_of(replica, now)
        left -= share
        full = saturation is not None and saturation >= self.config.saturation_max
        if left > 0 or waiting or full or self._in_flight >= self.config.in_flight_max:
            self._left[replica] = max(0.0, left)
            return False
        jitter = _JITTER * (1 - share) * (2.0 * self._rng.random() - 1.0)
        self._left[replica] = left + 1.0 + jitter
        return True

    def peer(
        self, candidates: Iterable[Candidate], replica: str, regions: tuple[str, ...] = ()
    ) -> str | None:
        """Return the id of a peer of the same revision with room and no queue; ``None``: no such.

        It is the one that was compared longest ago, and not the partner of last time if there is
        another. Notes the pair as compared.
        """
        pool = list(candidates)
        own = next((one for one in pool if one.id == replica), None)
        if own is None:
            return None
        fit = [
            one.id
            for one in pool
            if one is not own
            and one.revision == own.revision
            and one.weight > 0
            and one.breaker.state is _CLOSED
            and one.has_room()
            and not one.waiting
            and (not regions or one.replica.region in regions)
        ]
        if not fit:
            return None
        last, turns = self._partner.get(replica), self._turns
        peer = min(fit, key=lambda name: (name == last, turns.get(name, 0), self._rng.random()))
        self._turn += 1
        for name, partner in ((replica, peer), (peer, replica)):
            turns.pop(name, None)
            turns[name], self._partner[name] = self._turn, partner
        while len(turns) > _SUSPECTS_MAX:
            name = next(iter(turns))
            del turns[name], self._partner[name]
        return peer

    def begin(self) -> None:
        """Count a repeated request as in flight; ``end`` must follow."""
        self._in_flight += 1

    def end(self, replica: str, peer: str, agreed: bool | None, now: int) -> None:
        """Record how a comparison ended: compare both replicas more often if they disagreed.

        ``agreed`` is ``None`` where the peer gave no answer, which says nothing about either
        replica.
        """
        self._in_flight -= 1
        if agreed is not False:
            return
        for name in (replica, peer):
            self._raised.pop(name, None)
            self._raised[name] = now + RAISED_FOR
            if len(self._raised) > _SUSPECTS_MAX:
                del self._raised[next(iter(self._raised))]


def same_answer(left: str, right: str) -> Decision:
    """Return a ``Decision``: whether two greedy answers to one request count as the same.

    They do if most words agree, or if they part only after 16 words; its reason quotes neither.
    """
    whole = agree(Rule.SIMILAR, _RULE, Said(text=left), Said(text=right))
    if whole:
        return whole
    words, others = words_of(left), words_of(right)
    shared = min(len(words), len(others))
    if words[:shared] == others[:shared]:
        return whole  # one breaks off: its beginning proves nothing
    if shared > _TIE_WORDS and words[:_TIE_WORDS] == others[:_TIE_WORDS]:
        return Decision(True, f"they part after {_TIE_WORDS} words or more")
    begins = (" ".join(each[:_WORDS_MAX]) for each in (words, others))
    return agree(Rule.SIMILAR, _RULE, *(Said(text=text) for text in begins))


__all__ = [
    "RAISED",
    "RAISED_FOR",
    "AnswerComparison",
    "ComparingConfig",
    "same_answer",
]
