"""Send a prompt where its beginning was computed before.

The engines keep the KV blocks of past prompts; a turn that comes back to the replica of the turn
before it skips most of its prefill. The key is *the first block that is not common property*. A
system prompt shared by everyone is cached everywhere and says nothing about where to go, so blocks
that open a large part of recent prompts are passed over: large means more than ``split_share`` of
one replica's fair part of the traffic, so that a popular application is spread over several homes
and a small one stays together on one. The first block after those is the same for all later turns
of a conversation, however long it grows; a key taken at the end of the prompt would change with
every turn. Keys go to homes by rendezvous, so gateways agree without sharing anything, as far as
they see the same mix of traffic. A prompt with nothing of its own goes by the inner policy.

What is saved at home is weighed against the wait there. At home the blocks of the conversation's
last turn need no computing; elsewhere they do. So a prompt leaves its home only where the prompts
that wait there for their first token are longer than those elsewhere by more than it would save;
one with nothing cached goes wherever least waits. Arrivals in bursts make that difference.

Rejected: a radix tree of every prompt per replica. It finds the longest match, but it is large, it
is wrong in every gateway that did not route the earlier turns, and it has to guess evictions.
A fixed depth: one shorter than the system prompt sends the whole world to one replica.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from holdfast.core.request.routing.policy import Choice, RoutingPolicy
from holdfast.core.request.routing.rendezvous import LoadBound, Rendezvous
from holdfast.core.types import Request, require

if TYPE_CHECKING:
    from holdfast.core.request.candidate import Candidate

_COMMON_MIN: Final = 16  # prompts: fewer with one beginning may be a single conversation


@dataclass(slots=True, frozen=True)
class PrefixAffinityConfig:
    """How many blocks of a prompt are read, and how much load its home replica may have.

    Checked when built: raises ``ConfigError``.
    """

    load_factor: float = 1.25  # of the mean load: more is too much for a prompt never seen
    return_factor: float = 2.0  # of the mean load: more is too much even for a cached beginning
    slack: float = 4.0  # requests per weight that are never too much: any engine batches these
    split_share: float = 0.5  # of a replica's fair part of the traffic: a larger prefix is split
    depth_max: int = 64  # blocks looked at; a prompt common beyond goes by the inner policy
    window: int = 2048  # prompts after which counts of blocks are halved

    def __post_init__(self) -> None:
        self.bound().check("prefix_affinity")
        field, fix = "prefix_affinity.split_share", "use a positive share; 0.5 splits early"
        require(self.split_share > 0, field, f"is {self.split_share}", fix)
        field, fix = "prefix_affinity.depth_max", "use at least 1 block"
        require(self.depth_max >= 1, field, f"is {self.depth_max}", fix)
        field, fix = "prefix_affinity.window", f"use at least {2 * _COMMON_MIN} prompts"
        require(self.window >= 2 * _COMMON_MIN, field, f"is {self.window}", fix)

    def bound(self) -> LoadBound:
        """These settings as the ``LoadBound`` of a home replica."""
        return LoadBound(self.load_factor, self.return_factor, self.slack)


_DEFAULT: Final = PrefixAffinityConfig()


class PrefixAffinity:
    """Sends prompts that begin alike to the same replica, where their prefix is cached.

    Blocks that open a large part of all prompts do not count, and an overloaded home passes
    requests on. Prompts without such a prefix go by the inner policy.
    """

    __slots__ = (
        "_common",
        "_counts",
        "_depth_max",
        "_inner",
        "_lengths",
        "_rendezvous",
        "_split_share",
        "_total",
        "_unplaced",
        "_window",
        "_window_left",
    )
    name = "prefix_affinity"

    def __init__(self, inner: RoutingPolicy, config: PrefixAffinityConfig = _DEFAULT) -> None:
        self._inner = inner
        self._rendezvous = Rendezvous(config.bound())
        self._split_share = config.split_share
        self._depth_max = config.depth_max
        self._window = self._window_left = config.window
        self._total = 0  # prompts counted, halved with the counts
        self._lengths: dict[int, int] = {}  # by key: the blocks of its last prompt
        self._counts: dict[int, int] = {}  # by block; at most two per prompt of two windows
        self._common: set[int] = set()  # blocks passed over
        self._unplaced = 0

    def choose(
        self, request: Request, candidates: Sequence[Candidate], tried: Collection[str], now: int
    ) -> Choice | None:
        """The home of the prompt's first uncommon block, or the next in its ranking if busy.

        Without such a block, or with no candidate under the bound, the inner policy's choice.
        Counts the blocks of the prompt.
        """
        prefix = request.prefix
        blocks = len(prefix)
        if blocks:
            key = self._own_block(prefix, len(candidates))
            if key is not None:
                saved = self._cached_share(key, blocks) * request.prompt_tokens
                choice = self._rendezvous.pick(
                    key, candidates, tried, returning=self._counts[key] > 1, saved=saved
                )
                if choice is not None:
                    return choice
        self._unplaced += 1
        return self._inner.choose(request, candidates, tried, now)

    def _cached_share(self, key: int, blocks: int) -> float:
        """The part of a prompt that its home has, if it has kept the last one of this key."""
        known = self._lengths.get(key, 0)
        self._lengths[key] = blocks
        return known / blocks if known < blocks else 1.0

    def _own_block(self, prefix: Sequence[int], size: int) -> int | None:
        """The prompt's first block that is not common to most prompts; counts those read."""
        self._total += 1
        self._window_left -= 1
        if self._window_left < 0:
            self._halve(size)
        counts = self._counts
        common = self._common
        for block in islice(prefix, self._depth_max):
            counts[block] = count = counts.get(block, 0) + 1
            if block not in common:
                if count < _COMMON_MIN or count * size < self._split_share * self._total:
                    return block
                common.add(block)
        return None

    def _halve(self, size: int) -> None:
        """Halve all counts, so that old traffic is forgotten."""
        self._window_left = self._window
        self._total //= 2
        self._counts = {block: n // 2 for block, n in self._counts.items() if n > 1}
        floor = max(_COMMON_MIN, self._split_share * self._total / max(1, size)) / 2
        counts = self._counts
        self._lengths = {key: n for key, n in self._lengths.items() if key in counts}
        self._common = {block for block in self._common if counts.get(block, 0) >= floor}


__all__ = ["PrefixAffinity", "PrefixAffinityConfig"]
