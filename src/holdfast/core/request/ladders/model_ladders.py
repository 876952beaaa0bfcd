"""The ladders of models of one gateway: which model answers a request, now and when it must wait.

A ladder moves a share of all requests by what it reads of load (``degrade``). Beside that, each
single request whose model has no place for it may be answered by another model of its ladder before
it is refused: the share follows what is usual, the single move what is so at this moment.
"""

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Final

from holdfast.core.messages import Report, ReportCode
from holdfast.core.request.active_request import ActiveRequest
from holdfast.core.request.ladders.degrade import DegradeConfig, Degrader, Dimension
from holdfast.core.request.lane import Lane
from holdfast.core.types import nanos

_ROOM_BELOW: Final = 0.9  # of capacity: a step of a quarter of the traffic must find some room


class ModelLadders:
    """All ladders of one gateway, by the model that each begins with.

    It chooses and watches; it dispatches nothing and changes no lane.
    """

    __slots__ = ("_degraders",)

    def __init__(
        self, configs: tuple[DegradeConfig, ...], streams: Callable[[str], Random]
    ) -> None:
        self._degraders = {
            config.ladder[0]: Degrader(config, streams(f"degrade/{config.ladder[0]}"))
            for config in configs
        }

    def place(self, active: ActiveRequest, lanes: Mapping[str, Lane], now: int) -> None:
        """Set the model that answers a new request, and how many tokens its answer may have."""
        request = active.request
        degrader = self._degraders.get(request.model)
        if degrader is None:
            return
        model, reason = degrader.choose(request, now)
        lane = lanes.get(model)
        if model != request.model and lane is not None and lane.suits(request):
            active.model = model
            active.story.append((now, "degraded", reason))
        active.output_max = degrader.caps(request, now)
        if active.output_max:
            active.story.append((now, "capped", f"at {active.output_max} tokens"))

    def others(self, active: ActiveRequest, lanes: Mapping[str, Lane], now: int) -> Iterator[Lane]:
        """The lanes of the models that may answer a request in place of its present one.

        Best first; only such as have a replica for it, suit it, and did not have it before. None
        for a request whose client was shown content.
        """
        degrader = self._degraders.get(active.request.model)
        if degrader is None or active.shown_tokens or active.revision is not None:
            return
        request = active.request
        rungs = degrader.rungs(request)
        for model in (request.model, *rungs) if rungs else ():
            lane = lanes.get(model)
            if lane is None or model == active.model or model in active.left:
                continue
            if lane.suits(request) and lane.pool.may_serve(request, now):
                yield lane

    def patience(self, active: ActiveRequest) -> int | None:
        """How long (ns) a request waits in its model's queue before other models are looked at.

        ``None``: until its wait is over, because no other model may answer it, or because latency
        is given up first.
        """
        degrader = self._degraders.get(active.request.model)
        if degrader is None or not degrader.rungs(active.request):
            return None
        config = degrader.config
        return None if config.order[0] is Dimension.LATENCY else nanos(config.patience_s)

    def waits_on(self, active: ActiveRequest) -> bool:
        """Whether a request for which no model has room goes on waiting after its patience."""
        return Dimension.LATENCY in self._degraders[active.request.model].config.order

    def watch(self, lanes: Mapping[str, Lane], now: int) -> list[Report]:
        """Give each ladder the load of its models; return a report for each step it takes.

        Called every second; reading a lane's error share and attainment resets them.
        """
        reports = []
        for model, degrader in self._degraders.items():
            lane = lanes.get(degrader.watched)
            if lane is None:
                continue
            change = degrader.observe(
                now,
                *lane.readings(),
                _has_room(lanes, degrader.below, now),
                upper_has_room=_has_room(lanes, degrader.above, now),
                lost=not lane.pool.ready(now),
            )
            if change is not None:
                reports.append(Report(model, "", ReportCode.LADDER_MOVED.value, change.reason))
        return reports


def _has_room(lanes: Mapping[str, Lane], model: str | None, now: int) -> bool | None:
    """Whether a model of a ladder could take more requests; ``None`` if that is unknown.

    A model without a lane has no replica at all.
    """
    lane = lanes.get(model) if model is not None else None
    if lane is None:
        return model is None
    if not lane.pool.ready(now):
        return False
    saturation = lane.saturation()
    return None if saturation is None else saturation < _ROOM_BELOW


__all__ = ["ModelLadders"]
