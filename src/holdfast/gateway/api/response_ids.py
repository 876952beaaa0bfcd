"""Names the answers that engines keep so that a later request finds the replica that keeps them.

An engine keeps an answer of ``/v1/responses`` in its own process, under an id of its own. The
client gets another id, in which the replica is named: whichever gateway the id comes back to knows
whom to ask, and nothing is shared or stored. The id is signed with a key of the fleet, for one
tenant: nobody can name a replica, or ask for the answers of others, by making ids up.

    resp_ + base64url( 16 bytes of signature | length of replica's id | replica's id | engine's id )

Rejected: a table of ids in each gateway. It forgets with its process, and several gateways would
need a shared one.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from hmac import compare_digest
from typing import Final, NamedTuple

_PREFIX: Final = "resp_"
_SIGNATURE_BYTES: Final = 16
_REPLICA_BYTES_MAX: Final = 255  # its length is one byte
ID_CHARACTERS_MAX: Final = 1_024  # of an id of ours; engines' own have some forty


class KeptResponse(NamedTuple):
    """Where an answer is kept: the replica, and the engine's own id of the answer."""

    replica_id: str
    engine_id: str


class ResponseIds:
    """Makes and reads the ids under which clients know the answers that engines keep."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    def use(self, key: bytes) -> None:
        """Sign with another key from now on, as all gateways of the fleet do.

        Ids signed before are not known any more. An empty key changes nothing.
        """
        self._key = key or self._key

    def name(self, kept: KeptResponse, tenant: str) -> str:
        """Return the id that this tenant gets; the engine's own where that cannot be put into one.

        The same answer has the same id each time.
        """
        replica, engine = kept.replica_id.encode(), kept.engine_id.encode()
        if len(replica) > _REPLICA_BYTES_MAX:
            return kept.engine_id
        told = bytes((len(replica),)) + replica + engine
        signed = self._signature(told, tenant) + told
        name = _PREFIX + urlsafe_b64encode(signed).rstrip(b"=").decode()
        return name if len(name) <= ID_CHARACTERS_MAX else kept.engine_id

    def read(self, name: str, tenant: str) -> KeptResponse | None:
        """Return where the answer of this id is kept; ``None``: not an id of this tenant's."""
        text = name.removeprefix(_PREFIX)
        if len(name) > ID_CHARACTERS_MAX or text == name or not text.isascii():
            return None
        try:
            signed = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except ValueError:
            return None
        signature, told = signed[:_SIGNATURE_BYTES], signed[_SIGNATURE_BYTES:]
        if not told or not compare_digest(signature, self._signature(told, tenant)):
            return None
        end = 1 + told[0]
        return KeptResponse(told[1:end].decode(), told[end:].decode())

    def _signature(self, told: bytes, tenant: str) -> bytes:
        digest = blake2b(key=self._key[:64], digest_size=_SIGNATURE_BYTES, person=b"holdfast-resp")
        name = tenant.encode()
        digest.update(b"%d:%b" % (len(name), name))
        digest.update(told)
        return digest.digest()


__all__ = ["ID_CHARACTERS_MAX", "KeptResponse", "ResponseIds"]
