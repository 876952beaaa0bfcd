"""Opens each request at its arrival and closes it with its one final answer.

Quotas are reserved and settled here, and every ``Finish`` is built here and nowhere else. The table
of errors says what a client is told when a failure could not be repaired.
"""

from collections.abc import Mapping
from typing import Final

from holdfast.core.failure import Kind
from holdfast.core.messages import Finish, RequestId
from holdfast.core.request.active_request import ActiveRequest, RequestStep
from holdfast.core.request.admission.quota import Quota, Reservation
from holdfast.core.request.admission.refusals import Refusal
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.request.timer_wheel import TimerWheel
from holdfast.core.types import Request, nanos

# The answer for an attempt's failure that nothing could mend. Beside each status: why this one.
ERRORS: Final[dict[Kind, tuple[int, str]]] = {
    Kind.BAD_REQUEST: (400, "bad_request"),  # the engine's own refusal, passed on
    Kind.OVERLOADED: (503, "overloaded"),  # ours, not the tenant's: 429 would blame the caller
    Kind.FIRST_TOKEN_TIMEOUT: (504, "upstream_timeout"),  # we waited in vain for a replica
    Kind.BETWEEN_TOKENS_TIMEOUT: (504, "upstream_timeout"),  # the same, amid a stream
    Kind.CONNECT_TIMEOUT: (504, "upstream_timeout"),  # the same, before anything was sent
    Kind.GATEWAY_SHORTAGE: (503, "gateway_shortage"),  # ours: no replica was asked, none is late
    Kind.DEADLINE: (504, "deadline_exceeded"),  # the whole request ran out of time
    Kind.CLIENT_GONE: (499, "client_gone"),  # never sent; the log's word for it
}
HOLDER_BUSY: Final = "holder_unavailable"  # its own code: other replicas may well be free
_WAITED: Final = frozenset({"queue_timeout", "no_ready_replica"})
_FINISH: Final = RequestStep.FINISH
ERROR_DEFAULT: Final = (502, "upstream_failed")  # a gateway whose upstream gave no valid answer
_EMPTY_TWICE: Final = 2  # replicas: one that says nothing may be broken, two are the model
DEADLY: Final = (502, "replicas_lost")  # its own code, because the request must not be sent again
# Its own code: neither more attempts nor another replica would have helped, only more time.
UNREAD: Final = (504, "prompt_unread")
NOT_SERVED: Final = "path_not_served"  # with the engine's own status: it is the answer
# 404, as to whoever asks for something that is there no more: no replica can make it again.
GONE: Final = (404, "response_lost")
LOST: Final = (502, "replica_lost")  # its own code: whoever sent it decides whether it goes again


class AdmissionDesk:
    """The requests under way in one gateway, with the quotas that they share.

    It registers each request, reserves and settles quota, and builds every ``Finish``; it neither
    queues nor dispatches.
    """

    __slots__ = ("_quotas", "_wheel", "_whole", "requests")

    def __init__(self, config: FlowConfig, wheel: TimerWheel[ActiveRequest]) -> None:
        self._wheel = wheel
        self.requests: dict[RequestId, ActiveRequest] = {}
        whole = nanos(config.lane.deadlines.request_s)
        # A batch request may wait in the queue for longer than any answer takes.
        self._whole = (whole, whole + nanos(config.lane.queue.wait_batch_s))
        self._quotas = {tenant: Quota(quota) for tenant, quota in config.quotas.items()}

    def open(self, request: Request, now: int) -> ActiveRequest:
        """Register a new request and return its ``ActiveRequest``, with its deadline.

        Raises ``ValueError`` if its id is under way. Reserves no quota and does not check that the
        model exists.
        """
        if request.id in self.requests:
            raise ValueError(f"request id {request.id!r} is already under way; ids must be unique")
        deadline = request.deadline or now + self._whole[request.priority]
        active = ActiveRequest(request, request.model, deadline)
        self.requests[request.id] = active
        return active

    def reserve(self, active: ActiveRequest, now: int) -> Refusal | None:
        """Reserve the tenant's quota for this request and store the reservation in it.

        Returns ``None`` if that worked or the tenant has no quota, else the refusal to send.
        """
        request = active.request
        quota = self._quotas.get(request.tenant) if self._quotas else None
        if quota is None:
            return None
        reserved = quota.reserve(request.prompt_tokens, request.max_tokens, now, request.choices)
        if isinstance(reserved, Reservation):
            active.reservation = reserved
            return None
        return reserved

    def correct(self, tenant: str, tokens: int) -> None:
        """Charge a tenant's quota for tokens found after its request was settled.

        Negative ``tokens`` are given back; a tenant without a quota is ignored.
        """
        quota = self._quotas.get(tenant)
        if quota is not None:
            quota.correct(tokens)

    def lease(self, shares: Mapping[str, float]) -> None:
        """Set this gateway's shares (0 to 1) of the tenants' whole quotas, by tenant.

        Tenants without a quota are ignored, and those not named keep their share.
        """
        for tenant, share in shares.items():
            quota = self._quotas.get(tenant)
            if quota is not None:
                quota.lease(share)

    def inherit(self, earlier: "AdmissionDesk") -> None:
        """Take over the quotas of an earlier desk, with their levels, where the config is equal.

        Tenants whose quota config changed start with a fresh quota. Requests under way are not
        taken over.
        """
        for tenant, quota in earlier._quotas.items():  # noqa: SLF001 - of the same class
            mine = self._quotas.get(tenant)
            if mine is not None and mine.config == quota.config:
                self._quotas[tenant] = quota

    def running(self) -> dict[str, int]:
        """Return how many requests each tenant has under way at this gateway, by tenant.

        Only tenants that have a bound on requests at once and at least one request are in it.
        """
        return {
            tenant: quota.running
            for tenant, quota in self._quotas.items()
            if quota.running and quota.config.requests_at_once is not None
        }

    def quota(self, tenant: str) -> Quota | None:
        """Return the live ``Quota`` of a tenant at this gateway; ``None`` if it has none."""
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
        """Close a request and return the ``Finish`` with its answer, for the driver to send.

        Removes the request and its timer, and settles its quota by the tokens used; one that was
        never dispatched gets all of its quota back.
        """
        active.step(_FINISH)
        self._wheel.drop(active)
        request = active.request
        del self.requests[request.id]
        if active.charges:
            request.content = b""  # failures are settled later, and have its digest
        if active.reservation is not None:
            quota = self._quotas[request.tenant]
            if active.attempts:
                read = active.read_tokens or request.prompt_tokens  # the estimate, if it must be
                quota.settle(active.reservation, read + active.shown_tokens)
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
        """Close a request with the status and code of this kind of failure, by default 502.

        Like ``finish`` it returns the ``Finish`` and settles the quota. Where two answers without a
        word are all that came, that is the answer: 200.
        """
        status, code = ERRORS.get(kind, ERROR_DEFAULT)
        shown = active.revision is not None
        if code == ERROR_DEFAULT[1] and len(active.empty) >= _EMPTY_TWICE and not shown:
            reason = "two replicas answered without a word"
            return self.finish(active, 200, "ok", reason, now, active.empty[-1])
        return self.finish(active, status, code, f"{kind.value}: {reason}", now)

    def fail_deadly(self, active: ActiveRequest, now: int) -> Finish:
        """Close a request under which two replicas died with 502 ``replicas_lost``.

        So no third replica gets it; returns the ``Finish``. A request that is to cost one replica
        at most is closed after the first, with 502 ``replica_lost``.
        """
        if active.request.deaths_max == 1:
            reason = f"its connection died on {active.died[0]}: it is not tried on another"
            return self.finish(active, *LOST, reason, now)
        reason = f"its connection died on {' and '.join(active.died)}: it is not tried on a third"
        return self.finish(active, *DEADLY, reason, now)

    def fail_gone(self, active: ActiveRequest, now: int) -> Finish:
        """Close a request whose one replica, which kept what it is about, keeps it no more."""
        reason = f"{active.request.holder} does not keep what is asked for"
        return self.finish(active, *GONE, reason, now)

    def shed(self, active: ActiveRequest, refusal: Refusal, now: int) -> Finish:
        """Close a request with a refusal's status, code and Retry-After; return the ``Finish``.

        Mostly one that no replica has worked on; where some did, its tokens are charged.
        """
        code = refusal.code
        if active.request.holder and code in _WAITED:
            code = HOLDER_BUSY
        finish = self.finish(active, refusal.status, code, refusal.reason, now)
        finish.retry_after_s = refusal.retry_after_s
        return finish


__all__ = [
    "DEADLY",
    "ERRORS",
    "ERROR_DEFAULT",
    "GONE",
    "HOLDER_BUSY",
    "LOST",
    "NOT_SERVED",
    "UNREAD",
    "AdmissionDesk",
]
