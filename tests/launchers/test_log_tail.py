"""Following a log that grows and is rotated."""

import pytest

from holdfast.launchers.log_tail import LogTail


@pytest.fixture
def log(tmp_path):
    return tmp_path / "output.log"


@pytest.fixture
def tail(log):
    made = LogTail(log)
    yield made
    made.close()


def add(log, data):
    with log.open("ab") as opened:
        opened.write(data)


def test_no_file_yet_is_no_line(tail):
    assert tail.lines() == []


def test_whole_lines_come_once_and_a_part_waits_for_its_end(log, tail):
    add(log, b"one\ntw")
    assert tail.lines() == ["one"]
    add(log, b"o\n\r\n  \nthree\r\n")
    assert tail.lines() == ["two", "three"]
    assert tail.lines() == []


def test_what_was_there_before_can_be_passed_over(log, tail):
    add(log, b"old\n")
    tail.skip_to_end()
    add(log, b"new\n")
    assert tail.lines() == ["new"]


def test_a_rotation_loses_nothing(log, tail):
    add(log, b"one\nha")
    assert tail.lines() == ["one"]
    add(log, b"lf ")
    log.rename(log.with_name("output.log.1"))
    add(log, b"and half\nlast\n")
    assert tail.lines() == ["half and half", "last"]


def test_a_rotation_whose_new_file_is_not_there_yet_is_waited_for(log, tail):
    add(log, b"one\n")
    tail.lines()
    log.rename(log.with_name("output.log.1"))
    assert tail.lines() == []
    add(log, b"two\n")
    assert tail.lines() == ["two"]


def test_long_lines_are_cut_and_bad_bytes_shown(log, tail):
    add(log, b"x" * 5000 + b"\n\xff\xfe text\n")
    first, second = tail.lines()
    assert first == "x" * 1000
    assert second == "�� text"


def test_a_line_without_end_is_held_only_so_far(log, tail):
    for _ in range(20):
        add(log, b"y" * 100_000)
        tail.lines()
    add(log, b"\n")
    (line,) = tail.lines()
    assert len(line) <= 1000


def test_whoever_falls_far_behind_is_brought_to_the_end_and_it_is_counted(log, tail):
    add(log, b"first\n")
    tail.lines()
    add(log, b"z" * 99 + b"\n")
    add(log, (b"z" * 99 + b"\n") * 30_000)
    add(log, b"latest\n")
    lines = tail.lines()
    assert len(lines) < 5000
    while more := tail.lines():
        lines = more
    assert lines[-1] == "latest"
    assert tail.skipped_bytes > 1_000_000
