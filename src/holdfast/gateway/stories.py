"""The stories of recent requests, for ``holdfast explain``: what happened and why, no text.

A ring: the latest few thousand are kept, the oldest goes when one comes. Errors are kept apart, or
a minute of ordinary traffic would wash away the one request that somebody will ask about.
"""

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from holdfast.core.messages import Finish
from holdfast.core.types import SECOND

if TYPE_CHECKING:
    from holdfast.gateway.inquiry import Inquiry

_KEPT_MAX: Final = 4_096  # about a kilobyte each
_ERRORS_MAX: Final = 1_024


class Stories:
    """Finished requests by id."""

    __slots__ = ("_errors", "_kept")

    def __init__(self) -> None:
        # Ordered: taking the oldest out of a plain dict reads over all that left before it.
        self._kept: OrderedDict[bytes, tuple[Any, ...]] = OrderedDict()
        self._errors: OrderedDict[bytes, tuple[Any, ...]] = OrderedDict()

    def add(self, inquiry: "Inquiry", finish: Finish) -> None:
        """Keep one; a request that escalated keeps its last story and tells of the first."""
        kept = self._kept if finish.status == 200 else self._errors
        request = inquiry.request
        earlier = self._kept.pop(inquiry.request_id, None) if inquiry.escalated else None
        story = finish.story if earlier is None else [*earlier[-1], *finish.story]
        kept[inquiry.request_id] = (
            inquiry.ask.model,
            request.tenant,
            request.arrived if earlier is None else earlier[2],
            inquiry.ask.stream,
            finish,
            story,
        )
        if len(kept) > (_KEPT_MAX if finish.status == 200 else _ERRORS_MAX):
            kept.popitem(last=False)

    def tell(self, request_id: str) -> dict[str, Any] | None:
        """One story as plain data; times in seconds since its arrival."""
        key = request_id.encode()
        kept = self._kept.get(key) or self._errors.get(key)
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
        return len(self._kept) + len(self._errors)


__all__ = ["Stories"]
