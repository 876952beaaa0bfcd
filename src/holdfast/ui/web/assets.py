"""Loads the dashboard's files from the package, with compressed copies and cacheable addresses.

They are read once, at start, and served from memory: some 150 KB. Their addresses hold a digest of
all of them, so a browser may keep each for ever and still never mixes two versions; only the page
that names the addresses is asked for anew. Names with versions written by a build step were
rejected: there is no build step, what is in the package is what runs.
"""

import gzip
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

PAGE: Final = "index.html"
_PLACE: Final = b"{{static}}"  # where the page wants the address of the files
_PACKED_MIN: Final = 1_024  # bytes; below that packing gains nothing

_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}


@dataclass(slots=True, frozen=True)
class Asset:
    """One file of the dashboard, plain and compressed."""

    content: bytes
    packed: bytes | None
    media_type: str


@dataclass(slots=True, frozen=True)
class Assets:
    """All files of the dashboard, with the digest of this version."""

    page: Asset
    by_path: dict[str, Asset]  # "DIGEST/overview.js"
    prefix: str


def load_assets(below: str) -> Assets:
    """Read the files of the package; ``below`` is the path under which they will be served."""
    found = dict(sorted(_read(files("holdfast.ui.web") / "static", "")))
    digest = sha256(b"".join(name.encode() + b"\0" + found[name] for name in found))
    prefix = digest.hexdigest()[:16]
    page = found.pop(PAGE).replace(_PLACE, f"{below}/{prefix}".encode())
    by_path = {f"{prefix}/{name}": _asset(name, content) for name, content in found.items()}
    return Assets(_asset(PAGE, page), by_path, prefix)


def _read(folder: Traversable, above: str) -> list[tuple[str, bytes]]:
    read: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            read += _read(entry, f"{above}{entry.name}/")
        elif entry.name.rpartition(".")[2] in _TYPES:
            read.append((f"{above}{entry.name}", entry.read_bytes()))
    return read


def _asset(name: str, content: bytes) -> Asset:
    packed = gzip.compress(content, 6, mtime=0) if len(content) >= _PACKED_MIN else None
    return Asset(content, packed, _TYPES[name.rpartition(".")[2]])


__all__ = ["Asset", "Assets", "load_assets"]
