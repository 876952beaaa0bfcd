"""The processes of ``serve``: sockets that outlive them, a supervisor that keeps them."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from holdfast.cli import main
from holdfast.config.document import ConfigFileError
from holdfast.config.files import load
from holdfast.config.fleet_file import Address, FleetFile
from holdfast.config.gateway import DrainingConfig
from holdfast.core.types import ConfigError
from holdfast.wire import serve as serve_module
from holdfast.wire.serve import serve
from holdfast.wire.sockets import (
    AddressTakenError,
    close_steered,
    listeners_beside,
    open_listeners,
    steer_around,
    steer_away,
    stop_steering,
)
from holdfast.wire.state_dir import (
    RunningFleet,
    StateDirTakenError,
    default_state_dir,
    held,
    holder,
    read_running,
    write_running,
)
from holdfast.wire.supervisor import Child, Supervisor, Tree
from holdfast.wire.up import _keep_small

LOOPBACK = Address("127.0.0.1", 0)

# Answers every connection with its pid; on SIGTERM it says that it would leave; on SIGINT it ends
# after a moment. What a gateway does, in a few lines that start quickly.
GATEWAY = textwrap.dedent(
    """
    import os, selectors, signal, socket, sys, time
    args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
    listener = socket.socket(fileno=int(args["--listen-fd"]))
    listener.setblocking(False)
    listener.listen(4096)
    until = [float("inf")]
    def leave(*_):
        until[0] = min(until[0], time.monotonic() + 0.3)
    signal.signal(signal.SIGINT, leave)
    signal.signal(signal.SIGTERM, lambda *_: os.write(int(args["--notice-fd"]), b"L"))
    os.write(int(args["--notice-fd"]), b"A")
    waiting = selectors.DefaultSelector()
    waiting.register(listener, selectors.EVENT_READ)
    while time.monotonic() < until[0]:
        if not waiting.select(0.05):
            continue
        while True:
            try:
                client, _ = listener.accept()
            except BlockingIOError:
                break
            client.setblocking(True)
            client.sendall(str(os.getpid()).encode())
            client.close()
    """
)
SLEEPER = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {15}); signal.sigwait({15})"
STUBBORN = textwrap.dedent(
    """
    import signal, time
    signal.signal(signal.SIGTERM, lambda *_: 0)
    signal.signal(signal.SIGINT, lambda *_: 0)
    while True:
        time.sleep(9)
    """
)


@pytest.fixture
def listeners():
    """Sockets that are closed whatever happens."""
    opened = []

    def make(address=LOOPBACK, number=1, *, takeover=False):
        sockets = open_listeners(address, number, takeover=takeover)
        opened.extend(sockets)
        return sockets

    yield make
    for sock in opened:
        sock.close()


def port_of(sockets):
    return sockets[0].getsockname()[1]


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def accepted(sockets):
    """How many connections wait at each socket."""
    counts = []
    for sock in sockets:
        sock.setblocking(False)
        count = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                sock.accept()[0].close()
                count += 1
        counts.append(count)
    return counts


# --- sockets -------------------------------------------------------------------------------------


def test_all_sockets_of_a_port_get_connections(listeners):
    sockets = listeners(number=4)
    assert len({sock.getsockname() for sock in sockets}) == 1
    clients = [connect(port_of(sockets)) for _ in range(100)]
    assert all(accepted(sockets))
    for client in clients:
        client.close()


def test_a_port_that_is_in_use_is_refused_unless_it_is_taken_over(listeners):
    first = listeners()
    address = Address("127.0.0.1", port_of(first))
    with pytest.raises(AddressTakenError, match=r"127\.0\.0\.1:\d+ is in use.*--takeover"):
        listeners(address, 2)
    assert port_of(listeners(address, takeover=True)) == address.port


def test_a_stranger_without_the_option_cannot_be_taken_over(listeners):
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        with pytest.raises(AddressTakenError):
            listeners(Address("127.0.0.1", stranger.getsockname()[1]), takeover=True)


def test_a_successor_gets_nothing_before_it_listens_and_everything_when_it_is_steered_to(listeners):
    old = listeners(number=3)
    address = Address("127.0.0.1", port_of(old))
    new = listeners(address, 2, takeover=True)
    assert not steer_away(old)  # there is nobody to steer to
    clients = [connect(address.port) for _ in range(30)]
    assert sum(accepted(old)) == 30
    for sock in new:
        sock.listen(100)
    assert listeners_beside(old) == 2
    assert steer_away(old)
    clients += [connect(address.port) for _ in range(60)]
    assert accepted(old) == [0, 0, 0]
    taken = accepted(new)
    assert sum(taken) == 60
    assert all(taken)
    close_steered(old)
    assert listeners_beside(new) == 0
    stop_steering(new)
    stop_steering(new)  # there is nothing left: harmless
    clients += [connect(address.port) for _ in range(60)]
    assert all(accepted(new))
    for client in clients:
        client.close()


@pytest.mark.parametrize("avoided", [{0}, {1}, {3}, {0, 2}, {0, 1, 2}])
def test_new_connections_are_led_past_sockets_at_which_nobody_accepts(listeners, avoided):
    sockets = listeners(number=4)
    assert steer_around(sockets, avoided)
    clients = [connect(port_of(sockets)) for _ in range(80)]
    counts = accepted(sockets)
    assert {place for place, count in enumerate(counts) if not count} == avoided
    for everybody in (set(), {0, 1, 2, 3}):  # then they are spread as ever
        assert not steer_around(sockets, everybody)
        clients += [connect(port_of(sockets)) for _ in range(80)]
        assert all(accepted(sockets))
    for client in clients:
        client.close()


def test_sockets_on_ipv6_are_counted_too(listeners):
    try:
        first = listeners(Address("::1", 0))
    except OSError:
        pytest.skip("no IPv6 here")
    address = Address("::1", port_of(first))
    second = listeners(address, takeover=True)
    second[0].listen(1)
    assert listeners_beside(first) == 1


# --- the supervisor ------------------------------------------------------------------------------


def python(code, *arguments):
    return [sys.executable, "-S", "-c", code, *arguments]


def gateway_child(sock, code=GATEWAY):
    command = python(code, "--listen-fd", str(sock.fileno()))
    return Child("gateway-0", command, (sock.fileno(),))


class Watched:
    """A supervisor under test, in this process, with a signal for each wish."""

    def __init__(self, tree, **more):
        self.tree = tree
        self.supervisor = Supervisor(tree, DrainingConfig(0.1, 5.0), **more)

    def pid(self, child=None):
        process = (child or self.tree.gateways[0]).process
        return process.pid if process else 0


def supervise(scene, tree, **more):
    async def main():
        watched = Watched(tree, **more)
        task = asyncio.create_task(watched.supervisor.run())
        try:
            async with asyncio.timeout(30):
                await scene(watched)
        finally:
            watched.supervisor._asked_to_stop()
            await asyncio.wait_for(task, 20)

    asyncio.run(main())


async def until(condition):
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110 processes have no events
            await asyncio.sleep(0.01)


async def whose(port):
    """The pid of who answers a new connection."""

    def ask():
        with connect(port) as client:
            return int(client.makefile("rb").read())

    return await asyncio.to_thread(ask)


def test_a_killed_gateway_is_started_again_and_nobody_is_refused(listeners):
    sockets = listeners()
    tree = Tree(Child("control", python(SLEEPER)), [gateway_child(sockets[0])], sockets)

    async def scene(watched):
        port = port_of(sockets)
        first = await whose(port)
        assert first == watched.pid()
        os.kill(first, signal.SIGKILL)
        second = await whose(port)  # it waits in the queue, which outlived the process
        assert second != first
        assert second == watched.pid()

    supervise(scene, tree, settled_s=0.0)


def test_a_gateway_that_is_asked_to_leave_is_replaced_while_it_drains(listeners):
    sockets = listeners()
    tree = Tree(Child("control", python(SLEEPER)), [gateway_child(sockets[0])], sockets)

    async def scene(watched):
        first = await whose(port_of(sockets))
        os.kill(first, signal.SIGTERM)
        await until(lambda: watched.pid() not in {0, first})
        assert [process.pid for process in watched.supervisor._leaving] == [first]
        await until(lambda: not watched.supervisor._leaving)
        assert tree.gateways[0].accepts
        assert await whose(port_of(sockets)) == watched.pid()

    ready = []
    supervise(scene, tree, on_ready=lambda: ready.append(1))
    assert ready == [1]  # once, not for every successor


def test_a_leaving_gateway_does_not_wait_for_ever_for_its_successor(listeners, monkeypatch):
    monkeypatch.setattr("holdfast.wire.supervisor._SUCCESSOR_S", 0.3)
    sockets = listeners()
    tree = Tree(Child("control", python(SLEEPER)), [gateway_child(sockets[0])], sockets)

    async def scene(watched):
        first = await whose(port_of(sockets))
        tree.gateways[0].command = python(SLEEPER)  # a successor that never accepts
        os.kill(first, signal.SIGTERM)
        await until(lambda: watched.pid() not in {0, first})
        await until(lambda: not watched.supervisor._leaving)

    supervise(scene, tree)


def test_who_dies_young_is_started_again_after_a_growing_pause():
    control = Child("control", python("raise SystemExit(1)"))
    times = []

    class Recorder(Supervisor):
        def _start(self, child):
            times.append(time.monotonic())
            super()._start(child)

    async def main():
        supervisor = Recorder(Tree(control, []), DrainingConfig(0.1, 5.0))
        task = asyncio.create_task(supervisor.run())
        await until(lambda: len(times) == 3)
        supervisor._asked_to_stop()
        await task

    asyncio.run(main())
    assert times[1] - times[0] >= 1.0
    assert times[2] - times[1] >= 2.0


def test_a_command_that_does_not_exist_does_not_end_the_supervisor():
    control = Child("control", ["/no/such/command"])

    async def scene(watched):
        assert control.deaths == 1 or await asyncio.sleep(0.05) is None
        await until(lambda: control.deaths >= 1)

    supervise(scene, Tree(control, []))


def test_a_second_signal_does_not_wait(listeners):
    sockets = listeners()
    tree = Tree(Child("control", python(STUBBORN)), [gateway_child(sockets[0], STUBBORN)], sockets)

    async def main():
        supervisor = Supervisor(tree, DrainingConfig(0.1, 3_000.0))
        task = asyncio.create_task(supervisor.run())
        await until(lambda: tree.gateways[0].process is not None)
        supervisor._asked_to_stop()
        supervisor._asked_to_stop()
        await asyncio.wait_for(task, 15)

    asyncio.run(main())


def test_who_does_not_end_in_time_is_killed(listeners, monkeypatch, tmp_path):
    monkeypatch.setattr("holdfast.wire.supervisor._KILL_AFTER_S", 0.2)
    sockets = listeners()
    deaf = tmp_path / "deaf"  # to signals, from now on
    code = STUBBORN.replace("while True", f"open({str(deaf)!r}, 'w').close()\nwhile True")
    tree = Tree(Child("control", python(STUBBORN)), [gateway_child(sockets[0], code)], sockets)

    async def main():
        supervisor = Supervisor(tree, DrainingConfig(0.1, 0.2))
        task = asyncio.create_task(supervisor.run())
        await until(deaf.exists)
        process = tree.gateways[0].process
        supervisor._asked_to_stop()
        await asyncio.wait_for(task, 15)
        assert process.poll() == -signal.SIGKILL

    asyncio.run(main())


def test_sighup_is_for_control(tmp_path):
    mark = tmp_path / "hup"
    ready = tmp_path / "ready"
    code = (
        "import signal, sys, pathlib\n"
        f"signal.signal(signal.SIGHUP, lambda *_: pathlib.Path({str(mark)!r}).touch())\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "while 1: signal.pause()"
    )

    async def scene(watched):
        await until(ready.exists)
        os.kill(os.getpid(), signal.SIGHUP)
        await until(mark.exists)

    supervise(scene, Tree(Child("control", python(code)), []))


class Clients(threading.Thread):
    """Opens connection after connection; notes every answer and every failure."""

    def __init__(self, port):
        super().__init__()
        self.port = port
        self.answers = []
        self.failures = []
        self.enough = threading.Event()

    def run(self):
        while not self.enough.is_set():
            try:
                with connect(self.port) as client:
                    self.answers.append(int(client.recv(64)))
            except (OSError, ValueError) as error:
                self.failures.append(repr(error))

    def stop(self):
        self.enough.set()
        self.join()


SERVE = textwrap.dedent(
    """
    import asyncio, sys
    from holdfast.config.fleet_file import Address
    from holdfast.config.gateway import DrainingConfig
    from holdfast.wire.sockets import open_listeners
    from holdfast.wire.supervisor import Child, Supervisor, Tree
    port, takeover, gateway, sleeper = sys.argv[1:]
    sockets = open_listeners(Address("127.0.0.1", int(port)), 2, takeover=takeover == "yes")
    python = [sys.executable, "-S", "-c"]
    tree = Tree(
        Child("control", [*python, sleeper]),
        [
            Child(str(s), [*python, gateway, "--listen-fd", str(s.fileno())], (s.fileno(),))
            for s in sockets
        ],
        sockets,
    )
    async def main():
        await Supervisor(tree, DrainingConfig(0.1, 5.0)).run()
    asyncio.run(main())
    """
)


@contextlib.contextmanager
def served(port, *, takeover):
    """A whole supervisor with two gateways, in processes of its own."""
    command = [sys.executable, "-c", SERVE, str(port), takeover, GATEWAY, SLEEPER]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(20)


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)


def test_a_whole_takeover_resets_nobody(listeners):
    witness = listeners()  # holds the port while nobody listens there, and counts who does
    port = port_of(witness)
    witness[0].close()
    witness = listeners(Address("127.0.0.1", port), takeover=True)
    with served(port, takeover="yes") as old:
        wait_until(lambda: listeners_beside(witness) == 2)
        clients = [Clients(port) for _ in range(4)]
        for client in clients:
            client.start()
        try:
            wait_until(lambda: all(len(client.answers) > 50 for client in clients))
            before = {pid for client in clients for pid in client.answers}
            with served(port, takeover="yes"):
                wait_until(lambda: listeners_beside(witness) == 4)
                old.terminate()
                assert old.wait(20) == 0
                assert listeners_beside(witness) == 2
                counts = [len(client.answers) for client in clients]
                wait_until(
                    lambda: all(
                        len(client.answers) > count + 100
                        for client, count in zip(clients, counts, strict=True)
                    )
                )
                for client in clients:
                    client.stop()
        finally:
            for client in clients:
                client.stop()
    assert [failure for client in clients for failure in client.failures] == []
    after = {pid for client in clients for pid in client.answers[-100:]}
    assert len(after) == 2  # both gateways of the successor, once it no longer steers
    assert not before & after


def test_the_end_is_told_and_control_gets_the_time_it_needs_for_its_replicas(tmp_path):
    ready, ended = tmp_path / "ready", tmp_path / "ended"
    code = textwrap.dedent(
        f"""
        import pathlib, signal, sys, time
        def end(*_):
            time.sleep(0.4)  # longer than others get
            pathlib.Path({str(ended)!r}).touch()
            sys.exit(0)
        signal.signal(signal.SIGTERM, end)
        pathlib.Path({str(ready)!r}).touch()
        while 1: signal.pause()
        """
    )
    told = []

    async def scene(watched):
        await until(ready.exists)

    tree = Tree(Child("control", python(code)), [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.wire.supervisor._KILL_AFTER_S", 0.1)
        supervise(scene, tree, say=told.append, replicas_grace_s=15.0)
    assert ended.exists()
    assert told[0] == ("stopping: requests that run have 5 s to finish; Ctrl-C again stops at once")
    assert told[1:] == ["clients are served out; control ends what it started"]


def test_a_control_that_is_killed_leaves_replicas_of_which_people_are_told(monkeypatch):
    monkeypatch.setattr("holdfast.wire.supervisor._HURRY_S", 0.1)
    told = []
    tree = Tree(Child("control", python(STUBBORN)), [])

    async def main():
        more = {"say": told.append, "replicas_grace_s": 3_000.0}
        supervisor = Supervisor(tree, DrainingConfig(0.1, 5.0), **more)
        task = asyncio.create_task(supervisor.run())
        await until(lambda: tree.control.process is not None)
        await until(lambda: ignores_sigterm(tree.control.process.pid))
        supervisor._asked_to_stop()
        supervisor._asked_to_stop()
        supervisor._asked_to_stop()  # nothing more to say
        await asyncio.wait_for(task, 15)

    asyncio.run(main())
    assert told[1] == "stopping at once"
    assert told[-1].startswith("control was killed; replicas that are left end themselves")
    assert len(told) == 4


def ignores_sigterm(pid):
    """Whether a process has a handler for it by now."""
    found = re.search(r"SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text())
    return found is not None and int(found[1], 16) >> (signal.SIGTERM - 1) & 1


def test_a_closed_terminal_ends_what_was_started_at_it():
    tree = Tree(Child("control", python(SLEEPER)), [])

    async def scene(watched):
        await until(lambda: tree.control.process is not None)  # so handlers are there, too
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.wait_for(watched.supervisor.stopping(), 15)

    supervise(scene, tree, hangup_stops=True)


def test_children_write_where_they_are_told_to(tmp_path):
    path = tmp_path / "log"
    code = f"import os; os.write(1, b'out '); os.write(2, b'err'); {SLEEPER}"
    with path.open("a") as log:

        async def scene(watched):
            await until(lambda: path.read_text() == "out err")

        supervise(scene, Tree(Child("control", python(code)), []), log=log)


# --- the state directory --------------------------------------------------------------------------


def test_each_fleet_file_has_its_own_state_dir(tmp_path):
    home = {"XDG_STATE_HOME": "/state"}
    assert default_state_dir(None, home) == Path("/state/holdfast/default")
    first = default_state_dir(tmp_path / "a" / "fleet.yaml", home)
    second = default_state_dir(tmp_path / "b" / "fleet.yaml", home)
    assert first != second
    assert first.parent == Path("/state/holdfast")
    assert re.fullmatch(r"fleet-[0-9a-f]{8}", first.name)
    assert default_state_dir(tmp_path / "b" / ".." / "a" / "fleet.yaml", home) == first


@pytest.mark.parametrize("home", [{}, {"XDG_STATE_HOME": ""}, {"XDG_STATE_HOME": "relative"}])
def test_without_a_usable_wish_state_is_in_the_home_directory(monkeypatch, home):
    monkeypatch.setenv("HOME", "/home/somebody")
    expected = Path("/home/somebody/.local/state/holdfast/default")
    assert default_state_dir(None, home) == expected


def test_one_process_at_a_time_has_a_state_dir(tmp_path):
    where = tmp_path / "state"
    assert holder(where) is None
    with held(where):
        assert holder(where) == os.getpid()
        assert where.stat().st_mode & 0o777 == 0o700
        assert read_running(where) is None  # it has not said yet where it is
        running = RunningFleet(os.getpid(), "http://a", "http://d", "fleet.yaml")
        write_running(where, running)
        assert read_running(where) == running
        with pytest.raises(StateDirTakenError, match=f"pid {os.getpid()}"), held(where):
            pass
        assert holder(where) == os.getpid()
    assert holder(where) is None
    assert not (where / "up.json").exists()
    with held(where):
        assert read_running(where) is None


def test_what_a_crash_left_names_nobody(tmp_path):
    code = (
        "import os; from pathlib import Path\n"
        "from holdfast.wire.state_dir import RunningFleet, held, write_running\n"
        f"where = Path({str(tmp_path)!r})\n"
        "with held(where):\n"
        "    write_running(where, RunningFleet(os.getpid(), 'http://a', 'http://d', 'f'))\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert (tmp_path / "up.json").exists()
    assert (tmp_path / "lock").read_text()
    assert holder(tmp_path) is None
    assert read_running(tmp_path) is None
    with held(tmp_path):
        assert holder(tmp_path) == os.getpid()


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


# --- the commands --------------------------------------------------------------------------------


def test_launched_replicas_cannot_be_taken_over(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text("models: [{name: m, engine: vllm, launch: {command: [engine]}}]\n")
    with pytest.raises(ConfigError, match="--takeover: is no use where models are launched"):
        serve(path, takeover=True, say=print)


def test_a_bad_file_is_told_before_anything_starts(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text("models: []\n")
    with pytest.raises(ConfigFileError, match=r"fleet\.yaml:1: models"):
        serve(path, takeover=False, say=print)


def test_an_unknown_log_level_is_told_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_LOG_LEVEL", "chatty")
    path = tmp_path / "fleet.yaml"
    path.write_text("models: [{name: m, engine: vllm, endpoints: ['http://127.0.0.1:9']}]\n")
    told = CliRunner().invoke(main, ["serve", "-c", str(path)])
    assert told.exit_code == 2
    assert "HOLDFAST_LOG_LEVEL: is 'chatty'" in told.stderr
    assert "use one of debug, info, warning, error" in told.stderr


def test_a_switch_that_is_neither_on_nor_off_is_told_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_PLAIN", "yes")
    path = tmp_path / "fleet.yaml"
    path.write_text("models: [{name: m, engine: vllm, endpoints: ['http://127.0.0.1:9']}]\n")
    told = CliRunner().invoke(main, ["serve", "-c", str(path)])
    assert told.exit_code == 2
    assert "HOLDFAST_PLAIN: is 'yes'; use 1, or do not set it" in told.stderr


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


@pytest.mark.parametrize(
    ("gateway", "warned"),
    [
        ("{listen: '0.0.0.0:8000'}", True),
        ("{listen: '[::]:8000'}", True),
        ("{listen: '127.0.0.1:8000'}", False),
        ("{listen: '0.0.0.0:8000', tls: {certificate: /c.pem, key: /c.key}}", False),
    ],
)
def test_clients_beyond_this_machine_without_tls_are_warned_of(tmp_path, gateway, warned):
    path = tmp_path / "fleet.yaml"
    path.write_text(
        f"gateway: {gateway}\n"
        "models: [{name: m, engine: vllm, endpoints: [http://127.0.0.1:1]}]\n"
        f"tenants: [{{name: t, keys: ['sha256:{'ab' * 32}']}}]\n"
    )
    with capture_logs() as logs:
        serve_module._warn_of_plain_text(load(path, FleetFile))
    assert [one["event"] for one in logs] == (["clients without TLS"] if warned else [])
    if warned:
        assert "readable" in logs[0]["why"]
        assert "gateway.tls" in logs[0]["fix"]
        assert logs[0]["log_level"] == "warning"


def test_a_port_in_use_is_a_readable_error(tmp_path, listeners):
    port = port_of(listeners())
    path = tmp_path / "fleet.yaml"
    path.write_text(
        f"gateway: {{listen: '127.0.0.1:{port}'}}\nadmin: {{listen: '127.0.0.1:0'}}\n"
        "models: [{name: m, engine: vllm, endpoints: [http://127.0.0.1:1]}]\n"
    )
    result = CliRunner().invoke(main, ["serve", "-c", str(path)])
    assert result.exit_code == 1
    assert "is in use" in result.output


STORY = {
    "request_id": "req_1",
    "asked_for": "m",
    "replica": "m-2",
    "status": 200,
    "code": "",
    "story": [
        {"at_s": 0.0, "what": "arrived", "detail": ""},
        {"at_s": 0.0123, "what": "dispatch", "detail": "m-2: least loaded"},
    ],
}


@contextlib.contextmanager
def admin_that_answers(status, body):
    """An admin port that gives one answer, in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10.0)  # who fails before it asks must not wait for ever

        def answer():
            client, _ = server.accept()
            with client:
                client.recv(65_536)
                head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n"
                client.sendall(head.encode() + body)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def explain(url, *options):
    return CliRunner().invoke(main, ["explain", "req_1", "--admin", url, *options])


def test_explain_prints_a_story_as_a_table():
    with admin_that_answers(200, json.dumps(STORY).encode()) as url:
        result = explain(url)
    assert result.exit_code == 0
    assert "req_1: asked_for m, replica m-2, status 200" in result.output
    assert "12.3 ms" in result.output
    assert "m-2: least loaded" in result.output


def test_explain_prints_json_when_asked():
    with admin_that_answers(200, json.dumps(STORY).encode()) as url:
        result = explain(url, "--json")
    assert json.loads(result.output) == STORY


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [(404, b'{"error": "no gateway knows it"}', "no gateway knows it"), (500, b"oops", "500")],
)
def test_explain_says_why_there_is_no_story(status, body, told):
    with admin_that_answers(status, body) as url:
        result = explain(url)
    assert result.exit_code == 1
    assert told in result.output


def test_explain_says_when_nobody_listens():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        result = explain(f"http://127.0.0.1:{sock.getsockname()[1]}")
    assert result.exit_code == 1
    assert "is 'holdfast up' or 'holdfast serve' running?" in result.output


# --- the real control process --------------------------------------------------------------------


def test_the_control_process_serves_operators_and_ends_on_sigterm(tmp_path, listeners):
    path = tmp_path / "fleet.yaml"
    path.write_text("models: [{name: m, engine: vllm, endpoints: [http://127.0.0.1:1]}]\n")
    admin = listeners()
    code = (
        "from holdfast.wire.processes import run_control; from pathlib import Path\n"
        f"run_control(Path({str(path)!r}), Path({str(tmp_path)!r}), {admin[0].fileno()})"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], pass_fds=[admin[0].fileno()], stderr=subprocess.PIPE
    )
    try:
        with connect(port_of(admin)) as client:
            client.sendall(b"GET /status HTTP/1.0\r\nHost: localhost\r\n\r\n")
            answer = client.makefile("rb").read()
        assert b'"endpoint":"http://127.0.0.1:1"' in answer
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    lines = [json.loads(line) for line in errors.decode().splitlines()]
    assert any(line["event"] == "warming" for line in lines)
    assert Path(tmp_path / "state.frames").exists()


@pytest.mark.parametrize("process", ["control", "gateway"])
def test_whose_supervisor_was_killed_before_it_began_ends_at_once(tmp_path, listeners, process):
    path = tmp_path / "fleet.yaml"
    path.write_text("models: [{name: m, engine: vllm, endpoints: [http://127.0.0.1:1]}]\n")
    given = listeners()[0].fileno()
    reading, notices = os.pipe()
    os.close(reading)
    place = f"Path({str(tmp_path)!r}), {given}"
    calls = {
        "control": f"run_control(Path({str(path)!r}), {place}, None, {notices})",
        "gateway": f"run_gateway(0, Path({str(tmp_path)!r}), {place}, {notices})",
    }
    code = "from pathlib import Path; from holdfast.wire.processes import *\n"
    try:
        ended = subprocess.run(
            [sys.executable, "-c", code + calls[process]],
            pass_fds=[given, notices],
            timeout=20,
            check=False,
        )
    finally:
        os.close(notices)
    assert ended.returncode == -signal.SIGTERM
