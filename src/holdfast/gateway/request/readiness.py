"""Answers the probes of load balancers: ``/livez``, ``/readyz`` and ``/readyz/{model}``.

``/livez``: the event loop of the process runs. ``/readyz``: the gateway accepts requests, has a
fleet view and is not draining; a fleet scaled to zero is ready, or nothing could ever wake it. A
gateway that has not heard of control for a while is ready too, and says so behind it.
``/readyz/{model}``: a replica that may be chosen exists. The pages are on the data port, where load
balancers look.
"""

from typing import Final

from holdfast.core.request.flow import Flow
from holdfast.gateway.http.interfaces import Exchange

_TEXT: Final = b"content-type: text/plain; charset=utf-8\r\ncache-control: no-store\r\n"


_PATHS: Final = frozenset({b"/livez", b"/readyz"})


class Readiness:
    """Answers load balancers' probes: ``/livez``, ``/readyz`` and ``/readyz/{model}``."""

    __slots__ = ("control_silent_s", "draining", "has_view")

    def __init__(self) -> None:
        self.draining = False
        self.has_view = False
        self.control_silent_s: float | None = None  # None: control speaks

    def knows(self, path: bytes) -> bool:
        """Whether a path is a probe page: ``/livez``, ``/readyz`` or below ``/readyz/``."""
        return path in _PATHS or path.startswith(b"/readyz/")

    def ready(self) -> tuple[bool, str]:
        """Return whether the gateway accepts new requests, and the text that says why or why not.

        False while it drains or has no fleet view. Silence of control, and a model without
        replicas, leave it ready.
        """
        if self.draining:
            return False, "draining"
        if not self.has_view:
            return False, "no fleet view yet"
        if self.control_silent_s is not None:
            silent = f"control has been silent for {self.control_silent_s:.0f} s"
            return True, f"ready; {silent}: serving by its last view"
        return True, "ready"

    def answer(self, exchange: Exchange, flow: Flow, now: int) -> None:
        """Answer a probe with 200 or 503 and the reason as text; 405 if it is neither GET nor HEAD.

        ``/livez`` is always 200; ``/readyz/{model}`` needs a replica that may be chosen, too.
        """
        path = exchange.path
        if exchange.method not in {b"GET", b"HEAD"}:
            exchange.respond(405, _TEXT + b"allow: GET, HEAD\r\n", b"use GET\n")
            return
        ready, why = (True, "alive") if path == b"/livez" else self.ready()
        if ready and path.startswith(b"/readyz/"):
            ready, why = _model_ready(path[8:], flow, now)
        exchange.respond(200 if ready else 503, _TEXT, why.encode() + b"\n")


def _model_ready(name: bytes, flow: Flow, now: int) -> tuple[bool, str]:
    lane = flow.lanes.get(name.decode("ascii", "replace"))
    if lane is None:
        return False, "no such model"
    return (True, "ready") if lane.pool.ready(now) else (False, "no replica may be chosen")


__all__ = ["Readiness"]
