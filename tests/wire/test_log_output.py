"""What a log line may hold, from which level on, and what becomes of a full file."""

import json
import os
import subprocess
import sys

import pytest

from holdfast.wire.up import _keep_small


@pytest.mark.parametrize(
    ("level", "told"),
    [
        (None, ["info", "warning"]),
        ("", ["info", "warning"]),
        ("WARNING", ["warning"]),
        ("debug", ["debug", "info", "warning"]),
    ],
)
def test_logs_begin_at_the_level_that_is_asked_for(level, told):
    code = (
        "import structlog\n"
        "from holdfast.wire.log_output import configure_logging\n"
        "configure_logging()\n"
        "log = structlog.get_logger()\n"
        "for level in ('debug', 'info', 'warning'): getattr(log, level)('said')\n"
    )
    asked = {} if level is None else {"HOLDFAST_LOG_LEVEL": level}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={name: value for name, value in os.environ.items() if name != "HOLDFAST_LOG_LEVEL"}
        | asked,
        capture_output=True,
        check=True,
    )
    assert [json.loads(line)["level"] for line in done.stderr.splitlines()] == told


def test_a_log_line_has_no_control_character_in_it():
    planted = "".join(map(chr, range(0x7F, 0xA0)))
    code = (
        "import sys, structlog\n"
        "from holdfast.wire.log_output import configure_logging\n"
        "configure_logging()\n"
        "structlog.get_logger().warning('said', reason=sys.argv[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, f"\x1b[2J{planted}grün"],
        env=os.environ | {"PYTHONUTF8": "1"},
        capture_output=True,
        check=True,
    )
    line = done.stderr.decode().removesuffix("\n")
    assert line.isprintable()
    assert "\\u009b" in line
    assert json.loads(line)["reason"] == f"\x1b[2J{planted}grün"


def test_a_full_log_is_moved_aside_and_its_writers_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.wire.up.LOG_BYTES_MAX", 10)
    path = tmp_path / "holdfast.log"
    _keep_small(path)  # there is none yet
    with path.open("a") as log:
        log.write("0123456789")
        log.flush()
        _keep_small(path)
        assert path.read_text() == "0123456789"
        log.write("+")
        log.flush()
        _keep_small(path)
        log.write("more")
    assert path.read_text() == "more"
    assert (tmp_path / "holdfast.log.1").read_text() == "0123456789+"
