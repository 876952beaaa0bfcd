"""Reports requests during which replicas died, and refuses requests that control has blocked.

    connection died under a request that was never answered
        ─► (replica, fingerprint) ─► control ─► block ─► refused here

A fingerprint is a keyed hash of the request as it was read, so the same request has the same
fingerprint at every gateway, and without the key it reveals nothing. The key comes from control;
there is no fingerprint without it. The hash covers what the client asked and not the bytes for one
engine: the check comes before a replica is chosen, and engines differ in what is added.

Replicas die for other reasons, too, while popular requests run on them: a request that was answered
in the end, by any replica, is not reported.

Nothing is hashed for ordinary requests. A hash is computed only when a connection died, and for
every request while a fingerprint is blocked.
"""

from collections import deque
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from holdfast.core.types import nanos
from holdfast.gateway.api.bodies import ParsedRequest

DIED_MAX: Final = 64  # kept for control; when more die at once, the requests are not to blame
BLOCKED_MAX: Final = 1_024  # control blocks fewer
_BLOCK_S_MAX: Final = 86_400.0
_KEY_BYTES_MAX: Final = 64  # of blake2b


class DeadlyRequests:
    """Remembers which requests ran on replicas that died, and which fingerprints are blocked."""

    __slots__ = ("_died", "_secret", "blocked")

    def __init__(self) -> None:
        self._secret = b""
        self._died: deque[tuple[str, str]] = deque(maxlen=DIED_MAX)
        self.blocked: dict[str, int] = {}  # until when, by fingerprint

    def use(self, secret: bytes) -> None:
        """Set the key of fingerprints.

        A changed key clears all that was hashed with the old one.
        """
        secret = secret[:_KEY_BYTES_MAX]
        if secret != self._secret:
            self._secret = secret
            self._died.clear()
            self.blocked.clear()

    def block(self, fingerprints: Iterable[tuple[str, float]], now: int) -> None:
        """Replace the blocked fingerprints by these, each with the seconds it stays blocked."""
        lasting = [(name, left_s) for name, left_s in fingerprints if left_s > 0]
        self.blocked = {
            name: now + nanos(min(left_s, _BLOCK_S_MAX)) for name, left_s in lasting[:BLOCKED_MAX]
        }

    def refuses(self, ask: ParsedRequest, now: int) -> bool:
        """Whether this request is blocked now. Call it only while ``blocked`` is not empty."""
        if not self._secret:
            return False
        name = self._fingerprint(ask)
        until = self.blocked.get(name)
        if until is None:
            return False
        if now < until:
            return True
        del self.blocked[name]
        return False

    def saw(self, replica_id: str, ask: ParsedRequest) -> None:
        """Record that the connection to this replica died during this request."""
        if self._secret:
            self._died.append((replica_id, self._fingerprint(ask)))

    def take(self) -> list[tuple[str, str]]:
        """Return and clear the recorded deaths, as (replica id, fingerprint)."""
        died = list(self._died)
        self._died.clear()
        return died

    def _fingerprint(self, ask: ParsedRequest) -> str:
        digest = blake2b(f"{ask.api} {ask.model}\n".encode(), digest_size=16, key=self._secret)
        digest.update(ask.body)
        return digest.hexdigest()


__all__ = ["BLOCKED_MAX", "DIED_MAX", "DeadlyRequests"]
