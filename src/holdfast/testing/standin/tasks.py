"""The tasks of a stand-in that produce no text: vectors, ranks, audio, images, tensors.

Each task is a pure function from the request's body to the answer's, a digest of the input in the
place of a model. The results have the right shape and size, and the same input gives the same
bytes everywhere.
"""

import struct
from base64 import b64encode
from collections.abc import Callable
from email.message import Message as Headers
from hashlib import blake2b
from math import sqrt
from typing import Any, Final

import msgspec
import orjson

from holdfast.testing.standin.connection import JSON, TEXT
from holdfast.testing.standin.frames import new_id
from holdfast.testing.standin.generation import RequestRefused, Texts, texts_of
from holdfast.testing.standin.text import WRONG, chat_tokens

DIMENSIONS: Final = 64  # of a vector, unless the request says otherwise
DIMENSIONS_MAX: Final = 4_096
INPUTS_MAX: Final = 4_096
SOUND_BYTES: Final = 4_096
PICTURES_MAX: Final = 16
TRANSCRIPT_WORDS: Final = 8
# One transparent pixel.
PIXEL: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
    "AAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


class TaskAnswer:
    """The answer of a task: its status, content type and body."""

    __slots__ = ("body", "content_type", "model")

    def __init__(self, model: str, body: bytes, content_type: bytes = JSON) -> None:
        self.model = model
        self.body = body
        self.content_type = content_type


Task = Callable[
    [bytes, bytes, bytes], TaskAnswer
]  # body, its type, a twist that makes the result wrong


class EmbedBody(msgspec.Struct):
    """The body of an embeddings request."""

    model: str
    input: Texts
    encoding_format: str = "float"
    dimensions: int | None = None


class RankBody(msgspec.Struct):
    """The body of a rerank request."""

    model: str
    query: str
    documents: list[Any]
    top_n: int | None = None


class SpeakBody(msgspec.Struct):
    """The body of a speech request."""

    model: str
    input: str


class DrawBody(msgspec.Struct):
    """The body of an image request."""

    model: str
    prompt: str
    n: int | None = 1


def _read(body: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise RequestRefused(400, "the body is not a valid request", "BadRequestError") from error


def unit_vector(
    model: str, text: str, dimensions: int = DIMENSIONS, twist: bytes = b""
) -> list[float]:
    """The embedding of a text: of length 1, the same on every stand-in."""
    seed = blake2b(f"{model}\x1b{text}".encode("utf-8", "surrogatepass") + twist).digest()
    chain = b"".join(
        blake2b(seed + n.to_bytes(4, "big")).digest() for n in range(dimensions // 32 + 1)
    )
    numbers = [n / 32_768 for (n,) in struct.iter_unpack(">h", chain[: 2 * dimensions])]
    length = sqrt(sum(number * number for number in numbers)) or 1.0
    return [number / length for number in numbers]


def embeddings(body: bytes, _content_type: bytes, twist: bytes) -> TaskAnswer:
    """Answer ``/v1/embeddings``."""
    asked: EmbedBody = _read(body, EmbedBody)
    texts = texts_of(asked.input)
    dimensions = DIMENSIONS if asked.dimensions is None else asked.dimensions
    if not texts or len(texts) > INPUTS_MAX:
        raise RequestRefused(400, f"give 1 to {INPUTS_MAX} inputs", "BadRequestError", "input")
    if not 1 <= dimensions <= DIMENSIONS_MAX:
        raise RequestRefused(400, f"use 1 to {DIMENSIONS_MAX}", "BadRequestError", "dimensions")
    data = []
    for index, text in enumerate(texts):
        vector: Any = unit_vector(asked.model, text, dimensions, twist)
        if asked.encoding_format == "base64":
            vector = b64encode(struct.pack(f"<{dimensions}f", *vector)).decode()
        data.append({"object": "embedding", "index": index, "embedding": vector})
    count = sum(text.count(" ") + 1 for text in texts)
    told = {"prompt_tokens": count, "total_tokens": count}
    return TaskAnswer(
        asked.model,
        orjson.dumps({"object": "list", "model": asked.model, "data": data, "usage": told}),
    )


def rerank(body: bytes, _content_type: bytes, twist: bytes) -> TaskAnswer:
    """Answer ``/v1/rerank``: documents that share words with the query come first."""
    asked: RankBody = _read(body, RankBody)
    if not asked.documents or len(asked.documents) > INPUTS_MAX:
        raise RequestRefused(
            400, f"give 1 to {INPUTS_MAX} documents", "BadRequestError", "documents"
        )
    query = set(asked.query.lower().split())
    results = []
    for index, document in enumerate(asked.documents):
        text = document if isinstance(document, str) else _read_text(document)
        shared = len(query & set(text.lower().split())) / (len(query) or 1)
        chance = blake2b(f"{asked.model}\x1b{text}".encode() + twist, digest_size=2).digest()
        score = 0.9 * shared + 0.1 * int.from_bytes(chance, "big") / 65_536
        results.append({"index": index, "relevance_score": score, "document": {"text": text}})
    results.sort(key=lambda result: (-float(str(result["relevance_score"])), str(result["index"])))
    top = len(results) if asked.top_n is None else max(asked.top_n, 0)
    count = sum(len(str(result["document"]).split()) for result in results)
    told = {"total_tokens": count}
    found = {"id": new_id("rank").decode(), "model": asked.model, "usage": told}
    return TaskAnswer(asked.model, orjson.dumps({**found, "results": results[:top]}))


def _read_text(document: Any) -> str:
    text = document.get("text") if isinstance(document, dict) else None
    if not isinstance(text, str):
        raise RequestRefused(400, "a document is a text", "BadRequestError", "documents")
    return text


def speech(body: bytes, _content_type: bytes, twist: bytes) -> TaskAnswer:
    """Answer ``/v1/audio/speech``."""
    asked: SpeakBody = _read(body, SpeakBody)
    seed = blake2b(f"{asked.model}\x1b{asked.input}".encode() + twist).digest()
    return TaskAnswer(asked.model, (seed * (SOUND_BYTES // len(seed))), b"audio/mpeg")


def transcription(body: bytes, content_type: bytes, twist: bytes) -> TaskAnswer:
    """Answer ``/v1/audio/transcriptions`` with words that depend on the audio."""
    fields = read_multipart(body, content_type)
    if "file" not in fields or "model" not in fields:
        raise RequestRefused(400, "file and model are needed", "BadRequestError", "file")
    model = fields["model"].decode("utf-8", "replace")
    seed = blake2b(model.encode() + b"\x1b" + fields["file"] + twist, digest_size=16).digest()
    text = "".join(chat_tokens(seed, TRANSCRIPT_WORDS))
    if fields.get("response_format") == b"text":
        return TaskAnswer(model, text.encode(), TEXT)
    return TaskAnswer(model, orjson.dumps({"text": text}))


def read_multipart(body: bytes, content_type: bytes) -> dict[str, bytes]:
    """Parse a multipart form into fields by name; the last of one name counts."""
    boundary = _parameter("content-type", content_type, "boundary")
    if not boundary:
        raise RequestRefused(400, "the body is no multipart form", "BadRequestError")
    fields: dict[str, bytes] = {}
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary.encode())[1:]:
        lines, found, content = part.partition(b"\r\n\r\n")
        if not found:
            continue  # the end mark, or nothing we could read
        for line in lines.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"content-disposition":
                fields[_parameter("content-disposition", value.strip(), "name")] = content
    return fields


def _parameter(header: str, value: bytes, name: str) -> str:
    headers = Headers()
    headers[header] = value.decode("latin-1")
    found = headers.get_param(name, "", header)
    return found if isinstance(found, str) else ""


def pictures(body: bytes, _content_type: bytes, _twist: bytes) -> TaskAnswer:
    """Answer ``/v1/images/generations`` with an image of one pixel."""
    asked: DrawBody = _read(body, DrawBody)
    count = asked.n or 1
    if not 1 <= count <= PICTURES_MAX:
        raise RequestRefused(400, f"n must lie in 1 to {PICTURES_MAX}", "BadRequestError", "n")
    made = {"created": 0, "data": [{"b64_json": PIXEL}] * count}
    return TaskAnswer(asked.model, orjson.dumps(made))


def infer(model: str, body: bytes, twist: bytes) -> TaskAnswer:
    """Answer ``/v2/models/{model}/infer``: FP32 plus 1 (if wrong: plus 2), the rest unchanged."""
    try:
        asked = orjson.loads(body)
        inputs = asked["inputs"]
        outputs = [
            {
                "name": f"OUTPUT{index}",
                "datatype": tensor["datatype"],
                "shape": tensor["shape"],
                "data": _added(tensor, 2.0 if twist else 1.0),
            }
            for index, tensor in enumerate(inputs)
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise RequestRefused(400, "the body is no inference request", "BadRequestError") from error
    answer = {"model_name": model, "model_version": "1", "outputs": outputs}
    if isinstance(asked.get("id"), str):
        answer["id"] = asked["id"]
    return TaskAnswer(model, orjson.dumps(answer))


def _added(tensor: dict[str, Any], step: float) -> Any:
    def add(data: Any) -> Any:
        return [add(inner) for inner in data] if isinstance(data, list) else data + step

    return add(tensor["data"]) if tensor["datatype"] == "FP32" else tensor["data"]


TASKS: Final[dict[bytes, Task]] = {
    b"/v1/embeddings": embeddings,
    b"/v1/rerank": rerank,
    b"/v1/audio/speech": speech,
    b"/v1/audio/transcriptions": transcription,
    b"/v1/images/generations": pictures,
}

__all__ = [
    "PIXEL",
    "TASKS",
    "WRONG",
    "Task",
    "TaskAnswer",
    "infer",
    "read_multipart",
    "unit_vector",
]
