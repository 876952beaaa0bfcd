"""Recognises a message head that was parsed before, so that it need not be parsed again.

Clients that keep their connection send the same head over and over, and so do engines with their
answers; only the stated length differs. Parsing it again, line by line, is one of the most
expensive things a gateway does for a short request. So a head that the parser accepted is
remembered as two byte strings, before the length and after it. Data that equal both, byte for byte,
with a plain number between, are that head again, and the parser would give the same result.

This holds only where a head begins. The caller must know that the parser stands at the beginning of
a message, and must count the body itself, because the parser sees neither head nor body.

Only the last head is remembered. Where heads always differ (a trace id, a request number), learning
is useless: after 8 heads that never came again, only one in 64 is learned.
"""

from typing import Final, Generic, TypeVar

Said = TypeVar("Said")

LENGTH_SPARE: Final = 32  # bytes below a limit, so that a longer length does not exceed it

_END: Final = b"\r\n\r\n"
_NAME: Final = b"\r\ncontent-length:"
_CR: Final = b"\r"
_BLANKS: Final = b" \t"
_NOTHING: Final = b"\n"  # begins no head
_DIGITS_MAX: Final = 12  # of a length; longer ones are for the parser to judge
_HEAD_BYTES_MAX: Final = 4_096  # of one that is remembered; every connection may hold one
_LESSONS_MAX: Final = 8  # of no use, one after the other
_LESSONS_APART: Final = 64  # heads, from then on


class HeadCache(Generic[Said]):
    """Remembers the last message head, except its content-length, and what the parser made of it.

    One per client connection, or per replica for its responses.
    """

    __slots__ = (
        "_after",
        "_before",
        "_begin",
        "_end_max",
        "_hits",
        "_useless",
        "length",
        "said",
        "stated",
    )

    def __init__(self) -> None:
        self._before = self._after = _NOTHING
        self._begin = self._end_max = 0
        self._hits = 0  # since the last lesson
        self._useless = 0  # lessons, and then heads, since one was known again
        self.said: Said | None = None  # what the parser made of it
        self.length = b""  # as it stands in the data that were compared last
        self.stated = 0  # the same as a number

    def recall(self, data: bytes) -> int:
        """Return where the body begins if the data begin with the remembered head, else 0.

        Sets ``length`` and ``stated`` to the content-length found; ``said`` is what was learned.
        """
        if not data.startswith(self._before):
            return 0
        begin = self._begin
        end = data.find(_CR, begin, self._end_max)
        if end < 0 or not data.startswith(self._after, end):
            return 0
        digits = data[begin:end]
        if not digits.isdigit():  # of bytes: 0 to 9 only; no sign, blank or underscore
            return 0
        self._hits += 1
        self.length = digits
        self.stated = int(digits)
        return end + len(self._after)

    def learn(self, head: bytes, said: Said) -> None:
        """Remember a head that the parser accepted, with ``said``, in place of the last one.

        Ignored if it is over 4 KiB or has not exactly one content-length, and mostly where heads
        never came again.
        """
        if len(head) > _HEAD_BYTES_MAX:
            return
        if self._hits:
            self._hits = self._useless = 0
        self._useless += 1
        if self._useless > _LESSONS_MAX and self._useless % _LESSONS_APART:
            return
        lower = head.lower()
        name = lower.find(_NAME)
        if name < 0 or lower.find(_NAME, name + 1) >= 0:
            return
        begin = name + len(_NAME)
        while head[begin] in _BLANKS:
            begin += 1
        self._before = head[:begin]
        self._after = head[head.find(_CR, begin) :]
        self._begin = begin
        self._end_max = begin + _DIGITS_MAX + 1
        self.said = said


def end_of_head(data: bytes) -> int:
    """Return where the body begins in data that begin with a complete head.

    The parser must have accepted the head: it then ends its lines in CR LF, and none of them is
    empty.
    """
    return data.find(_END) + len(_END)


__all__ = ["LENGTH_SPARE", "HeadCache", "end_of_head"]
