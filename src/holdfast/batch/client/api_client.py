"""Calls the Files and Batches API of a gateway: JSON, streamed uploads and downloads.

Calls block: this is for a command, not for a server. What may go better next time (no connection,
429, 5xx) is tried again with pauses until ``patience_s`` is over; everything else is raised at once
with the words of the server.
"""

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import quote, urlsplit

_PIECE_BYTES: Final = 256 << 10
_TIMEOUT_S: Final = 120.0
_PAUSE_MAX_S: Final = 10.0
_NOT_ENABLED: Final = "Set 'batch: {enabled: true}' in the fleet file, and start the fleet anew."
_AGAIN: Final = frozenset({408, 429, 500, 502, 503, 504})


class BatchApiError(Exception):
    """The server refused a call, or cannot be reached; the text says why."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class BatchApiClient:
    """Calls the API at one URL with one key."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        context: ssl.SSLContext | None = None,
        patience_s: float = 600.0,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port
        self._tls = parts.scheme == "https"
        self._context = context
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._key = key
        self._patience_s = patience_s
        self._sleep = sleep
        self._clock = clock

    def get(self, path: str, **query: str | int | None) -> Any:
        """The JSON answer to a GET."""
        said = {name: value for name, value in query.items() if value is not None}
        asked = "&".join(f"{name}={quote(str(value))}" for name, value in said.items())
        return self._json("GET", path + (f"?{asked}" if asked else ""))

    def post(self, path: str, body: Any = None) -> Any:
        """The JSON answer to a POST with a JSON body."""
        return self._json("POST", path, json.dumps(body or {}).encode())

    def delete(self, path: str) -> None:
        """Delete something; what is gone already is no error."""
        try:
            self._json("DELETE", path)
        except BatchApiError as error:
            if error.status != 404:
                raise

    def upload(self, source: Path, begin: int, end: int, name: str) -> Any:
        """Upload these bytes of a file for a batch, piece by piece."""
        mark = "holdfast-5c1e2b7d9a4f"
        head = (
            f'--{mark}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            f'--{mark}\r\ncontent-disposition: form-data; name="file"; filename="{name}"\r\n'
            "content-type: application/jsonl\r\n\r\n"
        ).encode()
        tail = f"\r\n--{mark}--\r\n".encode()
        headers = {
            "content-type": f"multipart/form-data; boundary={mark}",
            "content-length": str(len(head) + end - begin + len(tail)),
        }

        def pieces() -> Iterator[bytes]:
            yield head
            with source.open("rb") as file:
                file.seek(begin)
                left = end - begin
                while left > 0 and (data := file.read(min(_PIECE_BYTES, left))):
                    left -= len(data)
                    yield data
            yield tail

        return json.loads(self._call("POST", "/v1/files", headers, pieces))

    def download(self, file_id: str, into: BinaryIO) -> int:
        """Append the bytes of a file; returns how many. A broken download is begun anew."""
        begin = into.tell()

        def take(answer: http.client.HTTPResponse) -> bytes:
            into.seek(begin)
            into.truncate()
            while data := answer.read(_PIECE_BYTES):
                into.write(data)
            return b""

        self._call("GET", f"/v1/files/{quote(file_id)}/content", {}, None, take)
        return into.tell() - begin

    def _json(self, method: str, path: str, body: bytes | None = None) -> Any:
        headers = {"content-type": "application/json"} if body is not None else {}
        pieces = None if body is None else lambda: iter([body])
        if body is not None:
            headers["content-length"] = str(len(body))
        return json.loads(self._call(method, path, headers, pieces))

    def _call(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        pieces: Callable[[], Iterator[bytes]] | None,
        take: Callable[[http.client.HTTPResponse], bytes] | None = None,
    ) -> bytes:
        until, pause_s = self._clock() + self._patience_s, 0.5
        while True:
            try:
                return self._once(method, path, headers, pieces, take)
            except (OSError, http.client.HTTPException) as error:
                failed = BatchApiError(
                    f"no answer from {self._host}: {str(error) or type(error).__name__}"
                )
            except BatchApiError as error:
                if error.status not in _AGAIN:
                    raise
                failed = error
            if self._clock() >= until:
                raise failed
            self._sleep(pause_s)
            pause_s = min(_PAUSE_MAX_S, 2 * pause_s)

    def _once(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        pieces: Callable[[], Iterator[bytes]] | None,
        take: Callable[[http.client.HTTPResponse], bytes] | None,
    ) -> bytes:
        connection: http.client.HTTPConnection
        if self._tls:
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=_TIMEOUT_S, context=self._context
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        try:
            allowed = {"authorization": f"Bearer {self._key}"} if self._key else {}
            body = None if pieces is None else pieces()
            connection.request(method, self._base + path, body, {**headers, **allowed})
            answer = connection.getresponse()
            if answer.status >= 300:
                raise _refusal(answer.status, answer.read(65_536))
            return answer.read() if take is None else take(answer)
        finally:
            connection.close()


def _refusal(status: int, body: bytes) -> BatchApiError:
    try:
        error = json.loads(body)["error"]
        told = error["message"]
        if error.get("code") == "unknown_url":
            told = f"{told} {_NOT_ENABLED}"
    except (ValueError, KeyError, TypeError, AttributeError):
        told = "no reason was given"
    return BatchApiError(f"{status}: {told}", status)


__all__ = ["BatchApiClient", "BatchApiError"]
