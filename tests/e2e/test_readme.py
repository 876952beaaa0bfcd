"""The README, followed by a new user: every command in it is run, in its order, as it stands there.

``make run`` gives the fleet that the others talk to. ``make test`` is what runs this. What goes on
for ever is run until it says that it is there, and stays for whoever comes after it.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"```(sh|python)\n(.*?)```", re.DOTALL)
PATIENCE_S = 180.0
LASTING = {  # what goes on until it is stopped, and what it says when it is there
    "make run": "dashboard",
    "holdfast serve": "ready",
    "holdfast stand-in": "stand-in for",
}
ELSEWHERE = ("make test", "source .venv/bin/activate")  # what runs this; what the fixture does


def steps():
    """Every command and every snippet of Python, in the order of the page."""
    found = []
    for kind, body in FENCE.findall((ROOT / "README.md").read_text("utf-8")):
        if kind == "python":
            found.append((kind, body))
            continue
        for line in body.replace("\\\n", "").splitlines():
            if line.startswith(" ") and "'" in line:  # the rest of a quoted text
                found[-1] = (kind, f"{found[-1][1]}\n{line}")
            elif line.strip():
                found.append((kind, re.sub(r"\s+#\s.*", "", line)))
    return found


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory):
    """A user of this machine with nothing in the state directory, and the environment active."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    state = str(tmp_path_factory.mktemp("state"))
    return {**os.environ, "XDG_STATE_HOME": state, "PATH": path}


@contextmanager
def lasting(line, environment):
    """A command that goes on for ever, from the moment it says that it is there."""
    process = subprocess.Popen(
        shlex.split(line),
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    word = next(word for start, word in LASTING.items() if line.startswith(start))
    said, there = [], threading.Event()

    def listen():
        for text in process.stdout:
            said.append(text)
            if word in text:
                there.set()
        there.set()  # it ended: nothing more will be said

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        assert there.wait(PATIENCE_S), "".join(said)
        assert any(word in text for text in said), "".join(said)
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(PATIENCE_S)
        listener.join(PATIENCE_S)
        process.stdout.close()


def run(kind, text, environment):
    command = [sys.executable, "-c", text] if kind == "python" else ["bash", "-ec", text]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_page_has_the_commands_that_this_test_is_for():
    lines = [text for kind, text in steps() if kind == "sh"]
    assert {"make run", "make test", "holdfast status", "holdfast down"} <= set(lines)
    assert any(line.startswith("kill -STOP") for line in lines)


def test_every_command_works_as_it_stands_there(surroundings):
    said = {}
    with ExitStack() as running:
        for kind, text in steps():
            if text in ELSEWHERE:
                continue
            if kind == "sh" and text.startswith(tuple(LASTING)):
                running.enter_context(lasting(text, surroundings))
            else:
                said[text] = run(kind, text, surroundings)
            if text == "holdfast down":
                running.close()  # `make run` must have ended by itself
    assert said["holdfast status"].count("smollm2-") >= 3
    chat = next(told for text, told in said.items() if text.startswith("curl"))
    assert '"finish_reason":"' in chat
    assert chat.rstrip().endswith("data: [DONE]")
