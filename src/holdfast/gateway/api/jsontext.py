r"""Makes sure that the gateway and the engine read the same members out of one JSON text.

A request is judged here and executed elsewhere, by another parser. Wherever two parsers may read
one text differently, a client can show each what it wants to see: a member named twice (the first
counts, or the last, or it is an error), a name in other letters (Go's parser takes ``MODEL`` for
``model``), a name in escapes. ``open_object`` returns a text for which none of this is possible.

The proof is cheap. The text is decoded into a struct whose members are raw text, and encoded again:
the result has every member once and no blank between them. If it is as long as what came in, then
nothing was dropped, and what came in is clean. Only a text that fails this is looked at closer:

    as long?  ─ yes ─► clean
       no ─► other members, which the struct does not know?  looked at by name, unwanted ones cut
             blanks?  taken out
             named twice, or in escapes?  read whole and written anew

Rejected: searching for a second ``"model"``. It costs a pass for each name, finds names inside
prompts, and misses ``"mod\u0065l"``. Rejected: writing everything anew, always: for a prompt of
32 KB it costs 60 µs, the proof 1.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeVar

import msgspec
from msgspec import Raw

from holdfast.gateway.api.errors import ApiError, invalid
from holdfast.gateway.api.request_schema import WHOLE, decode_raws

Members = TypeVar("Members", bound=msgspec.Struct)
Extras = dict[str, Raw]
Counts = tuple[int, int]
"""Lists that are the value of a member, and objects: no more than so many of each.

Beyond the depth that is allowed the lists are not counted further.
"""

_ELEMENTS_MAX: Final = 1_000_000  # commas or brackets; each may become an object in memory
_ELEMENTS_FROM: Final = 2 * _ELEMENTS_MAX  # bytes; a shorter text cannot have so many
_LOOK_BYTES: Final = 64  # enough for the first member
_MEMBERS_MAX: Final = 256  # of the request itself; APIs and engines together know some 150

_encode: Final = msgspec.json.Encoder().encode
_encode_into: Final = msgspec.json.Encoder().encode_into
_written: Final = bytearray()  # only its length is read; one buffer saves two thirds of the proof
_decode_any: Final = msgspec.json.Decoder().decode
_decode_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_compact: Final = msgspec.json.format
_field_in: Final = re.compile(r"at `\$\.([A-Za-z0-9_]+)").search
_float_of: Final = re.compile(rb"-?[0-9]{1,16}(\.[0-9]{1,16})?([eE][+-]?[0-9]{1,2})?").fullmatch
_WHOLE_MAX: Final = 2**53  # beyond it a float does not tell whole numbers apart
_half_pair: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
).search
_HALF_PAIR: Final = (
    "A string holds half of a letter: an escape from \\ud800 to \\udfff without its other half. "
    "Send both halves, or the letter itself as UTF-8."
)
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_OPENING: Final = frozenset(b"[{")
_BRACKET: Final = ord("[")

# What chooses where a request goes, with whose rights, and what runs in the engine beside it. In
# gateways that passed such members on, clients sent themselves the operator's keys
# (CVE-2024-6587) or had engines fetch and run what they liked.
_UNWANTED: Final = frozenset(
    {
        "api_base",
        "api_key",
        "api_type",
        "api_version",
        "base_url",
        "bootstrap_host",  # SGLang: whom to fetch a KV cache from
        "bootstrap_port",
        "bootstrap_room",
        "custom_llm_provider",
        "custom_logit_processor",  # SGLang: serialised code
        "data_parallel_rank",
        "deployment_id",
        "extra_headers",
        "fallbacks",
        "headers",
        "kv_transfer_params",  # vLLM: whom to fetch a KV cache from
        "logits_processors",  # vLLM: names of code
        "lora_path",
        "mock_response",
        "model_list",
        "organization",
        "priority",  # vLLM, SGLang: the order of the engine's queue; ours is by tenant
        "proxy",
        "request_id",  # vLLM: a second request of that name aborts the first
        "rid",  # SGLang: as request_id
    }
)
_UNWANTED_PREFIXES: Final = ("aws_", "azure_", "litellm_", "vertex_")


def open_object(
    decode: Callable[[bytes], Members], text: bytes, fixes: Mapping[str, str], depth_max: int
) -> tuple[Members, bytes, Extras, Counts]:
    """Decode a JSON request; return its members, a safe text of it, unknown members and counts.

    The text is to be sent instead of what came: each member once, none that must not reach an
    engine. The counts are upper bounds of its lists and objects. ``decode`` makes a struct whose
    members may all be absent; ``fixes`` are words for errors: what each member must be. Raises only
    ``ApiError``, also for nesting beyond ``depth_max``.
    """
    if len(text) > _ELEMENTS_FROM:
        _check_size(text)
    try:
        if text.find(b'": ', 0, _LOOK_BYTES) >= 0:  # as Python's json writes it
            text = _compact(text, indent=-1)
        try:
            members = decode(text)
        except msgspec.ValidationError:
            text = _with_whole_numbers(text, fixes)
            members = decode(text)
        extras: Extras = {}
        _encode_into(members, _written)
        if len(_written) != len(text):
            members, text, extras = _open_closer(decode, members, text)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise unreadable(error, fixes, text) from None
    if not text.isascii():  # raw members were not looked into
        _check_utf8(text)
    brackets = lists = 0
    place = text.find(b"[")  # mostly few, and each costs little; of "{" there is one per message
    while place >= 0 and brackets <= depth_max:
        brackets += 1
        before = text[place - 4 : place].rstrip()
        if before[-2:] == b'":' and before[-3:] != b'\\":':  # else it stands in a string or a list
            lists += 1
        place = text.find(b"[", place + 1)
    if place >= 0:
        lists = brackets  # not looked at further: it may be all of them
    objects = len(text) - len(text.replace(b"{", b"", depth_max + 1))
    # With few enough openings in all, in strings or not, it cannot be too deep.
    if brackets + objects > depth_max:
        objects = _check_depth(text, depth_max, members)
    return members, text, extras, (lists, objects)


def _open_closer(
    decode: Callable[[bytes], Members], members: Members, text: bytes
) -> tuple[Members, bytes, Extras]:
    everything = _decode_members(text)
    if len(_encode(everything)) != len(text):
        text = _compact(text, indent=-1)
        everything = _decode_members(text)
        if len(_encode(everything)) != len(text):
            text = _encode(_decode_any(text))
            everything = _decode_members(text)
        members = decode(text)
    if len(everything) > _MEMBERS_MAX:
        raise invalid(f"The body has more than {_MEMBERS_MAX} members; send fewer.")
    known = members.__struct_fields__
    extras = {name: raw for name, raw in everything.items() if name not in known}
    unwanted = [name for name in extras if _is_unwanted(name, known)]
    if unwanted:
        for name in unwanted:
            del everything[name], extras[name]
        text = _encode(everything)
    return members, text, extras


def _is_unwanted(name: str, known: Collection[str]) -> bool:
    """Whether a member must not reach an engine; refuses one that an engine may take for ours."""
    folded = name.casefold()
    if folded in known:
        raise invalid(f"A member is spelled almost like {folded}; write it exactly so.", folded)
    return folded in _UNWANTED or folded.startswith(_UNWANTED_PREFIXES)


def with_members(text: bytes, members: Mapping[str, object]) -> bytes:
    """Return a JSON object's text with these members added or replaced; others stay as they are.

    Names in the text must have no escapes. Raises ``ApiError`` if it must be read and cannot be.
    """
    if not members:
        return text
    if text.endswith(b"}") and not any(b'"%b"' % name.encode() in text for name in members):
        added = _encode(members)
        if len(text) == 2:
            return added
        return b"".join((memoryview(text)[:-1], b",", memoryview(added)[1:]))
    try:
        everything: dict[str, object] = dict(_decode_members(text))
    except (ValueError, RecursionError) as error:
        raise unreadable(error, {}) from None
    everything.update(members)
    return _encode(everything)


def check_finite(name: str, raw: Raw) -> None:
    """Raise ``ApiError`` 400 if a member holds a number too large for a float, at any depth.

    Engines would read it as infinity. Too deep nesting is refused, too.
    """
    try:
        _decode_any(raw)
    except RecursionError:
        raise _too_deep() from None
    except ValueError:  # the text is valid JSON: nothing else is wrong with it
        message = f"{name} holds a number that is too large; send a finite one."
        raise invalid(message, name) from None


def _with_whole_numbers(text: bytes, fixes: Mapping[str, str]) -> bytes:
    """Return the text with whole numbers written as such: ``16.0`` is 16, as in JSON Schema.

    Clients whose only number is a float write them so. The text is returned as it is where there
    are none.
    """
    members = _decode_members(text)
    changed = False
    for name, raw in members.items():
        if fixes.get(name) == WHOLE and _float_of(number := bytes(raw)) is not None:
            value = float(number)
            if value.is_integer() and abs(value) <= _WHOLE_MAX:
                members[name] = Raw(b"%d" % int(value))
                changed = True
    return _encode(members) if changed else text


def unreadable(error: Exception, fixes: Mapping[str, str], text: bytes = b"") -> ApiError:
    """Make (not raise) the client's 400 error for a decoder's exception, without quoting the body.

    It names the member at fault if known, with its word from ``fixes``. ``text``: the JSON, in
    which half of a surrogate pair is looked for.
    """
    if isinstance(error, RecursionError):
        return _too_deep()
    if isinstance(error, UnicodeDecodeError):
        return invalid("The body is not valid UTF-8.", code="invalid_json")
    told = str(error)
    if not isinstance(error, msgspec.ValidationError):
        if b"\\u" in text and _half_pair(text.replace(b"\\\\", b"")) is not None:
            return invalid(_HALF_PAIR, code="invalid_json")
        reason = told.removeprefix("JSON is malformed: ")
        return invalid(f"The body is not valid JSON: {reason}.", code="invalid_json")
    match = _field_in(told)
    if match is None:
        return invalid("The body must be a JSON object.", code="invalid_json")
    field = match[1]
    return invalid(f"{field} must be {fixes.get(field, 'a value of another type')}.", field)


def _too_deep() -> ApiError:
    return invalid("The body is nested too deeply; flatten it.", code="invalid_json")


# --- what the decoder does not check --------------------------------------------------------------


def _check_utf8(text: bytes) -> None:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise unreadable(error, {}) from None


def _check_size(text: bytes) -> None:
    """Refuse a text whose elements would fill the memory, before any is made."""
    for sign in (b",", b"[", b"{"):
        # Ten times faster than bytes.count where there are few.
        if len(text) - len(text.replace(sign, b"", _ELEMENTS_MAX + 1)) > _ELEMENTS_MAX:
            raise invalid(f"The body has more than {_ELEMENTS_MAX} elements; send less at once.")


def _check_depth(text: bytes, depth_max: int, members: msgspec.Struct) -> int:
    """Refuse a text that is nested too deeply; how many objects it has, at most.

    Long conversations have many openings and little depth. An object behind a comma stands in a
    list, so whatever is nested, such objects are no more than the lists around them. Where that
    does not settle it: elements of one list are not inside each other, so a few of them at a time
    are looked at, and then what is left of the text.
    """
    arrays, objects = _openings(text)
    if objects - text.count(b",{") + 2 * arrays <= depth_max:
        return objects
    left = arrays + objects
    for value in msgspec.structs.astuple(members):
        items = value if type(value) is list else _items(value)
        if items:
            left -= _shallow(items, depth_max - 2)
    if left > depth_max and depth(text) > depth_max:
        raise _too_deep()
    return objects


def _items(value: object) -> list[Raw]:
    """The elements of a raw list; none of anything else."""
    if not isinstance(value, Raw) or memoryview(value)[0] != _BRACKET:
        return []
    return decode_raws(value)


def _shallow(items: Sequence[Raw], depth_max: int) -> int:
    """Count the openings in elements of a list, none of which may be deeper than this."""
    joined = b",".join(items)
    openings = sum(_openings(joined))
    if openings <= depth_max:
        return openings
    if len(items) == 1:
        if depth(joined) > depth_max:
            raise _too_deep()
        return openings
    middle = len(items) // 2
    return _shallow(items[:middle], depth_max) + _shallow(items[middle:], depth_max)


def _openings(text: bytes) -> tuple[int, int]:
    """How many lists and how many objects may begin in it, at most."""
    size = len(text)
    return size - len(text.replace(b"[", b"")), size - len(text.replace(b"{", b""))


def depth(text: bytes) -> int:
    """Return how deep a valid JSON text is nested; a flat object is 1. Slow: about 2 ns a byte."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = b"".join(text.split(b'"')[::2])  # every second piece is a string's inside
    level = deepest = 0
    for sign in outside.translate(None, _NOT_BRACKETS):
        if sign in _OPENING:
            level += 1
            deepest = max(deepest, level)
        else:
            level -= 1
    return deepest


__all__ = [
    "Counts",
    "Extras",
    "check_finite",
    "depth",
    "open_object",
    "unreadable",
    "with_members",
]
