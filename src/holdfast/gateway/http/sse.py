"""Splits a stream of bytes into server-sent events, independent of how the network cut it.

    bytes ─► feed ─► [payload, …]            chat and completions: only the data matters
    bytes ─► feed_named ─► [(name, payload)] /v1/responses: the event's name matters too

Replicas are judged by what they send, so this reader is stricter than a browser: a line that is
neither a comment nor one of the four fields of the standard means that the bytes are something else
(an error page, bare JSON, output of a broken engine), and the stream is malformed. A browser would
skip the line and wait for ever. Once malformed, a stream stays so.

Almost every piece that arrives is exactly one event on one line, and takes the first branch. Many
events in one piece take the second. Everything else (an event in two pieces, CR line ends, several
data lines) is read line by line. Rejected: one regular expression over a growing buffer,
which reads a long event again for each of its pieces.
"""

from typing import Final

_BOM: Final = b"\xef\xbb\xbf"


class MalformedStreamError(ValueError):
    """Raised when bytes are no valid event stream, or a payload no valid chunk. Quotes no bytes."""


def framed(payload: bytes, name: bytes = b"") -> bytes:
    """Return a payload as the bytes of one event, with ``name`` as its event name if given.

    Line breaks in the payload, which is JSON, become blanks.
    """
    if 10 in payload:
        payload = payload.replace(b"\n", b" ")
    if name:
        return b"event: %b\ndata: %b\n\n" % (name, payload)
    return b"data: %b\n\n" % payload


class EventSplitter:
    """Splits the bytes of one stream into server-sent events, however they were cut into pieces.

    Stricter than a browser: an unknown line, or one too long, makes the stream malformed for good.
    """

    __slots__ = (
        "_after_cr",
        "_begun",
        "_between",
        "_broken",
        "_event_bytes_max",
        "_lines",
        "_name",
        "_rest",
        "_simple_bytes_max",
        "_size",
        "_touched",
        "verbatim",
    )

    def __init__(self, event_bytes_max: int) -> None:
        self._event_bytes_max = event_bytes_max  # of one line, and of the joined data of one event
        self._simple_bytes_max = event_bytes_max + 2  # a line and the two line ends behind it
        self._between = False  # nothing is buffered and the beginning is behind us
        self._begun = False  # a byte order mark can no longer come
        self._broken = ""  # why nothing more can be read
        self._rest = bytearray()  # a line without its end; grows in place, piece by piece
        self._after_cr = False  # the last byte was CR: an LF that follows belongs to it
        self._touched = False  # a field of an unfinished event was read
        self._name = b""
        self._lines: list[bytes] = []
        self._size = 0
        self.verbatim = False  # what was fed last is one plain event and may be passed on as it is

    @property
    def pending(self) -> bool:
        """Whether part of an event is buffered: a stream that ends now was cut inside it."""
        return bool(self._rest) or self._touched

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes and return the payloads of the events that are complete now; names are dropped.

        Raises ``MalformedStreamError``. ``verbatim`` then says whether the bytes were exactly one
        plain event.
        """
        if self._between:
            payload = data[6:-2]
            # Put together again and compared: half the cost of asking for its begin and its end.
            whole = b"data: " + payload + b"\n\n" == data and len(data) <= self._simple_bytes_max
            if whole and 10 not in payload and 13 not in payload:
                self.verbatim = True
                return [payload]
            self.verbatim = False
            if 13 not in data:
                payloads = self._blocks(data)
                if payloads is not None:
                    return payloads
        self.verbatim = False
        return [payload for _, payload in self._read(data)]

    def feed_named(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """Add bytes and return (name, payload) of the events complete now; a name may be empty.

        Raises ``MalformedStreamError``.
        """
        return self._read(data)

    def _blocks(self, data: bytes) -> list[bytes] | None:
        """Whole one-line events, one after the other, or None where they are not that simple."""
        blocks = data.split(b"\n\n")
        if blocks.pop():
            return None
        for place, block in enumerate(blocks):
            if block[:6] != b"data: " or 10 in block or len(block) > self._event_bytes_max:
                return None
            blocks[place] = block[6:]
        return blocks

    def _read(self, data: bytes) -> list[tuple[bytes, bytes]]:
        if self._broken:
            raise MalformedStreamError(self._broken)
        if not self._begun:
            data = self._begin(data)
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if not data:
            self._settle()
            return []
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = data.split(b"\n")
        unfinished = lines.pop()
        if lines and self._rest:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        events: list[tuple[bytes, bytes]] = []
        for line in lines:
            if line:
                self._line(line)
            elif self._touched:
                self._dispatch(events)
        self._rest += unfinished
        if len(self._rest) > self._event_bytes_max:
            raise self._malformed("a line is too long")
        self._settle()
        return events

    def _begin(self, data: bytes) -> bytes:
        """Take a byte order mark off the very beginning; it may come in pieces."""
        data = bytes(self._rest) + data
        self._rest.clear()
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._rest += data
            return b""
        self._begun = True
        return data.removeprefix(_BOM)

    def _settle(self) -> None:
        self._between = self._begun and not (self._rest or self._touched or self._after_cr)

    def _line(self, line: bytes) -> None:
        if len(line) > self._event_bytes_max:
            raise self._malformed("a line is too long")
        field, _, value = line.partition(b":")
        if not field:
            return  # a comment: a sign of life, no part of any event
        value = value.removeprefix(b" ")
        if field == b"data":
            self._size += len(value) + 1  # the LF that joins it; bounds many empty lines as well
            if self._size - 1 > self._event_bytes_max:
                raise self._malformed("an event is too large")
            self._lines.append(value)
        elif field == b"event":
            self._name = value
        elif field not in {b"id", b"retry"}:
            raise self._malformed("a line is not a field of an event stream")
        self._touched = True

    def _dispatch(self, events: list[tuple[bytes, bytes]]) -> None:
        if self._lines:  # a name without data is no event, says the standard
            events.append((self._name, b"\n".join(self._lines)))
        self._name, self._lines, self._size, self._touched = b"", [], 0, False

    def _malformed(self, why: str) -> MalformedStreamError:
        self._broken, self._between = why, False
        self._rest.clear()  # nobody will read it
        self._lines.clear()
        return MalformedStreamError(why)


__all__ = ["EventSplitter", "MalformedStreamError", "framed"]
