"""Small HTTP calls for benchmarks of batches: JSON, uploads, free ports."""

import json
import socket
import urllib.request
from pathlib import Path
from typing import Any


def free_port() -> int:
    """A port of loopback that is free now."""
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return int(own.getsockname()[1])


def ask(
    base: str,
    method: str,
    path: str,
    body: Any = None,
    *,
    raw: bool = False,
    headers: dict[str, str] | None = None,
) -> Any:
    """One request; its JSON answer, or its text. ``OSError`` for errors of any kind."""
    data = None if body is None else json.dumps(body).encode()
    kind = {"content-type": "application/json"} if data is not None else {}
    headers = {**kind, **(headers or {})}
    request = urllib.request.Request(base + path, data, headers, method=method)  # noqa: S310
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - our own servers
        text = answer.read()
    return text.decode() if raw else json.loads(text)


def upload(base: str, path: Path, more: dict[str, str] | None = None) -> Any:
    """Upload a file for a batch."""
    mark = "holdfast-bench"
    head = (
        f'--{mark}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{mark}\r\ncontent-disposition: form-data; name="file"; filename="{path.name}"\r\n\r\n'
    )
    body = head.encode() + path.read_bytes() + f"\r\n--{mark}--\r\n".encode()
    headers = {"content-type": f"multipart/form-data; boundary={mark}", **(more or {})}
    request = urllib.request.Request(f"{base}/v1/files", body, headers, method="POST")  # noqa: S310
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - our own servers
        return json.loads(answer.read())


__all__ = ["ask", "free_port", "upload"]
