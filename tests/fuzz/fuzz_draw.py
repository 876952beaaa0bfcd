"""How a case draws its choices: few shrinkable ones for its shape, one seed for the bulk.

Hypothesis sees each choice made here and makes failing cases smaller by lowering them: so the
dullest option always comes first, and "no" is the lowest of a chance. Places to cut and bytes of
noise are drawn by the hundred and mean nothing by themselves; they come from one drawn seed.
"""

from collections.abc import Sequence
from random import Random
from typing import Final, TypeVar

Option = TypeVar("Option")

_PIECES_MAX: Final = 400  # of one text; more would only take longer


class Draw:
    """The choices of one case."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def chance(self, one_in: int) -> bool:
        """Rarely true."""
        return self._rng.randrange(one_in) == one_in - 1

    def upto(self, most: int) -> int:
        return self._rng.randrange(most + 1)

    def pick(self, options: Sequence[Option]) -> Option:
        return options[self._rng.randrange(len(options))]

    def noise(self) -> Random:
        """A source of what need not be made smaller."""
        return Random(self._rng.randrange(1 << 32))

    def cut(self, data: bytes) -> list[bytes]:
        """The same bytes in pieces, as a network might deliver them."""
        how = self._rng.randrange(5)
        if how == 0 or len(data) < 2:
            return [data] if data else []
        if how == 1 and len(data) <= _PIECES_MAX:
            return [data[at : at + 1] for at in range(len(data))]
        noise = self.noise()
        count = min(len(data) - 1, (1, 1, 2, 5, 40)[how])
        places = sorted(noise.sample(range(1, len(data)), count))
        return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]

    def damage(self, data: bytes, times: int = 1) -> bytes:
        """The bytes with something done to them at random places."""
        noise = self.noise()
        for _ in range(times):
            at = noise.randrange(len(data) + 1)
            to = min(len(data), at + noise.randrange(1, 12))
            put = noise.choice(_INSERTED)
            match noise.randrange(6):
                case 0:
                    data = data[:at] + put + data[at:]
                case 1:
                    data = data[:at] + put + data[to:]
                case 2:
                    data = data[:at] + data[to:]
                case 3:
                    data = data[:to] + data[at:]
                case 4:
                    data = data[:at] + bytes([noise.randrange(256)]) + data[at + 1 :]
                case _:
                    data = data[:at]
        return data


_INSERTED: Final = (
    b"\r\n",
    b"\n",
    b"\r",
    b"\n\n",
    b"\r\n\r\n",
    b"\x00",
    b" ",
    b"\t",
    b":",
    b";",
    b",",
    b"0",
    b"0\r\n\r\n",
    b"-1",
    b"\xff",
    b"\xc3\x28",
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b"data: ",
    b"data: [DONE]\n\n",
    b"null",
    b"NaN",
    b"1e999",
    b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
)

__all__ = ["Draw"]
