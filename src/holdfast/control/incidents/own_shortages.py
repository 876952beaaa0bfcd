"""Counts what control itself lacked, and tells the investigation of it."""

from collections.abc import Callable

import structlog

from holdfast.core.diagnose.facts import OwnShortage
from holdfast.core.intake.descriptors import OwnResource
from holdfast.core.intake.shortages import Shortages

_log = structlog.get_logger("holdfast.control")


class OwnShortages:
    """Counts the failed connection attempts of control for want of descriptors, memory or ports."""

    def __init__(self, saw: Callable[[OwnShortage], None]) -> None:
        self._saw = saw
        self._shortages = Shortages()
        self.descriptors = 0  # the limit on open files of this process; 0: not known
        self.port_counters: Callable[[], dict[str, float]] = dict  # of the admin port

    def lacks(self, resource: OwnResource) -> None:
        """Count one failed attempt to open a connection for want of this resource; only counts."""
        self._shortages.saw(resource)

    def tell(self) -> None:
        """Log, and report as facts, the shortages counted since the last call; none: do nothing.

        Called about once a second.
        """
        for resource, count in self._shortages.take_new().items():
            _log.error(f"a shortage of {resource}", times=count, limit=self.descriptors)
            self._saw(OwnShortage("control", resource, count, self.descriptors))

    def added_to(self, counters: dict[str, float]) -> dict[str, float]:
        """Add this process's shortages and its admin port's counters to those of gateways.

        Changes ``counters`` and returns a new dict with all of them.
        """
        for resource, count in self._shortages.counts.items():
            series = f'shortages_total{{resource="{resource}"}}'
            counters[series] = counters.get(series, 0) + count
        return counters | self.port_counters()


__all__ = ["OwnShortages"]
