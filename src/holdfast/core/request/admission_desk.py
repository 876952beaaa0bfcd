"""Where a request's life is opened and closed: quota, ladder of models, the one terminal answer.

Every request that enters gets exactly one ``Finish``, and it is written here and nowhere else. The
table of errors says what a client is told when nothing could mend a failure.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from holdfast.core.failure import Kind
from holdfast.core.messages import Finish, Report, RequestId
from holdfast.core.request.active_request import ActiveRequest, RequestStep
from holdfast.core.request.admission.quota import Quota, Reservation
from holdfast.core.request.admission.refusals import Refusal
from holdfast.core.request.degrade import Degrader
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.request.lane import Lane
from holdfast.core.request.timer_wheel import TimerWheel
from holdfast.core.types import Request, nanos

# The answer for an attempt's failure that nothing could mend. Beside each status: why this one.
ERRORS: Final[dict[Kind, tuple[int, str]]] = {
    Kind.BAD_REQUEST: (400, "bad_request"),  # the engine's own refusal, passed on
    Kind.OVERLOADED: (503, "overloaded"),  # ours, not the tenant's: 429 would blame the caller
    Kind.FIRST_TOKEN_TIMEOUT: (504, "upstream_timeout"),  # a gateway that waited in vain
    Kind.BETWEEN_TOKENS_TIMEOUT: (504, "upstream_timeout"),  # as above
    Kind.CONNECT_TIMEOUT: (504, "upstream_timeout"),  # as above
    Kind.DEADLINE: (504, "deadline_exceeded"),  # as above, for the whole request
    Kind.CLIENT_GONE: (499, "client_gone"),  # never sent; the log's word for it
}
_ROOM_BELOW: Final = 0.9  # of capacity: a step of a quarter of the traffic must find some room
ERROR_DEFAULT: Final = (502, "upstream_failed")  # a gateway whose upstream gave no valid answer
DEADLY: Final = (502, "replicas_lost")  # as above; its own code, because it must not be sent again


class AdmissionDesk:
    """The requests under way, and the books that outlive them."""

    __slots__ = ("_degraders", "_quotas", "_wheel", "_whole", "requests")

    def __init__(
        self,
        config: FlowConfig,
        streams: Callable[[str], Random],
        wheel: TimerWheel[ActiveRequest],
    ) -> None:
        self._wheel = wheel
        self.requests: dict[RequestId, ActiveRequest] = {}
        whole = nanos(config.lane.deadlines.request_s)
        # A batch request may wait in the queue for longer than any answer takes.
        self._whole = (whole, whole + nanos(config.lane.queue.wait_batch_s))
        self._quotas = {tenant: Quota(quota) for tenant, quota in config.quotas.items()}
        self._degraders = {
            ladder.ladder[0]: Degrader(ladder, streams(f"degrade/{ladder.ladder[0]}"))
            for ladder in config.degrade
        }

    def open(self, request: Request, now: int) -> ActiveRequest:
        """A life for this request, on the model that is to serve it."""
        if request.id in self.requests:
            raise ValueError(f"request id {request.id!r} is already under way; ids must be unique")
        model = request.model
        deadline = request.deadline or now + self._whole[request.priority]
        degrader = self._degraders.get(model) if request.degradable else None
        if degrader is None:
            active = ActiveRequest(request, model, deadline)
        else:
            model, reason = degrader.choose(request, now)
            active = ActiveRequest(request, model, deadline)
            if model != request.model:
                active.story.append((now, "degraded", reason))
        self.requests[request.id] = active
        return active

    def reserve(self, active: ActiveRequest, now: int) -> Refusal | None:
        """Take the tenant's quota for this request; the refusal says when to come back."""
        request = active.request
        quota = self._quotas.get(request.tenant) if self._quotas else None
        if quota is None:
            return None
        reserved = quota.reserve(request.prompt_tokens, request.max_tokens, now)
        if isinstance(reserved, Reservation):
            active.reservation = reserved
            return None
        return reserved

    def lease(self, shares: Mapping[str, float]) -> None:
        """Take over this gateway's parts of the tenants' quotas."""
        for tenant, share in shares.items():
            quota = self._quotas.get(tenant)
            if quota is not None:
                quota.lease(share)

    def inherit(self, earlier: "AdmissionDesk") -> None:
        """Share the quotas that did not change: requests of both settle in the same buckets."""
        for tenant, quota in earlier._quotas.items():  # noqa: SLF001 - of the same class
            mine = self._quotas.get(tenant)
            if mine is not None and mine.config == quota.config:
                self._quotas[tenant] = quota

    def quota(self, tenant: str) -> Quota | None:
        """What this tenant has left here; ``None`` = it is not limited."""
        return self._quotas.get(tenant)

    def finish(
        self,
        active: ActiveRequest,
        status: int,
        code: str,
        reason: str,
        now: int,
        replica_id: str = "",
    ) -> Finish:
        """The one terminal answer. What was reserved and not used goes back to the tenant."""
        active.step(RequestStep.FINISH)
        self._wheel.drop(active)
        request = active.request
        del self.requests[request.id]
        if active.reservation is not None:
            quota = self._quotas[request.tenant]
            if active.attempts:
                quota.settle(active.reservation, request.prompt_tokens + active.shown_tokens)
            else:
                quota.release(active.reservation)  # never sent: it costs the tenant nothing
        story = active.story
        story.append((now, code, reason))
        return Finish(
            request.id,
            status,
            code,
            reason,
            active.attempts,
            active.continued,
            active.model,
            replica_id,
            active.revision is not None,
            0.0,
            story,
        )

    def fail(self, active: ActiveRequest, kind: Kind, reason: str, now: int) -> Finish:
        """An honest error for a failure that nothing could mend."""
        status, code = ERRORS.get(kind, ERROR_DEFAULT)
        return self.finish(active, status, code, f"{kind.value}: {reason}", now)

    def fail_deadly(self, active: ActiveRequest, now: int) -> Finish:
        """It may be the request that ends its replicas: it gets no third one."""
        reason = f"its connection died on {' and '.join(active.died)}: it is not tried on a third"
        return self.finish(active, *DEADLY, reason, now)

    def shed(self, active: ActiveRequest, refusal: Refusal, now: int) -> Finish:
        """A refusal before any work was done."""
        finish = self.finish(active, refusal.status, refusal.code, refusal.reason, now)
        finish.retry_after_s = refusal.retry_after_s
        return finish

    def watch_ladders(self, lanes: Mapping[str, Lane], now: int) -> list[Report]:
        """Let each ladder of models look at the load of its rungs; report the moves."""
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
            )
            if change is not None:
                reports.append(Report(model, "", "ladder moved", change.reason))
        return reports


def _has_room(lanes: Mapping[str, Lane], model: str | None, now: int) -> bool | None:
    """Whether a rung could take more; a rung without a lane has no replica at all."""
    lane = lanes.get(model) if model is not None else None
    if lane is None:
        return model is None
    if not lane.pool.ready(now):
        return False
    saturation = lane.saturation()
    return None if saturation is None else saturation < _ROOM_BELOW


__all__ = ["DEADLY", "ERRORS", "ERROR_DEFAULT", "AdmissionDesk"]
