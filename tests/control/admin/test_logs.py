import asyncio
import contextlib

import pytest

from holdfast.control.admin import logs as module
from holdfast.control.admin.logs import BYTES_MAX, LogReader, follow, read_tail


@pytest.fixture
def path(tmp_path):
    return tmp_path / "output.log"


def add(path, text):
    with path.open("ab") as log:
        log.write(text)


@pytest.mark.parametrize(
    ("text", "lines", "told"),
    [
        (b"", 5, b""),
        (b"a", 5, b"a"),
        (b"a\nb\n", 1, b"b\n"),
        (b"a\nb", 1, b"b"),
        (b"a\nb\n", 2, b"a\nb\n"),
        (b"a\n\n\n", 2, b"\n\n"),
        (b"a\nb\n", 0, b""),
    ],
)
def test_the_last_lines_are_told(path, text, lines, told):
    path.write_bytes(text)
    assert read_tail(path, lines) == told


def test_a_long_log_is_told_up_to_a_bound_and_from_the_beginning_of_a_line(path):
    path.write_bytes(b"x" * 99 + b"\n" + b"0123456789abcde\n" * (BYTES_MAX // 16))
    told = read_tail(path, 10_000_000)
    assert BYTES_MAX - 16 <= len(told) <= BYTES_MAX
    assert told.startswith(b"0123456789abcde\n")
    path.write_bytes(b"x" * (2 * BYTES_MAX))
    assert len(read_tail(path, 5)) == BYTES_MAX


def test_what_the_file_lacks_is_taken_from_the_one_before(path):
    path.with_name("output.log.1").write_bytes(b"a\nb\nc\n")
    path.write_bytes(b"d\n")
    assert read_tail(path, 3) == b"b\nc\nd\n"
    assert read_tail(path, 1) == b"d\n"
    path.unlink()
    assert read_tail(path, 2) == b"b\nc\n"


def test_nothing_is_lost_or_told_twice_when_the_log_is_rotated(path):
    path.write_bytes(b"a\nb\n")
    reader = LogReader(path)
    assert reader.tail(1) == b"b\n"
    assert reader.more() == b""
    add(path, b"c\n")
    path.rename(path.with_name("output.log.1"))
    assert reader.more() == b"c\n"
    assert reader.more() == b""
    add(path, b"d\n")
    assert reader.more() == b"d\n"
    assert reader.more() == b""
    reader.close()


def test_a_log_that_was_emptied_is_read_from_its_beginning(path):
    path.write_bytes(b"a long line\n")
    reader = LogReader(path)
    reader.tail(1)
    path.write_bytes(b"b\n")
    assert reader.more() == b"b\n"
    reader.close()


def test_a_log_that_comes_later_is_read_then(path):
    reader = LogReader(path)
    assert reader.tail(5) == b""
    assert reader.more() == b""
    add(path, b"a\n")
    assert reader.more() == b"a\n"
    reader.close()


def test_large_additions_come_in_pieces(path):
    reader = LogReader(path)
    add(path, b"x" * 200_000)
    sizes = [len(reader.more()) for _ in range(5)]
    assert (max(sizes), sum(sizes)) == (64 << 10, 200_000)
    reader.close()


def test_a_follower_takes_up_another_file_and_ends_when_there_is_none(path, monkeypatch):
    monkeypatch.setattr(module, "LOOK_S", 0.001)
    path.write_bytes(b"a\n")
    other = path.with_name("other.log")
    other.write_bytes(b"b\n")
    paths = [path, path, path, other, other, None]

    async def main():
        pieces = follow(lambda: paths.pop(0), 5)
        return [piece async for piece in pieces]

    assert b"".join(asyncio.run(main())) == b"a\nb\n"
    assert paths == []


def test_a_follower_that_is_left_closes_its_file(path, monkeypatch):
    monkeypatch.setattr(module, "LOOK_S", 60)
    path.write_bytes(b"a\n")

    async def main():
        pieces = follow(lambda: path, 5)
        assert await anext(pieces) == b"a\n"
        assert await anext(pieces) == b""
        waiting = asyncio.ensure_future(anext(pieces))
        await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        await pieces.aclose()

    asyncio.run(main())  # an open file would be a warning, and warnings fail
