"""Reports requests during which replicas died, and refuses requests that control has blocked.

    connection died under a request that was never answered
        ─► (replica, fingerprint) ─► control ─► block ─► refused here

A fingerprint is a keyed hash of the request as it was read, so the same request has the same
fingerprint at every gateway, and without the key it reveals nothing. The key comes from control;
there is no fingerprint without it. The hash covers what the client asked and not the bytes for one
engine: the check comes before a replica is chosen, and engines differ in what is added.

Replicas die for other reasons, too, while popular requests run on them: a request that was answered
in the end, by any replica, is not reported.

A request with a nonce in it has another fingerprint each time it is sent. So its marks are told
beside it (``request_sketch``), and a request with three of four marks blocked is refused like one
with its fingerprint blocked. Requests of one program have much text in common: a mark that an
answered request has, too, is of that text and is neither told nor refused. For that a few answered
requests a second are remembered by their marks.

Nothing is hashed for most requests. A hash is computed when a connection died, for five answered
requests a second, and for every request while a fingerprint is blocked.
"""

from collections import deque
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from holdfast.core.types import MILLISECOND, SECOND, nanos
from holdfast.gateway.api.bodies import ParsedRequest
from holdfast.gateway.telemetry.request_sketch import MARKS_ALIKE, marks_of

DIED_MAX: Final = 64  # kept for control; when more die at once, the requests are not to blame
BLOCKED_MAX: Final = 1_024  # control blocks fewer
ANSWERED_MAX: Final = 512  # requests whose marks are remembered, the newest
_ANSWERED_EVERY: Final = 200 * MILLISECOND  # up to 0.3 ms of hashing each
_BLOCK_S_MAX: Final = 86_400.0
_KEY_BYTES_MAX: Final = 64  # of blake2b
_HOLD: Final = 10 * SECOND  # control needs two: it hears once a second, and tells at once


class DeadlyRequests:
    """Remembers under which requests replicas died, and which requests control has blocked.

    Requests are known by keyed hashes only: a fingerprint of the whole, and marks of its words.
    Without control's key nothing is recorded or refused.
    """

    __slots__ = (
        "_answered",
        "_died",
        "_harmless",
        "_held",
        "_later",
        "_secret",
        "answered_from",
        "blocked",
    )

    def __init__(self) -> None:
        self._secret = b""
        self._died: deque[tuple[str, list[str], int]] = deque(maxlen=DIED_MAX)
        self._later: deque[tuple[str, list[str], int]] = deque(maxlen=DIED_MAX)
        self.blocked: dict[str, int] = {}  # until when, by fingerprint or mark
        self._held: dict[str, int] = {}  # of these, those that control has not spoken of yet
        self._answered: deque[list[str]] = deque()  # marks of answered requests, the oldest first
        self._harmless: dict[str, int] = {}  # how often each of these marks is among them
        self.answered_from = 0  # no further request is remembered before this time

    def use(self, secret: bytes) -> None:
        """Set control's key for the hashes; a changed one clears blocks, deaths and marks."""
        secret = secret[:_KEY_BYTES_MAX]
        if secret != self._secret:
            self._secret = secret
            self._died.clear()
            self._later.clear()
            self.blocked.clear()
            self._held.clear()
            self._answered.clear()
            self._harmless.clear()

    def block(self, fingerprints: Iterable[tuple[str, float]], now: int) -> None:
        """Replace control's blocked fingerprints and marks by these, each with its seconds left.

        What ``hold`` blocked here stays for its own time. ``now`` in ns.
        """
        lasting = [(name, left_s) for name, left_s in fingerprints if left_s > 0]
        self._held = {name: until for name, until in self._held.items() if until > now}
        self.blocked = self._held | {
            name: now + nanos(min(left_s, _BLOCK_S_MAX)) for name, left_s in lasting[:BLOCKED_MAX]
        }

    def hold(self, ask: ParsedRequest, now: int) -> None:
        """Block a request in this gateway for 10 s, because two replicas died under it.

        Control decides meanwhile. Nothing without control's key.
        """
        if self._secret and len(self._held) < BLOCKED_MAX:
            until = now + _HOLD
            self._held.update(dict.fromkeys(self._names(ask), until))
            self.blocked.update(self._held)

    def refuses(self, ask: ParsedRequest, now: int) -> bool:
        """Whether this request is blocked now: by its fingerprint, or by three of its four marks.

        Marks that answered requests have, too, do not count. Drops expired blocks; call it only
        while ``blocked`` is not empty, as it hashes the body.
        """
        if not self._secret:
            return False
        for name in [name for name, until in self.blocked.items() if now >= until]:
            del self.blocked[name]
        if not self.blocked:
            return False
        if self._fingerprint(ask) in self.blocked:
            return True
        alike = [mark for mark in self._marks(ask) if mark in self.blocked]
        return sum(mark not in self._harmless for mark in alike) >= MARKS_ALIKE

    def saw(self, replica_id: str, ask: ParsedRequest, at: int, *, later: bool = False) -> None:
        """Record that the connection to this replica died under this request, at ``at`` (ns).

        ``later``: it had died on another replica before. Such a death is returned one ``take``
        later, as control counts deaths that come together as one event.
        """
        if self._secret:
            (self._later if later else self._died).append((replica_id, self._names(ask), at))

    def answered(self, ask: ParsedRequest, now: int) -> None:
        """Remember the marks of an answered request as harmless; at most one request every 200 ms.

        The newest 512 are remembered.
        """
        if now < self.answered_from or not self._secret:
            return
        self.answered_from = now + _ANSWERED_EVERY
        marks = self._marks(ask)
        self._answered.append(marks)
        for mark in marks:
            self._harmless[mark] = self._harmless.get(mark, 0) + 1
        if len(self._answered) > ANSWERED_MAX:
            for mark in self._answered.popleft():
                self._harmless[mark] -= 1
                if not self._harmless[mark]:
                    del self._harmless[mark]

    def take(self) -> list[tuple[str, str, int]]:
        """Return and clear the recorded deaths, as (replica id, fingerprint or mark, when in ns).

        A death gives one entry for its fingerprint and one for each mark.
        """
        died = [(replica_id, name, at) for replica_id, names, at in self._died for name in names]
        self._died.clear()
        self._died.extend(self._later)
        self._later.clear()
        return died

    def _names(self, ask: ParsedRequest) -> list[str]:
        """Its fingerprint, and the marks that tell it from answered requests."""
        marks = [mark for mark in self._marks(ask) if mark not in self._harmless]
        return [self._fingerprint(ask), *(marks if len(marks) >= MARKS_ALIKE else ())]

    def _marks(self, ask: ParsedRequest) -> list[str]:
        return marks_of(ask.body, f"{ask.api} {ask.model}", self._secret)

    def _fingerprint(self, ask: ParsedRequest) -> str:
        digest = blake2b(f"{ask.api} {ask.model}\n".encode(), digest_size=16, key=self._secret)
        digest.update(ask.body)
        return digest.hexdigest()


__all__ = ["ANSWERED_MAX", "BLOCKED_MAX", "DIED_MAX", "DeadlyRequests"]
