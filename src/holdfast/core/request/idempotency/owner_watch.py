"""Judges whether the gateway that owns a key is alive, without comparing anybody's clock.

A gateway counts a number up in the store, its beat. Whoever waits for its answer looks at that
number, and takes it for dead when the number stood still for ``lease_s`` of the *watcher's* own
monotonic clock. Clocks that jump or differ between hosts change nothing. A watcher that could not
look for a while (the store was away, or it was frozen itself) starts to count anew: it has not seen
the number stand still.

Rejected: an end of the lease as a time of day in the record. A clock that jumps by an hour would
end all leases at once, or none.
"""

from dataclasses import dataclass

OWNERS_MAX = 1_024  # gateways whose answers one gateway waits for; further ones seem alive


@dataclass(slots=True)
class _Seen:
    beat: int
    since: int  # when this beat was first seen
    last: int  # when somebody last looked


class OwnerWatch:
    """Judges which gateways are dead, by how long their beat in the store stood still.

    Only the watcher's own monotonic clock counts; knows at most 1,024 gateways.
    """

    def __init__(self, lease: int) -> None:
        self.lease = lease  # ns
        self._seen: dict[str, _Seen] = {}

    def is_dead(self, owner: str, beat: int | None, now: int) -> bool:
        """Take an owner's beat as seen at ``now`` (ns); return whether the owner is dead.

        Dead: the beat stood still for the lease while it was watched without a gap, or ``beat`` is
        None, as the gateway said farewell. One seen for the first time is alive.
        """
        if beat is None:
            self._seen.pop(owner, None)
            return True
        seen = self._seen.get(owner)
        if seen is None:
            if len(self._seen) < OWNERS_MAX:
                self._seen[owner] = _Seen(beat, now, now)
            return False
        if seen.beat != beat or now - seen.last > self.lease // 2:
            seen.beat, seen.since = beat, now
        seen.last = now
        return now - seen.since >= self.lease

    def forget_others(self, owners: set[str]) -> None:
        """Forget the beats of all gateways except these."""
        for owner in self._seen.keys() - owners:
            del self._seen[owner]


__all__ = ["OwnerWatch"]
