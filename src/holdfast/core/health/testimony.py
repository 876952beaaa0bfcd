"""What replicas of one model say about each other: no verdict rests on one voice alone.

One canary failed: whether its peers pass tells the replica's trouble from the test's. All fail at
once: what they share is more suspect than each of them. Where they answered, and users do not fail
there, that is the expected answer or the checker; where nothing came, it is not. Where nobody
listens there was no test at all: a closed port is a fact, at one replica or at every one. One is
silent: were the others heard of meanwhile? One is slow: are they too?
"""

from dataclasses import dataclass
from typing import Final

from holdfast.core.canary import CanaryVerdict
from holdfast.core.health import ejection
from holdfast.core.health.ejection import Suspect
from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.health.lifecycle import JUDGED, Signal
from holdfast.core.health.member import Member
from holdfast.core.messages import CanaryResult, FleetAction, Notice
from holdfast.core.types import SECOND, Decision, nanos

# What is told when every canary fails: what was expected is suspect; or nothing came back; or the
# engines say so themselves, or users fail there as well.
DOUBTED: Final = "canaries doubted"
UNANSWERED: Final = "canaries unanswered"
CONFIRMED: Final = "canaries confirmed"
_TOLD: Final = {
    Suspect.CHECKER: DOUBTED,
    Suspect.SHARED: UNANSWERED,
    Suspect.ENGINES: CONFIRMED,
}
_APART: Final = 2 * SECOND  # between what two gateways tell of the same time
_VERDICTS: Final = {
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
class Standing:
    """A doubt that stands: since when, why, and what people were told of it."""

    since: int
    reason: str = ""
    told: str = ""


class Testimony:
    """Reads the members of a fleet side by side; changes nothing but its doubts."""

    __slots__ = ("_members", "_period", "_trusted_at", "doubts")

    def __init__(self, config: FleetConfig, members: dict[str, Member]) -> None:
        self._members = members
        period_s = config.health.canary_s * (1 + config.health.canary_jitter)
        self._period = nanos(period_s + config.canary_deadline_s)
        self.doubts: dict[str, Standing] = {}  # why canaries are not believed, by model
        self._trusted_at: dict[str, int] = {}  # when they were believed again, by model

    def _peers(self, member: Member) -> list[Member]:
        """The others of its model. A stopped process has nothing to say of anybody."""
        model = member.replica.model
        others = [m for m in self._members.values() if m is not member]
        return [m for m in others if m.replica.model == model and not m.health.frozen]

    def in_good_time(self, member: Member, event: CanaryResult) -> tuple[Signal, str]:
        """The right answer: whether it came as quickly as this replica, and its peers, give it.

        Only where nothing else ran: beside a long prompt the same question takes longer, and that
        is no illness. Users' own waits tell of a busy replica.
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
        """One canary failed or was slow: how its peers do tells its trouble from everybody's."""
        for peer in self._peers(member):
            # Those that are slow together would call each other without end.
            if not (member.slow and (peer.slow or peer.canary_out)):
                peer.health.call_canary(now)
                peer.wake_at = now

    def _canaries(self, model: str) -> tuple[list[ejection.CanaryResult], int]:
        """The latest canary of each replica that could have passed one, and how many there are."""
        results = []
        members = 0
        for member in self._members.values():
            health = member.health
            if member.replica.model == model and health.state in JUDGED and not health.frozen:
                members += 1
                if member.canary_at:
                    told = (member.canary_at, member.canary_passed, member.canary_verdict)
                    results.append(ejection.CanaryResult(member.replica.id, *told))
        return results, members

    def witness(self, member: Member, now: int) -> Decision:
        """Whether a peer proved lately that the expected answer can be given."""
        results, members = self._canaries(member.replica.model)
        period = self._period
        return ejection.may_condemn(results, member.replica.id, now, period, members=members)

    def silence(self, member: Member, waited: int, now: int) -> Decision:
        """Whether the silence is its own.

        Gateways tell once a second, so what was heard within the last one proves nothing: where
        everybody stood still and goes on, the first who is heard of would condemn the others.
        """
        heard_at = [peer.heard_by(now - SECOND) for peer in self._peers(member)]
        return ejection.may_blame_silence(heard_at, now - waited, now)

    def doubt(self, model: str, now: int, actions: list[FleetAction]) -> bool:
        """Whether what they share is more suspect than the replicas; told when that changes."""
        results, members = self._canaries(model)
        doubt = ejection.canaries_doubtful(results, now, self._period, members=members)
        standing = self.doubts.get(model)
        if doubt:
            if standing is None:
                standing = self.doubts[model] = Standing(now)
            standing.reason, what = doubt.reason, _TOLD[doubt.of]
            if what == DOUBTED and self._users_fail(model, standing.since - self._period):
                standing.reason, what = "all canaries fail, and users' requests as well", CONFIRMED
            elif what == CONFIRMED and self._served_at(model) > standing.since:
                standing.reason, what = "all canaries fail, and users are served", DOUBTED
            if standing.told != what:
                standing.told = what
                actions.append(Notice(now, model, "", what, standing.reason))
        elif standing is not None:
            del self.doubts[model]
            self._trusted_at[model] = now
            actions.append(Notice(now, model, "", "canaries trusted again", doubt.reason))
        return bool(doubt)

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
        """Whether a doubt about the canaries ended only after that."""
        return self._trusted_at.get(model, 0) > since


def read_canary(event: CanaryResult, *, stands: bool) -> tuple[Signal, str]:
    """Busy is not dead: a canary that timed out is read by what else the engine was doing.

    It may be over before any gateway could tell of that. What is told for longer decides then:
    whether its requests ``stand``.
    """
    if event.verdict is not CanaryVerdict.TIMEOUT:
        return _VERDICTS[event.verdict], event.detail
    if event.progress:
        return Signal.BUSY, "timed out while users' tokens move"
    if event.running and event.progress is None and not stands:
        return Signal.UNKNOWN, "timed out, and whether users' tokens move is not known yet"
    if event.running:
        return Signal.STALLED, f"{event.running} requests running and no token emitted"
    return Signal.CANARY_FAIL, "no answer in time from an idle replica"


__all__ = ["CONFIRMED", "DOUBTED", "UNANSWERED", "Standing", "Testimony", "read_canary"]
