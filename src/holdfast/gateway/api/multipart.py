"""Parses multipart/form-data bodies under strict rules, and writes them anew for the engine.

A form, such as /v1/audio/transcriptions takes, is never passed on as it came. Parsers differ in
what they make of a second name, a folded header or bytes before the first boundary, and if an
engine read another model out of a form than the gateway did, it would serve a model that the tenant
may not use. So a form is taken apart under narrow rules, and what goes out is put together from the
parts.

The contents stay views of the body that came in: a file of 30 MB is copied once, when it is
written. The client's boundary is used again, since it is known not to occur in any part.

Rejected: the standard library's ``email`` parser, which copies every part several times, splits at
lone line feeds, and repairs what it should refuse.

Rejected, by measurement (``bench/multipart.py``): python-multipart 0.0.33. An upload of 200 KB with
four fields costs about 165 µs of CPU instead of 55, a form of two short fields 55 instead of 8, an
upload of 30 MB the same 6 ms. Of the 31 malformed forms that the tests require to be refused it
accepts 11. Ten of these a caller could refuse by reading every header itself, as ``_field`` does
here; the eleventh, bytes behind the last boundary, is dropped without a report to the caller. The
library writes no forms either, so it would replace only the loop in ``parse``.
"""

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.gateway.api.errors import ApiError, invalid

_HEADER_BYTES_MAX: Final = 2_048  # of one part: a disposition with a file's name, and a type
_HEADERS_MAX: Final = 8  # of one part; browsers send two
_NAME_MAX: Final = 64  # of a field
_FILENAME_MAX: Final = 255  # what file systems take
# RFC 2046: 1 to 70 characters of this set, no blank at the end; with blanks none was ever seen.
_content_type: Final = re.compile(
    rb"multipart/form-data[ \t]*;[ \t]*"
    rb"boundary=(?:\"([0-9A-Za-z'()+_,./:=?-]{1,70})\"|([0-9A-Za-z'+_.-]{1,70}))[ \t]*",
    re.IGNORECASE,
).fullmatch
_disposition: Final = re.compile(
    rb"form-data;[ \t]*name=\"([^\"\\\x00-\x1f\x7f]+)\""
    rb"(?:;[ \t]*filename=\"((?:[^\"\\\x00-\x1f\x7f]|\\[^\x00-\x1f\x7f])*)\")?"
    rb"(?:;[ \t]*filename\*=[!-:<-~]*)?",
    re.IGNORECASE,
).fullmatch
_media_type: Final = re.compile(rb"[\x21-\x7e][\x20-\x7e]{0,126}").fullmatch
_ENCODINGS: Final = frozenset({b"7bit", b"8bit", b"binary"})  # those that change nothing
_token: Final = re.compile(rb"[0-9A-Za-z'+_.-]+").fullmatch


class Field(msgspec.Struct, gc=False):
    """One part of a form: a plain field, or a file if ``filename`` is not None."""

    name: str
    value: bytes | memoryview
    filename: str | None = None  # None: not a file
    content_type: bytes = b""

    def text(self) -> str:
        """Return the value as text; empty if it is not UTF-8."""
        try:
            return bytes(self.value).decode()
        except UnicodeDecodeError:
            return ""


def boundary_of(content_type: bytes) -> bytes:
    """Return the boundary in a multipart/form-data content type.

    Raise ``ApiError`` 415 otherwise.
    """
    match = _content_type(content_type)
    if match is None:
        message = "Send the form as multipart/form-data with a boundary of 1 to 70 characters."
        raise ApiError(415, "invalid_request_error", "unsupported_media_type", message)
    quoted: bytes | None = match[1]
    return quoted if quoted is not None else bytes(match[2])


def parse(body: bytes, boundary: bytes, fields_max: int) -> list[Field]:
    """Return the fields of a form in their order; raise ``ApiError`` 400 if it is malformed.

    Values are views of ``body``, not copies. Stricter than the standard.
    """
    opening = b"--" + boundary
    delimiter = b"\r\n" + opening
    if not body.startswith(opening):
        raise _broken("does not begin with its boundary")
    view = memoryview(body)
    fields: list[Field] = []
    at = len(opening)
    while True:
        line = body[at : at + 2]
        if line == b"--":
            if body[at + 2 : at + 5] not in {b"", b"\r\n"}:  # one byte more is one too many
                raise _broken("has bytes behind its last boundary")
            return fields
        if line != b"\r\n":
            raise _broken("has a boundary that no line ends")
        if len(fields) == fields_max:
            raise invalid(f"The form has more than {fields_max} fields; send fewer.")
        start = at + 2
        # The blank line may follow at once: then there is no header, which is refused below.
        head_end = body.find(b"\r\n\r\n", at, start + _HEADER_BYTES_MAX)
        if head_end < 0:
            raise _broken(f"has a part whose headers do not end within {_HEADER_BYTES_MAX} bytes")
        value_start = head_end + 4
        # From within the blank line: parsers disagree on whether a boundary there is one.
        value_end = body.find(delimiter, value_start - 2)
        if value_end < value_start:
            raise _broken("has a part that no boundary ends on a line of its own")
        field = _field(body[start:head_end])
        field.value = view[value_start:value_end]
        fields.append(field)
        at = value_end + len(delimiter)


def encode(fields: Iterable[Field], boundary: bytes) -> bytes:
    """Return these fields as the bytes of a form.

    The boundary must not occur in a value (not checked).
    """
    pieces: list[bytes | memoryview] = []
    for field in fields:
        head = f'content-disposition: form-data; name="{_quoted(field.name)}"'
        if field.filename is not None:
            head += f'; filename="{_quoted(field.filename)}"'
        pieces.append(b"--%b\r\n%b\r\n" % (boundary, head.encode()))
        if field.content_type:
            pieces.append(b"content-type: %b\r\n" % field.content_type)
        pieces += (b"\r\n", field.value, b"\r\n")
    pieces.append(b"--%b--\r\n" % boundary)
    return b"".join(pieces)


def content_type_of(boundary: bytes) -> bytes:
    """Return the content type of a form with this boundary, quoted where it must be."""
    if _token(boundary) is None:
        return b'multipart/form-data; boundary="%b"' % boundary
    return b"multipart/form-data; boundary=%b" % boundary


def _field(head: bytes) -> Field:
    lines = head.split(b"\r\n")
    if len(lines) > _HEADERS_MAX:
        raise _broken(f"has a part with more than {_HEADERS_MAX} headers")
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        lowered = name.lower()
        if not colon or not name or name != name.strip() or lowered in headers:
            raise _broken("has a part with a header that is malformed or sent twice")
        headers[lowered] = value.strip(b" \t")
    if headers.get(b"content-transfer-encoding", b"binary").lower() not in _ENCODINGS:
        raise _broken("has a part in a transfer encoding; send it as it is")
    match = _disposition(headers.get(b"content-disposition", b""))
    if match is None:
        raise _broken("has a part without a content-disposition that names its field")
    media_type = headers.get(b"content-type", b"")
    if media_type and _media_type(media_type) is None:
        raise _broken("has a part with a malformed content-type")
    filename: bytes | None = match[2]
    return Field(
        _text(match[1], _NAME_MAX),
        b"",
        None if filename is None else _text(filename.replace(b'\\"', b'"'), _FILENAME_MAX),
        media_type,
    )


def _text(raw: bytes, characters_max: int) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise _broken("has a name that is not UTF-8") from None
    if len(text) > characters_max:
        raise _broken(f"has a name of more than {characters_max} characters")
    return text


def _quoted(text: str) -> str:
    """As browsers write names; a backslash could escape the quote that follows."""
    return text.replace('"', "%22").replace("\\", "_")


def _broken(what: str) -> ApiError:
    return invalid(f"The form {what}.", code="invalid_form")


__all__ = ["Field", "boundary_of", "content_type_of", "encode", "parse"]
