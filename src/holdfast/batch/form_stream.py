"""Reads an upload form (multipart/form-data) piece by piece, so that a file is never in memory.

    feed(bytes) ─► [FormField("purpose", "batch"), FileBegun("in.jsonl"), FileData(b"…"), …]

Plain fields are short and kept whole; the one file is passed on as it comes. What is held back is
at most one boundary's length, because a boundary may be cut by two reads. Before the first boundary
and behind the last one stands a line break at most: bytes that belong to nothing would be read, and
count for nobody.

Rejected: python-multipart, which Starlette would use: it spools the file to a second place on disk
before the handler sees a byte, and accepts forms that other parsers read differently.
"""

import re
from dataclasses import dataclass
from typing import Final

from holdfast.batch.api_errors import ApiRefusalError, invalid

FIELD_BYTES_MAX: Final = 4_096  # a purpose or a number; a file goes another way
FIELDS_MAX: Final = 16  # SDKs send two to four
_HEADER_BYTES_MAX: Final = 4_096
_content_type: Final = re.compile(
    r"multipart/form-data\s*;\s*boundary=(?:\"([^\"\r\n]{1,70})\"|([0-9A-Za-z'()+_,./:=?-]{1,70}))",
    re.IGNORECASE,
)
_name: Final = re.compile(rb';\s*name="([^"\r\n]{1,128})"', re.IGNORECASE)
_filename: Final = re.compile(rb';\s*filename="((?:[^"\\\r\n]|\\.){0,512})"', re.IGNORECASE)


@dataclass(slots=True, frozen=True)
class FormField:
    """A plain field of the form, whole."""

    name: str
    value: str


@dataclass(slots=True, frozen=True)
class FileBegun:
    """The form's file begins: its field and the name that the client gave it."""

    field: str
    filename: str


@dataclass(slots=True, frozen=True)
class FileData:
    """A piece of the file."""

    data: bytes


@dataclass(slots=True, frozen=True)
class FileEnded:
    """The file is complete."""


FormEvent = FormField | FileBegun | FileData | FileEnded


class FormStream:
    """Takes one form apart as its bytes come; raises ``ApiRefusalError`` where it is malformed."""

    def __init__(self, content_type: str) -> None:
        match = _content_type.match(content_type)
        if match is None:
            message = "Send the file as multipart/form-data with a boundary."
            raise ApiRefusalError(415, "unsupported_media_type", message)
        self._mark = b"\r\n--" + (match[1] or match[2]).encode()
        self._held = b"\r\n"  # the first boundary may stand at the very beginning
        self._name: str | None = None  # of the part that is being read
        self._is_file = False
        self._in_head = False
        self._opened = False
        self._value = b""
        self._fields = 0
        self._files = 0
        self.complete = False  # the last boundary was seen

    def feed(self, data: bytes) -> list[FormEvent]:
        """Take the next bytes; return what they complete."""
        self._held += data
        events: list[FormEvent] = []
        while not self.complete and self._step(events):
            pass
        if self.complete and not b"\r\n".startswith(self._held):
            raise invalid("The form is malformed: bytes follow its last boundary.", "file")
        return events

    def _step(self, events: list[FormEvent]) -> bool:
        """Take one piece off what is held; False when more bytes must come."""
        if self._in_head:
            return self._take_head(events)
        at = self._held.find(self._mark)
        if at < 0:
            keep = len(self._mark) + 3
            if len(self._held) > keep:
                self._take_content(self._held[:-keep], events)
                self._held = self._held[-keep:]
            return False
        after = at + len(self._mark)
        tail = self._held[after : after + 2]
        if len(tail) < 2:
            return False
        if tail not in {b"\r\n", b"--"}:
            raise invalid("The form is malformed: bytes follow a boundary.", "file")
        self._take_content(self._held[:at], events)
        self._end_part(events)
        self._held = self._held[after + 2 :]
        self.complete = tail == b"--"
        self._in_head = not self.complete
        return True

    def _take_head(self, events: list[FormEvent]) -> bool:
        end = self._held.find(b"\r\n\r\n", 0, _HEADER_BYTES_MAX)
        if end < 0:
            if len(self._held) >= _HEADER_BYTES_MAX:
                raise invalid("The form is malformed: a part has no end of its headers.", "file")
            return False
        head, self._held = self._held[:end], self._held[end + 4 :]
        name = _name.search(head)
        if name is None:
            raise invalid("The form is malformed: a part has no name.", "file")
        self._in_head = False
        self._opened = True
        self._name = name[1].decode("utf-8", "replace")
        self._value = b""
        filename = _filename.search(head)
        self._is_file = filename is not None
        self._fields += 1
        if self._fields > FIELDS_MAX:
            raise invalid(f"The form has more than {FIELDS_MAX} fields.")
        if filename is not None:
            self._files += 1
            if self._files > 1:
                raise invalid("Send one file in a request.", "file")
            events.append(FileBegun(self._name, filename[1].decode("utf-8", "replace")))
        return True

    def _take_content(self, data: bytes, events: list[FormEvent]) -> None:
        if not data:
            return
        if not self._opened:
            if data != b"\r\n":
                raise invalid("The form is malformed: bytes precede the first boundary.", "file")
            return
        if self._is_file:
            events.append(FileData(data))
            return
        self._value += data
        if len(self._value) > FIELD_BYTES_MAX:
            raise invalid(f"A field has more than {FIELD_BYTES_MAX} bytes.", self._name)

    def _end_part(self, events: list[FormEvent]) -> None:
        if self._name is None:
            return
        if self._is_file:
            events.append(FileEnded())
        else:
            events.append(FormField(self._name, self._value.decode("utf-8", "replace")))
        self._name = None
        self._opened = False


__all__ = ["FileBegun", "FileData", "FileEnded", "FormEvent", "FormField", "FormStream"]
