"""Measures the demand for each model: queue length, tokens per second, time to first token.

The gauges are read from the lanes about once a second: a request costs nothing but one count of its
first token, which its lane keeps. The first waiting request of a model is reported within a tenth
of a second, because it wakes a model that is scaled to zero.

Active requests are counted over the last second, not sampled: a sample would hardly ever see short
requests that come now and then, and their model would look idle.

Unknown values are left out. Too few first tokens give no p95, and a rate needs 10 s of watching; a
queue is always known, also when it is empty.

Rejected: counters from which control would take the difference. A queue is a state, and control can
be gone for a while.
"""

from collections.abc import Iterable
from typing import Final

from holdfast.core.request.flow import Flow
from holdfast.core.request.lane import Lane
from holdfast.core.stats import RateWindow
from holdfast.core.types import SECOND, nanos

RATE_S: Final = 30.0  # tokens are counted when answers end: a shorter span would see bursts
_RATE_MIN: Final = 10 * SECOND  # of watching, before a rate is told
_BUCKETS: Final = 10

_SPAN: Final = nanos(RATE_S)
_WIDTH: Final = _SPAN // _BUCKETS


class DemandGauges:
    """Measures the demand for each model of a gateway.

    ``gauges`` holds the last ``read``'s values.
    """

    __slots__ = ("_rates", "_waited", "gauges")

    def __init__(self) -> None:
        self.gauges: dict[str, int | float] = {}
        self._rates: dict[str, tuple[int, RateWindow]] = {}  # since when, and the tokens
        self._waited: set[str] = set()  # models for which something waited when it was last read

    def begun(self, flows: Iterable[Flow]) -> bool:
        """Whether requests wait for a model that had none waiting at the last ``read``.

        Reads and stores nothing.
        """
        for flow in flows:
            for model, lane in flow.lanes.items():
                wanted = lane.queue.held or lane.answered_elsewhere
                if wanted and model not in self._waited:
                    return True
        return False

    def read(self, flows: Iterable[Flow], now: int) -> dict[str, int | float]:
        """Compute each model's queued requests and tokens, active requests, token rate and p95.

        The p95 is of the time to the first token. Stores and returns the gauges by name with
        labels; unknown ones are left out. Takes the lanes' served counts, so call it about once a
        second.
        """
        lanes: dict[str, list[Lane]] = {}
        for flow in flows:
            for model, lane in flow.lanes.items():
                lanes.setdefault(model, []).append(lane)
        self._rates = {model: self._rates.get(model, (now, _window())) for model in lanes}
        self._waited.clear()
        gauges: dict[str, int | float] = {}
        for model, own in lanes.items():
            label = f'{{model="{model}"}}'
            # Whom a smaller model answers because this one has no replica would wait for it.
            elsewhere = sum(lane.take_answered_elsewhere() for lane in own)
            waiting = sum(len(lane.queue) for lane in own) + elsewhere
            if elsewhere or any(lane.queue.held for lane in own):
                self._waited.add(model)
            gauges[f"queued_requests{label}"] = waiting
            gauges[f"queued_tokens{label}"] = sum(lane.queue.tokens for lane in own)
            late = [p95 for lane in own if (p95 := lane.first_token_p95(now)) is not None]
            if late:
                gauges[f"first_token_p95_seconds{label}"] = round(max(late) / SECOND, 4)
            served = [lane.take_served() for lane in own]
            gauges[f"active_requests{label}"] = sum(active for active, _ in served)
            rate = self._rate(model, sum(tokens for _, tokens in served), now)
            if rate is not None:
                gauges[f"tokens_per_second{label}"] = round(rate, 1)
        self.gauges = gauges
        return gauges

    def _rate(self, model: str, tokens: int, now: int) -> float | None:
        since, window = self._rates[model]
        window.add(now, tokens)
        if now - since < _RATE_MIN:
            return None
        covered = min(now - since, _SPAN - _WIDTH + now % _WIDTH)
        return window.total(now) * SECOND / covered


def _window() -> RateWindow:
    return RateWindow(RATE_S, _BUCKETS)


__all__ = ["RATE_S", "DemandGauges"]
