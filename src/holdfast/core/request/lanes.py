"""The lanes of one gateway and the fleet view they follow.

Every model of the config has a lane from the start, also while no replica of it exists: what is
asked of a model at zero waits there, and that it waits is what wakes the model.

A view of control's replaces an older one, never the reverse: of one control the higher version, of
two controls the one that started later. When control falls silent for too long, what it had only
suspected is doubted; what it knew stands.
"""

from collections.abc import Callable, Mapping
from random import Random

from holdfast.core.messages import FleetView, LoadReported, ReplicaView, Report, Tally
from holdfast.core.request.lane import Lane, LaneConfig


class Lanes:
    """One lane per model that the config or control has named."""

    __slots__ = (
        "_configs",
        "_default",
        "_stale",
        "_streams",
        "_view_at",
        "_weights",
        "by_model",
        "view",
    )

    def __init__(
        self,
        default: LaneConfig,
        configs: Mapping[str, LaneConfig],
        tenant_weights: Mapping[str, float],
        stale: int,
        streams: Callable[[str], Random],
    ) -> None:
        self.by_model: dict[str, Lane] = {}
        self.view = (0, -1)  # epoch and version of the view that holds
        self._default = default
        self._configs = configs
        self._weights = tenant_weights
        self._stale = stale
        self._streams = streams
        self._view_at: int | None = None
        for model in configs:
            self._lane(model)

    def _lane(self, model: str) -> Lane:
        lane = self.by_model.get(model)
        if lane is None:
            config = self._configs.get(model, self._default)
            lane = self.by_model[model] = Lane(model, config, self._weights, self._streams)
        return lane

    def apply(self, view: FleetView, now: int) -> bool:
        """Follow a view; False for a late frame. The same one again says that control is there."""
        came = (view.epoch, view.version)
        if came < self.view:
            return False
        self.view = came
        self._view_at = now
        by_model: dict[str, list[ReplicaView]] = {model: [] for model in self.by_model}
        for replica in view.replicas:
            by_model.setdefault(replica.replica.model, []).append(replica)
        for model, replicas in by_model.items():
            self._lane(model).follow(replicas, now)
        return True

    def take_report(self, event: LoadReported) -> None:
        """An engine's own account of its load; of replicas that are not ours, nothing."""
        lane = self.by_model.get(event.model)
        candidate = lane.pool.candidates.get(event.replica_id) if lane is not None else None
        if candidate is not None:
            candidate.take_report(event.tokens, event.waiting, event.kv_used)

    def lease(self, trials: frozenset[tuple[str, str]] | None, now: int) -> None:
        """Hand each lane the trials that are this gateway's turn."""
        for model, lane in self.by_model.items():
            mine = None if trials is None else frozenset(r for m, r in trials if m == model)
            lane.pool.lease(mine, now)

    def tallies(self) -> list[Tally]:
        """What was seen of each replica since the last call."""
        return [tally for lane in self.by_model.values() for tally in lane.tallies()]

    def doubt(self, now: int) -> list[Report]:
        """If control is silent, let quarantines on suspicion decay to trials; say which did."""
        if self._view_at is None or now - self._view_at <= self._stale:
            return []
        what = "view stale: quarantine decays to a trial"
        return [
            Report(lane.model, replica_id, what, "control is silent")
            for lane in self.by_model.values()
            for replica_id in lane.pool.doubt_view(now)
        ]


__all__ = ["Lanes"]
