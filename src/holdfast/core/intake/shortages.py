"""Counts what this process itself lacked: descriptors, kernel memory or local ports."""

from holdfast.core.intake.descriptors import OwnResource


class Shortages:
    """Counts how often this process lacked each resource: in all, and since the last report."""

    __slots__ = ("_told", "counts")

    def __init__(self) -> None:
        self.counts = dict.fromkeys(OwnResource, 0)
        self._told = dict(self.counts)

    def saw(self, resource: OwnResource) -> None:
        """Count once more that this process lacked a resource."""
        self.counts[resource] += 1

    def take_new(self) -> dict[OwnResource, int]:
        """Return counts by resource since the last call; only those above 0, empty if none.

        The totals in ``counts`` stay.
        """
        if self.counts == self._told:
            return {}
        new = {each: count - self._told[each] for each, count in self.counts.items()}
        self._told = dict(self.counts)
        return {each: count for each, count in new.items() if count}


__all__ = ["Shortages"]
