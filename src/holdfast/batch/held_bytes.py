"""How many bytes each tenant holds on the disk of batches: the account behind its quota.

    an upload ─► each piece, as it comes ───────────────► its file, until it is deleted or expires
    a batch ───► its lines, and each answer as it ends ─► its output files

What is counted is counted before it is written. One process has the folder, so the account is in
memory: it is read from the records of files at the start, and open batches add what they keep.
"""

from collections import Counter


class HeldBytes:
    """Counts the bytes of each tenant, and says whether more fit into its quota."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._held: Counter[str] = Counter()

    def of(self, tenant: str) -> int:
        """What a tenant holds."""
        return self._held[tenant]

    def fits(self, tenant: str, size: int) -> bool:
        """Whether so many more bytes fit into a tenant's quota."""
        return self._held[tenant] + size <= self.bytes_max

    def take(self, tenant: str, size: int) -> bool:
        """Count so many more bytes if they fit; whether they did."""
        fits = self.fits(tenant, size)
        if fits:
            self.add(tenant, size)
        return fits

    def add(self, tenant: str, size: int) -> None:
        """Count bytes that are there, whether they fit or not."""
        self._held[tenant] += size

    def give_back(self, tenant: str, size: int) -> None:
        """Count bytes no more that were deleted, or never written."""
        self._held[tenant] -= size
        if not self._held[tenant]:
            del self._held[tenant]


__all__ = ["HeldBytes"]
