"""One bounded amount that tenants share: whoever is alone may have all of it, nobody is kept out.

What is free goes to whoever asks. Where nothing is, the tenant that holds most gives something up,
unless whoever asks would then hold as much itself. So each of ``n`` tenants that ask for it gets an
``n``-th, and none has to be known before it comes.

Rejected: a fixed share of each tenant. It leaves free what nobody else wants, or promises more than
there is. Rejected: a place beyond the bound for newcomers: with many tenants that is no bound.
"""


class FairShare:
    """Counts how much each tenant holds of a bounded amount, and names who has to give some up.

    The caller takes it from there: this class drops nothing.
    """

    __slots__ = ("held", "most", "total")

    def __init__(self, most: int) -> None:
        self.most = most
        self.total = 0
        self.held: dict[str, int] = {}  # by tenant; only those that hold something

    def fits(self, size: int = 1) -> bool:
        """Return whether so much more is free. Takes nothing."""
        return self.total + size <= self.most

    def loser(self, tenant: str, size: int = 1) -> str:
        """Return the tenant that has to give up something so that ``size`` more fit for ``tenant``.

        That is the one that holds most, or ``tenant`` itself, which would hold as much.
        """
        held = self.held
        largest = max(held, key=held.__getitem__, default=tenant)
        enough = held.get(tenant, 0) + size >= held.get(largest, 0)
        return tenant if enough else largest

    def take(self, tenant: str, size: int = 1) -> None:
        """Count so much more for a tenant, without a check."""
        self.total += size
        self.held[tenant] = self.held.get(tenant, 0) + size

    def give_back(self, tenant: str, size: int = 1) -> None:
        """Count so much less for a tenant that holds at least this much."""
        self.total -= size
        left = self.held.get(tenant, 0) - size
        if left:
            self.held[tenant] = left
        else:
            self.held.pop(tenant, None)


__all__ = ["FairShare"]
