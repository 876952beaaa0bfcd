"""Maps request paths to API routes: one table, compared byte by byte.

A path is taken as it was sent. Nothing is unescaped, joined or trimmed before the lookup, so that a
proxy before the gateway and the gateway cannot read the same bytes as two different paths:
``//v1``, ``/v1/../``, ``%2f`` and a slash at the end are other paths, and those do not exist. Only
a model's name within a path is unescaped, after the path was recognised, and strictly.

Rejected: a router with patterns. All but two paths are constants, and a dict finds those at once.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from urllib.parse import quote_from_bytes

import msgspec

from holdfast.gateway.api.answers import AnswerKind
from holdfast.gateway.api.errors import INVALID, ApiError, invalid, unknown_model


class Api(StrEnum):
    """The APIs that a gateway serves, one for each kind of request."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RESPONSES = "responses"
    RESPONSE = "response"
    RERANK = "rerank"
    SPEECH = "speech"
    TRANSCRIPTIONS = "transcriptions"
    IMAGES = "images"
    INFER = "infer"
    MODERATIONS = "moderations"
    MODELS = "models"
    MODEL = "model"


class BodyKind(StrEnum):
    """The format of a route's request body: none, JSON or a multipart form."""

    NONE = "none"
    JSON = "json"
    MULTIPART = "multipart"


class ModelIn(StrEnum):
    """Where a route's requests name their model: in the body, in the path, or nowhere."""

    BODY = "body"
    PATH = "path"
    RESPONSE = "response"  # the id of one leads to it
    NOWHERE = "nowhere"


_IN_PATH: Final = ModelIn.PATH


@dataclass(slots=True, frozen=True)
class Route:
    """One API route: method, body format, the engine's path and the kind of answer. Immutable."""

    api: Api
    method: bytes
    upstream: bytes  # the engine's path; of infer: its beginning, before the model
    answer: AnswerKind = AnswerKind.JSON
    body: BodyKind = BodyKind.JSON
    model_in: ModelIn = ModelIn.BODY
    streams: bool = False  # whether "stream": true has a meaning
    lists_models: bool = False  # answered by the gateway itself
    task: str = field(init=False)  # what an engine has or lacks: its path without names of models

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", self.upstream.decode())

    def upstream_path(self, model: str, version: str) -> bytes:
        """Return the path to call at the engine; only infer routes put the model, escaped, into it.

        ``model``: the engine's name of it. ``version``: of the model, empty for none. Not for
        answers that a replica keeps: see ``response_path``.
        """
        if self.model_in is not _IN_PATH:
            return self.upstream
        path = self.upstream + _escape(model)
        if version:
            path += b"/versions/" + _escape(version)
        return path + b"/infer"


_GET: Final = b"GET"
_POST: Final = b"POST"
_RERANK: Final = Route(Api.RERANK, _POST, b"/v1/rerank", AnswerKind.RERANK)
_INFER: Final = Route(Api.INFER, _POST, b"/v2/models/", AnswerKind.INFER, model_in=ModelIn.PATH)
_OF_RESPONSES: Final = b"/v1/responses/"
_RESPONSE: Final = {
    method: Route(
        Api.RESPONSE,
        method,
        _OF_RESPONSES,
        AnswerKind.KEPT,
        body=BodyKind.NONE,
        model_in=ModelIn.RESPONSE,
    )
    for method in (_GET, _POST, b"DELETE")
}
_MODEL: Final = Route(
    Api.MODEL, _GET, b"/v1/models/", body=BodyKind.NONE, model_in=ModelIn.PATH, lists_models=True
)

ROUTES: Final[dict[bytes, Route]] = {
    b"/v1/chat/completions": Route(
        Api.CHAT, _POST, b"/v1/chat/completions", AnswerKind.CHAT, streams=True
    ),
    b"/v1/completions": Route(
        Api.COMPLETIONS, _POST, b"/v1/completions", AnswerKind.COMPLETIONS, streams=True
    ),
    b"/v1/embeddings": Route(Api.EMBEDDINGS, _POST, b"/v1/embeddings", AnswerKind.EMBEDDINGS),
    b"/v1/moderations": Route(Api.MODERATIONS, _POST, b"/v1/moderations"),
    b"/v1/responses": Route(
        Api.RESPONSES, _POST, b"/v1/responses", AnswerKind.RESPONSES, streams=True
    ),
    b"/v1/rerank": _RERANK,
    b"/rerank": _RERANK,  # as Jina's and Cohere's first clients call it
    b"/v1/audio/speech": Route(Api.SPEECH, _POST, b"/v1/audio/speech"),
    b"/v1/audio/transcriptions": Route(
        Api.TRANSCRIPTIONS, _POST, b"/v1/audio/transcriptions", body=BodyKind.MULTIPART
    ),
    b"/v1/images/generations": Route(
        Api.IMAGES, _POST, b"/v1/images/generations", AnswerKind.IMAGES
    ),
    b"/v1/models": Route(
        Api.MODELS,
        _GET,
        b"/v1/models",
        body=BodyKind.NONE,
        model_in=ModelIn.NOWHERE,
        lists_models=True,
    ),
}

MODEL_CHARACTERS_MAX: Final = 256  # names of the hub have 96 at most, with an adapter twice that
# Letters of names, paths, tags and adapters; no blanks, quotes or percent signs.
_sane: Final = re.compile(r"[A-Za-z0-9_@][A-Za-z0-9_@.:/+=~,-]{0,255}").fullmatch
_infer_path: Final = re.compile(rb"/v2/models/([^/]+)(?:/versions/([0-9]{1,19}))?/infer").fullmatch
_response_path: Final = re.compile(
    rb"/v1/responses/([A-Za-z0-9_-]{1,1024})(/cancel|/input_items)?"
).fullmatch
_RESPONSE_METHODS: Final = {b"": (_GET, b"DELETE"), b"/input_items": (_GET,), b"/cancel": (_POST,)}
_strictly_escaped: Final = re.compile(rb"(?:[^%]|%[0-9A-Fa-f]{2})+").fullmatch
_escapes: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_CREATED: Final = 0  # nobody knows when a model was made, and the SDKs want a number

_encode: Final = msgspec.json.Encoder().encode


def find(method: bytes, path: bytes) -> Route:
    """Return the route of a method and path; raise ``ApiError`` 404 or 405 if there is none.

    HEAD is accepted where GET is. The model in a path is not checked here.
    """
    route = ROUTES.get(path)
    if route is not None and route.method == method:
        return route
    if route is None:
        if path.startswith(b"/v2/models/") and _infer_path(path) is not None:
            route = _INFER
        elif path.startswith(b"/v1/models/") and not path.endswith(b"/"):
            route = _MODEL
        elif path.startswith(_OF_RESPONSES):
            route = _response_route(method, path)
        else:
            raise ApiError(404, INVALID, "unknown_url", "There is nothing at this path.")
    if route.method != method and not (method == b"HEAD" and route.method == _GET):
        message = f"Use {route.method.decode()} for this path."
        allow = b"GET, HEAD" if route.method == _GET else route.method
        raise ApiError(405, INVALID, "method_not_allowed", message, allow=allow)
    return route


def _response_route(method: bytes, path: bytes) -> Route:
    """The route to an answer that a replica keeps, or the one that a wrong method should have."""
    methods = _RESPONSE_METHODS[path_response(path)[1]]
    return _RESPONSE[method if method in methods else methods[0]]


def path_response(path: bytes) -> tuple[str, bytes]:
    """Return the id of a kept answer that a path names, and what is asked of it (empty: itself).

    Raises ``ApiError`` 404 for another path. Does not check that there is such an answer.
    """
    match = _response_path(path)
    if match is None:
        raise ApiError(404, INVALID, "unknown_url", "There is nothing at this path.")
    return match[1].decode(), match[2] or b""


def response_path(path: bytes, engine_id: str) -> bytes:
    """Return the path of a kept answer at its engine, for a client's path with our id in it."""
    return _OF_RESPONSES + _escape(engine_id) + path_response(path)[1]


def path_model(route: Route, path: bytes) -> tuple[str, str]:
    """Return the model, unescaped, and the version (empty if absent) that a path names.

    Raises ``ApiError`` 404 for another path and 400 for a name that is not allowed. Does not check
    that the model exists.
    """
    if route.api is Api.MODEL:
        return _unescape(path[len(b"/v1/models/") :]), ""
    match = _infer_path(path)
    if match is None:
        raise ApiError(404, INVALID, "unknown_url", "There is nothing at this path.")
    version: bytes | None = match[2]
    return _unescape(match[1]), version.decode() if version is not None else ""


def is_sane_model(name: str) -> bool:
    """Whether a text may be a model's name, safe in headers, logs, labels and, escaped, in paths.

    It need not be the name of a known model.
    """
    return _sane(name) is not None and "/../" not in name and not name.endswith(("/..", "/."))


def models_body(route: Route, path: bytes, names: Collection[str]) -> bytes:
    """Return the JSON for ``GET /v1/models`` or ``/v1/models/{model}``, of these names only.

    Raises ``ApiError`` 404 if the path names a model that is not among them.
    """
    if route.api is Api.MODELS:
        return _encode({"object": "list", "data": [_model_object(name) for name in names]})
    name, _ = path_model(route, path)
    if name not in names:
        raise unknown_model()
    return _encode(_model_object(name))


def _model_object(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": _CREATED, "owned_by": "holdfast"}


def _unescape(segment: bytes) -> str:
    """A model's name as it stands in a path."""
    if len(segment) <= 3 * MODEL_CHARACTERS_MAX and _strictly_escaped(segment) is not None:
        raw = _escapes.sub(lambda match: bytes((int(match[1], 16),)), segment)
        name = raw.decode("latin-1")  # what is not ASCII is not sane, however it is read
        if is_sane_model(name):
            return name
    raise invalid("The path must name a model: letters, digits and . _ : / @ + - =", "model")


def _escape(name: str) -> bytes:
    return quote_from_bytes(name.encode(), safe="").encode()


__all__ = [
    "MODEL_CHARACTERS_MAX",
    "ROUTES",
    "Api",
    "BodyKind",
    "ModelIn",
    "Route",
    "find",
    "is_sane_model",
    "models_body",
    "path_model",
    "path_response",
    "response_path",
]
