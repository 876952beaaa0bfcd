"""What a ladder of models must know of a request: what it needs of a model, what it forbids.

Read only for requests that a ladder may answer; the others pay nothing for it.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from holdfast.gateway.api.bodies import ParsedRequest
from holdfast.gateway.api.errors import invalid
from holdfast.gateway.api.jsontext import with_members
from holdfast.gateway.api.routes import Api

_HEADER: Final = b"x-holdfast-degrade"
_NEVER: Final = b"never"

# The member that bounds an answer, where the client named none; it may have named another one.
_LENGTHS: Final[Mapping[Api, tuple[str, ...]]] = {
    Api.CHAT: ("max_tokens", "max_completion_tokens", "n_predict"),
    Api.COMPLETIONS: ("max_tokens", "n_predict"),
    Api.RESPONSES: ("max_output_tokens",),
}
# Members of content, by what a model must be able to read. A text would have their quotes escaped.
_MEDIA: Final = (
    ("images", (b'"image_url"', b'"input_image"', b'"image"', b'"image_embeds"')),
    ("audio", (b'"input_audio"', b'"audio_url"', b'"audio"', b'"audio_embeds"')),
    ("video", (b'"video_url"', b'"video"')),
)
_EMBEDDINGS: Final = Api.EMBEDDINGS  # vectors of two models mean nothing to each other


def may_degrade(ask: ParsedRequest, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a ladder may answer a request with another model.

    Not one that says ``x-holdfast-degrade: never``, nor one for embeddings. Raises ``ApiError`` 400
    for any other value of that header.
    """
    said = headers.get(_HEADER)
    if said is not None and said.strip().lower() != _NEVER:
        what = "The header x-holdfast-degrade is not 'never'; write that, or leave it out."
        raise invalid(what, "x-holdfast-degrade")
    return said is None and ask.api is not _EMBEDDINGS


def may_cap(ask: ParsedRequest) -> bool:
    """Whether an answer may end early: not a tool call, not JSON, none with a length of its own."""
    whole = ask.tools or ask.json_expected or ask.shaped or ask.opaque
    return not whole and ask.api in _LENGTHS and b'"min_tokens"' not in ask.body


def needs_of(ask: ParsedRequest) -> tuple[str, ...]:
    """What a model must be able to do to answer a request, by the names of ``models[].lacks``."""
    needs = ["tools"] if ask.tools else []
    if ask.json_expected:
        needs.append("json")
    needs += [need for need, names in _MEDIA if any(name in ask.body for name in names)]
    return tuple(needs)


def capped(ask: ParsedRequest, tokens: int) -> ParsedRequest:
    """Return the request with its answer bounded by ``tokens``; the client's own is above that."""
    lengths = _LENGTHS[ask.api]
    named = [name for name in lengths if b'"%b"' % name.encode() in ask.body] or lengths[:1]
    body = with_members(ask.body, dict.fromkeys(named, tokens))
    return msgspec.structs.replace(ask, body=body, members=None, max_tokens=tokens)


__all__ = ["capped", "may_cap", "may_degrade", "needs_of"]
