"""Keeps records of recent requests for ``holdfast explain``: what happened and why, no text.

Two rings of a few thousand records each; a new record replaces the oldest. Unusual requests, which
an operator will ask about, are always kept, in a ring of their own: errors, retries, hedges,
continuations, waits in the queue. Of answers at the first attempt only 64 per second are kept;
under high load all of them would fill the ring in less than a second and cost as much as the rest
of the bookkeeping.
"""

from collections import OrderedDict
from typing import Any, Final

from holdfast.core.messages import Finish
from holdfast.core.types import SECOND
from holdfast.gateway.telemetry.observed_request import ObservedRequest

_PLAIN_MAX: Final = 4_096  # about a kilobyte each
_UNUSUAL_MAX: Final = 4_096
_PLAIN_PER_S: Final = 64  # a minute of them fills the ring
_PLAIN_STEPS: Final = 2  # chosen and answered


class RequestRecords:
    """Records of recently finished requests, by request id, for ``holdfast explain``; no text.

    Keeps 4,096 unusual ones and 4,096 plain ones; a new one replaces the oldest.
    """

    __slots__ = ("_plain", "_plain_left", "_second", "_unusual")

    def __init__(self) -> None:
        # Ordered: taking the oldest out of a plain dict reads over all that left before it.
        self._plain: OrderedDict[bytes, tuple[Any, ...]] = OrderedDict()
        self._unusual: OrderedDict[bytes, tuple[Any, ...]] = OrderedDict()
        self._second = 0
        self._plain_left = 0  # that may still be kept in this second

    def add(self, proxied: ObservedRequest, finish: Finish, now: int) -> None:
        """Keep the record of a finished request; of plain successes only 64 a second.

        Errors, retries, waits and the like are always kept. After an escalation both parts become
        one record.
        """
        story = finish.story
        kept, most = self._unusual, _UNUSUAL_MAX
        earlier = None
        if proxied.escalated:
            earlier = self._plain.pop(proxied.request_id, None)
            earlier = self._unusual.pop(proxied.request_id, earlier)
        elif finish.status == 200 and len(story) <= _PLAIN_STEPS:
            second = now // SECOND
            if second != self._second:
                self._second, self._plain_left = second, _PLAIN_PER_S
            if not self._plain_left:
                return
            self._plain_left -= 1
            kept, most = self._plain, _PLAIN_MAX
        request = proxied.request
        arrived = request.arrived
        if earlier is not None:
            arrived, story = earlier[2], [*earlier[-1], *story]
        kept[proxied.request_id] = (
            proxied.ask.model,
            request.tenant,
            arrived,
            proxied.ask.stream,
            finish,
            story,
        )
        if len(kept) > most:
            kept.popitem(last=False)

    def explain(self, request_id: str) -> dict[str, Any] | None:
        """Return the record of a request as plain data; its steps have seconds since arrival.

        None if it is unknown, was not kept or has been replaced.
        """
        key = request_id.encode()
        kept = self._plain.get(key) or self._unusual.get(key)
        if kept is None:
            return None
        asked, tenant, arrived, streamed, finish, story = kept
        return {
            "request_id": request_id,
            "asked_for": asked,
            "served_by": finish.model,
            "tenant": tenant,
            "streamed": streamed,
            "replica": finish.replica_id,
            "status": finish.status,
            "code": finish.code,
            "reason": finish.reason,
            "attempts": finish.attempts,
            "continued": finish.continued,
            "story": [
                {"at_s": round((at - arrived) / SECOND, 6), "what": what, "detail": detail}
                for at, what, detail in story
            ],
        }

    def __len__(self) -> int:
        return len(self._plain) + len(self._unusual)


__all__ = ["RequestRecords"]
