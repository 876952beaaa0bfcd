"""Gives batch work to the replica that has most of it, so that people find the others free.

A prompt that is read in the same step as a person's, or just before, delays the first token of that
answer. Spread over all replicas, batch work delays everybody a little and the unlucky a lot; packed
onto few, it leaves the others as if it were not there, and people's own policy (the less loaded of
two) leads them away from the packed ones. Rejected: the fullest replica by all its requests. Batch
work would follow people onto theirs.

Used with the default policy only: a policy that looks for a prefix or a session has a better reason
to choose than we have. Replicas without a known limit are left out: the first would get all.
"""

from collections.abc import Collection, Sequence
from typing import Final

from holdfast.core.request.candidate import UNLIMITED, Candidate
from holdfast.core.request.routing.policy import Choice

WELL_SHARE: Final = 0.5  # a suspect has a tenth; one that came back a minute ago has all
PACKED: Final = "batch: with other batch work"


def pack(candidates: Sequence[Candidate], tried: Collection[str]) -> Choice | None:
    """Choose for batch work the candidate with most batch work, then fewest interactive requests.

    It must have room, a known limit, at least half of its health share and not be in ``tried``
    (ids). ``None`` where no candidate qualifies.
    """
    chosen: Candidate | None = None
    most = fewest = 0
    for candidate in candidates:
        limit, inflight = candidate.limit, candidate.inflight
        if limit >= UNLIMITED or inflight >= limit or candidate.share < WELL_SHARE:
            continue
        batch = candidate.batch_inflight
        people = inflight - batch
        better = chosen is None or batch > most or (batch == most and people < fewest)
        if better and candidate.id not in tried:
            chosen, most, fewest = candidate, batch, people
    return None if chosen is None else (chosen, PACKED)


__all__ = ["PACKED", "pack"]
