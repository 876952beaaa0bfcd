"""Reads one replica's canary in the light of its peers' canaries before it may count.

No verdict on a replica rests on its own canary alone. After a failed canary its peers are asked. A
wrong answer counts only where a peer gave the right one. A silence is a replica's own only where
its peers answered meanwhile. A late answer is slow only where peers were quicker. Where every
canary fails at once, ``canary_doubt`` decides what to make of it; a closed port is a fact at one
replica or at every one, and needs no second opinion.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.core.canary import CanarySuspect, CanaryVerdict
from holdfast.core.health.canary_doubt import (
    RULINGS,
    LatestCanary,
    UsersMeet,
    count_canaries,
    users_meet,
)
from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.health.lifecycle import JUDGED, ROUTABLE, Signal
from holdfast.core.health.member import Member
from holdfast.core.messages import CanaryResult, FleetAction, Notice
from holdfast.core.types import SECOND, Decision, nanos, seconds

_APART: Final = 2 * SECOND  # between what two gateways tell of the same time
# Word of users comes with a summary, up to a second late, and one long prompt can hold a whole
# batch for another: in this beginning of a canary's wait, half of it at most, peers prove nothing.
_BEGINNING: Final = 2 * SECOND
_STILL_MAX: Final = 15 * SECOND  # of peers: a replica that hangs is found after twice as long
_LATE_FACTOR: Final = 2  # on the quickest canary of a peer: sooner, an answer is late, not missing
_EVERYBODY_SILENT: Final = Decision(
    allowed=False, reason="none of its peers was heard of either: the silence may be everybody's"
)
_NOBODY_ASKED: Final = Decision(
    allowed=True, reason="users wait in vain there, and no peer could be asked meanwhile"
)
_NO_PEERS: Final = Decision(allowed=True, reason="it has no peers to compare with")
_NO_WITNESS: Final = Decision(
    allowed=False, reason="no peer gave the expected answer lately: the answer may be at fault"
)
_SIGNALS: Final = {
    CanaryVerdict.PASS: Signal.CANARY_PASS,
    CanaryVerdict.SLOW: Signal.CANARY_SLOW,
    CanaryVerdict.WRONG: Signal.CANARY_WRONG,
    CanaryVerdict.FAIL: Signal.CANARY_FAIL,
    CanaryVerdict.REFUSED: Signal.REFUSED,
    CanaryVerdict.BUSY: Signal.BUSY,
    CanaryVerdict.UNKNOWN: Signal.UNKNOWN,
    CanaryVerdict.UNSETTLED: Signal.UNKNOWN,  # replicas disagree and nobody knows yet who is right
}


@dataclass(slots=True)
class StandingDoubt:
    """A doubt about all canaries of one model that lasts now: since when (ns), why, the suspect."""

    since: int
    reason: str = ""
    suspect: CanarySuspect = CanarySuspect.NOBODY


@dataclass(slots=True, frozen=True)
class UsersBeside:
    """Users' requests on a replica while its canary ran: how many, and whether tokens moved.

    ``None`` is unknown.
    """

    running: int | None = None
    progress: bool | None = None


class CanaryEvidence:
    """Compares the canaries of all replicas of a fleet; keeps which models' canaries are doubted.

    It reads the fleet's members and moves no state; ``doubts`` has the doubts that last, by model.
    """

    __slots__ = ("_members", "_period", "_trusted_at", "doubts")

    def __init__(self, config: FleetConfig, members: dict[str, Member]) -> None:
        self._members = members
        period_s = config.health.canary_s * (1 + config.health.canary_jitter)
        self._period = nanos(period_s + config.canary_deadline_s)
        self.doubts: dict[str, StandingDoubt] = {}  # why canaries are not believed, by model
        self._trusted_at: dict[str, int] = {}  # when they were believed again, by model

    def _peers(self, member: Member) -> list[Member]:
        """The others of its model. A stopped process has nothing to say of anybody."""
        model = member.replica.model
        others = [m for m in self._members.values() if m is not member]
        return [m for m in others if m.replica.model == model and not m.health.frozen]

    def in_good_time(self, member: Member, event: CanaryResult) -> tuple[Signal, str]:
        """Return (CANARY_PASS or CANARY_SLOW, reason) for a right answer; record its latency.

        Judged by the replica's usual latency and its peers', only where nothing else ran there;
        beside users' requests it always passes.
        """
        running = max(event.running or 0, member.inflight)
        if running:
            member.baseline.saw(event.latency)
            return Signal.CANARY_PASS, event.detail
        medians = [peer.baseline.median() for peer in self._peers(member)]
        known = sorted(median for median in medians if median is not None)
        usual = known[len(known) // 2] if known else None
        timely = member.baseline.judge(event.latency, running, usual)
        if not timely:
            return Signal.CANARY_SLOW, timely.reason
        member.baseline.take(event.latency, running)
        return Signal.CANARY_PASS, event.detail

    def ask_peers(self, member: Member, now: int) -> None:
        """Make the canaries of all peers (same model) of a replica due; sends none itself.

        Called when its own canary failed or was slow: theirs tell its trouble from trouble that all
        share.
        """
        for peer in self._peers(member):
            # Those that are slow together would call each other without end.
            if not (member.slow and (peer.slow or peer.canary_out)):
                peer.call_canary(now)

    def peers_stillness(self, member: Member, now: int) -> int:
        """For how long (ns) the liveliest of its busy peers showed nothing of late.

        0: none is busy. Also 0 where the replica is known to have a free slot. At most 15 s.
        """
        if member.knows_its_slots and member.has_free_slot:
            return 0
        still = (peer.stillness(now) for peer in self._peers(member) if peer.inflight)
        return min(min(still, default=0), _STILL_MAX)

    def _canaries(self, model: str) -> tuple[list[LatestCanary], int]:
        """The latest canary of each replica that could have passed one, and how many there are."""
        latest = []
        members = 0
        for member in self._members.values():
            health = member.health
            if member.replica.model == model and health.state in JUDGED and not health.frozen:
                members += 1
                if member.canary_at:
                    latest.append(
                        LatestCanary(
                            member.replica.id,
                            member.canary_at,
                            member.canary_passed,
                            member.canary_verdict,
                            member.canary_error,
                        )
                    )
        return latest, members

    def witness(self, member: Member, now: int) -> Decision:
        """Return a ``Decision``: whether a peer's canary passed lately, or it has no peers.

        Only then may this replica's wrong answers put it into quarantine.
        """
        latest, members = self._canaries(member.replica.model)
        return may_condemn(latest, member.replica.id, now, self._period, members=members)

    def silence(self, member: Member, now: int) -> Decision:
        """Whether a replica's silence is its own fault: some peer answered meanwhile.

        Also where none is there that should have: the others load, leave or are out. Gateways
        report once a second, so reports of the last second prove nothing: where all replicas stood
        still and go on, the first one to be reported would condemn the others. Nor is it silence
        where it has waited less than twice as long as its quickest peer just did.
        """
        peers = self._peers(member)
        if not any(peer.health.state in ROUTABLE for peer in peers):
            return _NO_PEERS
        # A silence begins when the canary is sent, or with the last token that users got there, if
        # that is later. It counts as two seconds old at the least: what peers answered since then
        # may not have been reported yet.
        began = max(member.silent_from, min(member.progress_at, now - 2 * SECOND))
        told = any(peer.inflight or peer.canary_asked_at >= began for peer in peers)
        if member.awaited_in_vain and not told:
            return _NOBODY_ASKED  # who was not asked is not silent
        heard_at = [peer.heard_by(now - SECOND) for peer in peers]
        heard = may_blame_silence(heard_at, began, now)
        took = [p.canary_took for p in peers if p.canary_took and p.canary_at > member.silent_from]
        if heard and took and now - member.silent_from < _LATE_FACTOR * min(took):
            return Decision(allowed=False, reason=f"its peers take {seconds(min(took)):.1f} s, too")
        return heard

    def doubt(self, model: str, now: int, actions: list[FleetAction]) -> bool:
        """Whether to hold the states of a model's replicas because all its canaries fail.

        Begins or ends the model's standing doubt, and appends a ``Notice`` when the suspect
        changes.
        """
        latest, members = self._canaries(model)
        count = count_canaries(latest, now, self._period, members=members)
        standing = self.doubts.get(model)
        ruling = RULINGS[count.mix, self._users(model, standing.since if standing else now)]
        before = standing.suspect if standing else CanarySuspect.NOBODY
        reason = count.reason(ruling)
        if ruling.hold:
            standing = self.doubts.setdefault(model, StandingDoubt(now))
            standing.reason, standing.suspect = reason, ruling.suspect
        elif standing is not None:
            del self.doubts[model]
            self._trusted_at[model] = now
        if ruling.suspect is not before:
            suspect = ruling.suspect
            actions.append(Notice(now, model, "", suspect.value, reason, canaries=suspect))
        return ruling.hold

    def _users(self, model: str, since: int) -> UsersMeet:
        """What users of a model meet, around a doubt that began then."""
        return users_meet(
            failing=self._users_fail(model, since - self._period),
            served=self._served_at(model) > since,
        )

    def _users_fail(self, model: str, since: int) -> bool:
        """Whether users failed there since, and nobody was served after them.

        No checker does that. It holds for as long as the doubt does: where breakers are open, few
        requests of users come through to fail again.
        """
        ours = [one.failed_at for one in self._members.values() if one.replica.model == model]
        failed_at = max(ours, default=0)
        return failed_at >= since and failed_at - self._served_at(model) >= _APART

    def _served_at(self, model: str) -> int:
        """When a user of it was last answered, wherever."""
        ours = [one.served_at for one in self._members.values() if one.replica.model == model]
        return max(ours, default=0)

    def was_doubted(self, model: str, since: int) -> bool:
        """Whether a doubt about the model's canaries ended later than ``since``."""
        return self._trusted_at.get(model, 0) > since


def read_canary(event: CanaryResult, *, stands: bool) -> tuple[Signal, str]:
    """Return (signal, reason) for a canary's result; for a timeout, users' tokens decide.

    BUSY while they move, or those of prompts are read, STALLED where requests run and none comes,
    UNKNOWN where that is not known yet (unless ``stands``: requests there got no token for long),
    CANARY_FAIL on an idle replica.
    """
    if event.draining:
        return Signal.DRAINS_ITSELF, event.detail
    if event.verdict is not CanaryVerdict.TIMEOUT:
        return _SIGNALS[event.verdict], event.detail
    if event.progress:
        return Signal.BUSY, "timed out while users' tokens move or their prompts are read"
    if event.running and event.progress is None and not stands:
        return Signal.UNKNOWN, "timed out, and whether users' tokens move is not known yet"
    if event.running:
        return Signal.STALLED, f"{event.running} requests running and no token emitted"
    return Signal.CANARY_FAIL, "no answer in time from an idle replica"


def may_condemn(
    latest: Sequence[LatestCanary], candidate_id: str, now: int, period: int, *, members: int
) -> Decision:
    """Return a ``Decision``: whether a replica may be quarantined for wrong answers.

    Only if another replica's canary passed within ``period`` (ns), as else the expected answer
    itself may be wrong; or if it has no peers.
    """
    if members <= 1:
        return _NO_PEERS
    for canary in latest:
        recent = 0 <= now - canary.at <= period
        if canary.passed and recent and canary.replica_id != candidate_id:
            return Decision(allowed=True, reason=f"{canary.replica_id} gave the expected answer")
    return _NO_WITNESS


def may_blame_silence(peers_heard_at: Sequence[int], began: int, now: int) -> Decision:
    """Return a ``Decision``: whether a replica's silence since ``began`` (ns) is its own.

    Only if a peer was heard of meanwhile, after the first two seconds (half of a shorter wait); or
    if it has no peers. Else a cause that all share may silence them.
    """
    if not peers_heard_at:
        return _NO_PEERS
    since = began + min(_BEGINNING, (now - began) // 2)
    heard = sum(1 for at in peers_heard_at if at >= since)
    if heard:
        return Decision(allowed=True, reason=f"{heard} of its peers were heard of meanwhile")
    return _EVERYBODY_SILENT


def users_beside(member: Member, since: int, now: int, peers_still: int = 0) -> UsersBeside:
    """Return the ``UsersBeside`` of one replica: what gateways told of its users since ``since``.

    Tokens of prompts that its page shows it to read are tokens that move. Whether they moved is
    ``None`` where they show nothing for less than twice as long as its peers' did of late
    (``peers_still``, ns), or than the long prompts that are waited for there explain.
    """
    # A summary covers the second before it: what it tells of earlier is not meant. So does a page.
    told = since + SECOND
    reads = member.prompts.shown_at >= told
    if not member.inflight_at:
        return UsersBeside(progress=reads or None)
    if reads or member.progress_at >= told:
        return UsersBeside(member.inflight, progress=True)
    waiting = [member.told_at[gateway] for gateway, n in member.inflight_at.items() if n]
    # One that let a summary and a half go by will not say that tokens moved.
    known = min(waiting, default=told) >= told or 2 * (now - told) >= 3 * SECOND
    known = known and (not waiting or now - member.moved_at >= 2 * peers_still)
    known = known and not member.may_read_prompts(now)
    return UsersBeside(member.inflight, progress=False if known else None)


__all__ = [
    "CanaryEvidence",
    "StandingDoubt",
    "UsersBeside",
    "may_blame_silence",
    "may_condemn",
    "read_canary",
    "users_beside",
]
