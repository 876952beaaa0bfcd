"""Marks of a request that stay the same when a nonce is added to it.

Whoever repeats a request that ends replicas need not send the same bytes: a counter, a time or a
random word in the prompt makes it another body. So a request has marks beside its fingerprint, made
of the words of its text:

    words without digits of the first and last 1,000 bytes, names of members left out
        ─► groups of three words; single ones where there are few
        ─► four keyed orders of all groups: the first group of each order is a mark (MinHash)

A word more changes each mark with a small probability, an unrelated text changes all of them. Most
nonces have digits and change none. Two requests are taken for the same where three of four marks
agree. The key comes from control: nobody outside can search for a text with the same marks.

Rejected: one hash of the words in order. A random word anywhere would change it. Rejected: the
parameters as marks. Most requests of a fleet have the same ones.
"""

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final
from zlib import crc32

MARKS: Final = 4
MARKS_ALIKE: Final = 3  # of them: texts that share half of their groups have that in 3 of 10 cases
PREFIX: Final = "~"  # of a mark, so that it is never taken for a fingerprint
_EDGE_BYTES: Final = 1_024  # of either end; a nonce between them changes nothing
_FEW_WORDS: Final = 12  # below it groups of three would all contain the nonce, or nearly
_GROUP: Final = 3  # words
_PRIME: Final = (1 << 61) - 1

_ESCAPES: Final = re.compile(rb"\\(?:u[0-9a-fA-F]{4}|.)", re.DOTALL)
_NAMES: Final = re.compile(rb'"[^"]*":')
_WORDS: Final = re.compile(rb"[0-9a-z_\x80-\xff]+")
_DIGITS: Final = frozenset(b"0123456789")
_ROLES: Final = frozenset(
    {*(b"user", b"system", b"assistant", b"developer", b"tool"), *(b"text", b"true", b"false")}
)


def marks_of(body: bytes, what: str, key: bytes) -> list[str]:
    """Return four keyed hashes of a request's words, most of which survive small changes.

    Empty if the body has no words. Two requests are alike if three marks agree. ``what``: API and
    model, so that equal texts to others have other marks. Only both ends of a long body count.
    """
    edges = body
    if len(body) > 2 * _EDGE_BYTES:
        edges = body[:_EDGE_BYTES] + b" " + body[-_EDGE_BYTES:]
    text = _NAMES.sub(b" ", _ESCAPES.sub(b" ", edges)).lower()
    words = [
        word for word in _WORDS.findall(text) if word not in _ROLES and _DIGITS.isdisjoint(word)
    ]
    if not words:
        return []
    groups = set(words)
    if len(words) >= _FEW_WORDS:
        ends = range(_GROUP, len(words) + 1)
        groups = {b" ".join(words[end - _GROUP : end]) for end in ends}
    return list(_least(map(crc32, groups), what, key))


def _least(groups: Iterable[int], what: str, key: bytes) -> Iterable[str]:
    """The first group of each of several keyed orders, hashed once more."""
    numbers = list(groups)
    orders = blake2b(b"orders", digest_size=16 * MARKS, key=key).digest()
    for index in range(MARKS):
        factor = int.from_bytes(orders[16 * index : 16 * index + 8], "big") % _PRIME or 1
        offset = int.from_bytes(orders[16 * index + 8 : 16 * index + 16], "big")
        least = min([(number * factor + offset) % _PRIME for number in numbers])
        mark = f"{index} {least} {what}".encode()
        yield PREFIX + blake2b(mark, digest_size=15, key=key).hexdigest()


__all__ = ["MARKS", "MARKS_ALIKE", "PREFIX", "marks_of"]
