"""Finds the members of a request that make an engine fetch something, and checks their URLs.

Which members those are differs from engine to engine, and so does their shape: a URL, a list of
them, or an object with one. All are looked at, in whatever turn or piece of content they stand.

Turns that hold texts alone are told by a decoder that knows no other members: the walk through a
body in Python is for those that hold more.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from holdfast.core.intake.media_urls import MediaHosts
from holdfast.gateway.api.errors import invalid
from holdfast.gateway.api.multipart import Field

# Members with something to fetch, in lower case: engines written in Go take any.
MEDIA: Final = frozenset(
    {
        *("image_url", "audio_url", "video_url", "file_url"),
        *("image", "images", "audio", "video", "videos", "file", "mask"),
        *("image_data", "audio_data", "video_data", "file_data", "input_audio"),
        *("ref_audio", "reference_audio", "references", "audio_path", "image_path", "video_path"),
    }
)
# Where the URL stands in an object that is the value of one of them.
_PLACES: Final = MEDIA | {"url", "uri", "path", "data", "source"}
# Members that hold base64 as it is, however short.
_BARE: Final = frozenset({"data", "file_data", "image_data", "audio_data", "video_data"})
# Members of requests with turns and pieces of content in them.
_CONTENTS: Final = ("messages", "input", "documents", "query")
_SHOWN_MAX: Final = 32  # characters of a member's name
_FIX: Final = "Send the content itself as a data: URL, or use a public address."

_HARMLESS: Final = frozenset({"role", "content", "type", "text", "name", "id", "detail"})  # often
_NESTED: Final = (dict, list)
Found = tuple[str, str] | None
"""Where a URL to refuse stands, and why it is refused."""


class _PlainPiece(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A piece of content that is text, in the words of chats and of /v1/responses."""

    type: str = ""
    text: Raw = Raw()
    annotations: Raw = Raw()
    logprobs: Raw = Raw()
    cache_control: Raw = Raw()


class _PlainTurn(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A turn with nothing but text, calls of tools and what they returned as text."""

    role: str = ""
    type: str = ""
    content: str | list[_PlainPiece] | None = None
    name: str | None = None
    id: str | None = None
    status: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_call_id: str | None = None
    tool_calls: Raw = Raw()
    call_id: str | None = None
    arguments: str | None = None
    output: str | None = None


_decode_plain: Final = msgspec.json.Decoder(list[_PlainTurn]).decode
_decode: Final = msgspec.json.Decoder().decode


def check_media(
    members: msgspec.Struct,
    extras: Mapping[str, Raw],
    objects: int,
    hosts: MediaHosts,
) -> None:
    """Raise ``ApiError`` 400 if a JSON request would send an engine where it must not go.

    ``objects``: at least as many as the body has. The error names the member.
    """
    if objects > 1:
        for name in _CONTENTS:
            value = getattr(members, name, UNSET)
            if value is UNSET:
                value = extras.get(name, UNSET)
            for place, raw in _raws(name, value):
                if not _is_plain(name, raw):
                    _refuse(place, _within(_read(name, raw), hosts))
    for name in extras:
        if name.casefold() in MEDIA:
            _refuse(
                name, _of_value(_read(name, extras[name]), hosts, bare=name.casefold() in _BARE)
            )


def check_fields(fields: list[Field], hosts: MediaHosts) -> None:
    """Raise ``ApiError`` 400 for a form whose text fields would send an engine somewhere."""
    for field in fields:
        if field.filename is None and field.name.casefold() in _PLACES:
            _refuse(field.name, _of_value(field.text(), hosts, bare=False))


def _raws(name: str, value: Any) -> Iterator[tuple[str, Raw]]:
    """The parts of a member that may hold pieces of content, with their paths."""
    told = (
        {f"{name}[{index}]": raw for index, raw in enumerate(value)} if type(value) is list else {}
    )
    for place, raw in (told or {name: value}).items():
        if isinstance(raw, Raw) and memoryview(raw)[0] in b"[{":
            yield place, raw


def _is_plain(name: str, turns: Raw) -> bool:
    """Whether these are turns with texts and calls alone, each member of which is known."""
    if name == "messages" and bytes(turns).find(b"[", 1) < 0:  # pieces of content are a list
        return True
    try:
        _decode_plain(turns)
    except ValueError:
        return False
    return True


def _read(name: str, raw: Raw) -> Any:
    try:
        return _decode(raw)
    except ValueError:  # the text is valid JSON: nothing else is wrong with it
        message = f"{name} holds a number that is too large; send a finite one."
        raise invalid(message, name) from None


def _within(value: Any, hosts: MediaHosts) -> Found:
    """The first URL to refuse in a list or an object, at any depth."""
    if type(value) is list:
        for index, each in enumerate(value):
            if type(each) in _NESTED and (found := _within(each, hosts)) is not None:
                return f"[{index}]{found[0]}", found[1]
        return None
    for name, each in value.items():
        found = None
        if name not in _HARMLESS and (folded := name.casefold()) in MEDIA:
            found = _of_value(each, hosts, bare=folded in _BARE)
        elif type(each) in _NESTED:
            found = _within(each, hosts)
        if found is not None:
            return f".{_shown(name)}{found[0]}", found[1]
    return None


def _of_value(value: Any, hosts: MediaHosts, *, bare: bool) -> Found:
    """The first URL to refuse in the value of such a member: a URL, or a list or object of them."""
    if type(value) is str:
        why = hosts.refusal(value, bare=bare)
        return ("", why) if why else None
    if type(value) is list:
        for index, each in enumerate(value):
            if (found := _of_value(each, hosts, bare=bare)) is not None:
                return f"[{index}]{found[0]}", found[1]
    elif type(value) is dict:
        for name, each in value.items():
            found, folded = None, name.casefold()
            if folded in _PLACES:
                found = _of_value(each, hosts, bare=folded in _BARE)
            elif type(each) in _NESTED:
                found = _within(each, hosts)
            if found is not None:
                return f".{_shown(name)}{found[0]}", found[1]
    return None


def _refuse(path: str, found: Found) -> None:
    if found is not None:
        place = path + found[0]
        raise invalid(f"{place} is not fetched: {found[1]}. {_FIX}", place, "media_refused")


def _shown(name: str) -> str:
    """A member's name for an error, which repeats no text of a client's own."""
    return name if len(name) <= _SHOWN_MAX and name.isidentifier() else "?"


__all__ = ["MEDIA", "check_fields", "check_media"]
