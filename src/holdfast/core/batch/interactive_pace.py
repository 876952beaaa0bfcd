"""How many requests of interactive queues may run now: as many as the model has slots.

A message is safe in its own queue, and would wait in the gateway's memory for nothing. So no more
are sent than can run, and none while the model has no replica that is ready.
"""

from holdfast.core.batch.spare_capacity import BatchPace, ModelLoad, SpareCapacityConfig
from holdfast.core.types import nanos


class InteractivePace:
    """Says how many requests of one model's interactive queues may run: as many as it has slots.

    Keeps only when a gateway last reported; sends nothing itself.
    """

    def __init__(self, config: SpareCapacityConfig) -> None:
        self._config = config
        self._seen_at: int | None = None  # when a gateway last reported

    def look(self, load: ModelLoad | None, items: int, now: int) -> BatchPace:
        """Return the ``BatchPace`` from the present load; ``take_back`` is always 0.

        ``load`` None: no report since the last look; then ``items`` (requests of these queues that
        run now) stays the bound, and after ``silent_s`` ``silent_max``. No ready replica: 0; slots
        unknown: ``unknown_max``.
        """
        config = self._config
        if load is None:
            if self._seen_at is None or now - self._seen_at > nanos(config.silent_s):
                return BatchPace(config.silent_max, 0, "gateways do not report")
            return BatchPace(items, 0, "no new report")
        self._seen_at = now
        if not load.ready:
            return BatchPace(0, 0, "no replica is ready")
        if load.slots is None:
            return BatchPace(config.unknown_max, 0, "no limit is known")
        return BatchPace(load.slots, 0, f"{load.slots} slots")


__all__ = ["InteractivePace"]
