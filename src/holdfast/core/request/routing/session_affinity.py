"""Send a session where it was before, for what an engine keeps beside its prefix cache.

A session named by the client (a header, a user field) is its own key: no guessing from prompts, and
it holds for stateful responses and adapters as well. Its home comes from rendezvous hashing, so all
gateways agree and nothing is stored per session; only sessions that had to move because their home
was too loaded are remembered, a bounded number of them. A request without a session goes by the
inner policy.

Rejected: a table of session to replica. It grows with every visitor, differs between gateways, and
is lost with the process; and a cookie, which API clients do not send back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from zlib import crc32

from holdfast.core.request.routing.policy import Choice, RoutingPolicy
from holdfast.core.request.routing.rendezvous import LoadBound, Rendezvous
from holdfast.core.types import Request

if TYPE_CHECKING:
    from holdfast.core.request.candidate import Candidate


@dataclass(slots=True, frozen=True)
class SessionAffinityConfig:
    """How much load the home replica of a session may have.

    Checked when built: raises ``ConfigError``.
    """

    load_factor: float = (
        2.0  # of the mean load: a session asked to stay, only clear excess moves it
    )
    slack: float = 4.0  # requests per weight that are never too much: any engine batches these

    def __post_init__(self) -> None:
        self.bound().check("session_affinity")

    def bound(self) -> LoadBound:
        """These settings as a ``LoadBound``: the same for new and known sessions."""
        return LoadBound(self.load_factor, self.load_factor, self.slack)


_DEFAULT: Final = SessionAffinityConfig()


class SessionAffinity:
    """Sends all requests of one session to the same replica, while its load allows.

    Requests without a session go by the inner policy.
    """

    __slots__ = ("_inner", "_rendezvous", "_unplaced")
    name = "session_affinity"

    def __init__(self, inner: RoutingPolicy, config: SessionAffinityConfig = _DEFAULT) -> None:
        self._inner = inner
        self._rendezvous = Rendezvous(config.bound())
        self._unplaced = 0

    def choose(
        self, request: Request, candidates: Sequence[Candidate], tried: Collection[str], now: int
    ) -> Choice | None:
        """The session's home, or the next in its ranking when that is busy.

        Without a session, or with no candidate under the bound, the inner policy's choice.
        """
        session = request.session
        if session:
            # A checksum will do: who crafts colliding names meets the load bound, not a victim.
            key = crc32(session.encode())
            choice = self._rendezvous.pick(key, candidates, tried, returning=True)
            if choice is not None:
                return choice
        self._unplaced += 1
        return self._inner.choose(request, candidates, tried, now)


__all__ = ["SessionAffinity", "SessionAffinityConfig"]
