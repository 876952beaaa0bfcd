"""``Idempotency-Key`` on uploads and new batches: one key, one file or batch.

The key is kept with the record of what it made, in one transaction: after a crash both are there or
none is. A second caller with the same request gets what the first one made; one with another
request is refused (422). Two at once take turns. Keys are kept as digests, for a day.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Final

from starlette.requests import Request

from holdfast.batch.api_errors import ApiRefusalError
from holdfast.storage.batch_records import BatchRecords, CreationKey

HEADER: Final = "idempotency-key"
KEEP_S: Final = 86_400  # as the answers of other keyed requests are kept
_sane: Final = re.compile(r"[!-~]{1,255}").fullmatch


class CreationKeys:
    """The keys of uploads and of new batches."""

    def __init__(self, records: BatchRecords, wall: Callable[[], float] = time.time) -> None:
        self._records = records
        self._wall = wall
        self._turns: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}  # with how many want it

    @staticmethod
    def name_of(request: Request) -> str:
        """The name under which a request's key is kept; empty: it has none."""
        key = request.headers.get(HEADER)
        if key is None:
            return ""
        if _sane(key) is None:
            message = "Send it once, with 1 to 255 visible ASCII characters, such as a UUID."
            raise ApiRefusalError(400, "invalid_idempotency_key", message, "Idempotency-Key")
        path = request.url.path.encode()
        return blake2b(path + b"\0" + key.encode(), digest_size=20).hexdigest()

    @asynccontextmanager
    async def turn(self, tenant: str, name: str) -> AsyncIterator[None]:
        """Let one caller at a time create under a key."""
        if not name:
            yield
            return
        lock, wanted = self._turns.get((tenant, name), (asyncio.Lock(), 0))
        self._turns[tenant, name] = lock, wanted + 1
        try:
            async with lock:
                yield
        finally:
            lock, wanted = self._turns.pop((tenant, name))
            if wanted > 1:
                self._turns[tenant, name] = lock, wanted - 1

    async def made(self, tenant: str, name: str, fingerprint: str) -> str:
        """The id of what this key made before; empty: nothing. Raises 422 for another request."""
        if not name:
            return ""
        found = await asyncio.to_thread(self._records.created, tenant, name)
        if found is None or found.at < self._wall() - KEEP_S:
            return ""
        if found.fingerprint != fingerprint:
            message = "This Idempotency-Key was used with another request. Use a new key."
            raise ApiRefusalError(422, "idempotency_key_reused", message, "Idempotency-Key")
        return found.made

    def new(self, tenant: str, name: str, fingerprint: str, made: str) -> CreationKey | None:
        """What to store together with a new file or batch; None: it has no key."""
        return CreationKey(tenant, name, fingerprint, made, int(self._wall())) if name else None


def gone() -> ApiRefusalError:
    """The 409 for a key whose file or batch was deleted or has expired."""
    message = "What this Idempotency-Key created is not there any more. Use a new key."
    return ApiRefusalError(409, "idempotency_answer_gone", message, "Idempotency-Key")


def fingerprint_of(*parts: str | bytes) -> str:
    """The digest by which another request under the same key is told."""
    digest = blake2b(digest_size=20)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"%d:%b" % (len(data), data))
    return digest.hexdigest()


__all__ = ["KEEP_S", "CreationKeys", "fingerprint_of", "gone"]
