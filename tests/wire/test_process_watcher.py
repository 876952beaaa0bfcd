"""Children of a supervisor that freeze: real processes, stopped and stuck."""

import asyncio
import os
import signal
import socket
import sys
import textwrap

import pytest

from holdfast.config.fleet_file import Address
from holdfast.config.gateway import DrainingConfig
from holdfast.control.gateways.kernel_state import read_stat
from holdfast.control.gateways.process_report import REPORT_FILE, read_report
from holdfast.core.health.process_watch import KernelState, ProcessWatchConfig
from holdfast.wire.process_watcher import ProcessWatcher
from holdfast.wire.processes import _teller
from holdfast.wire.sockets import open_listeners
from holdfast.wire.supervisor import Child, Supervisor, Tree

# Accepts and says its pid, and beats at every turn. With SIGUSR1 its loop stands still for ever.
BEATING = textwrap.dedent(
    """
    import os, select, signal, socket, sys, time
    args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
    notices = int(args["--notice-fd"])
    listener = socket.socket(fileno=int(args["--listen-fd"])) if "--listen-fd" in args else None
    stuck = []
    signal.signal(signal.SIGUSR1, lambda *_: stuck.append(1))
    signal.signal(signal.SIGTERM, lambda *_: os.write(notices, b"L") if listener else sys.exit())
    os.write(notices, b"A")
    while True:
        while stuck:
            time.sleep(60)
        os.write(notices, b"B")
        ready = select.select([listener] if listener else [], [], [], 0.05)[0]
        if ready:
            client, _ = listener.accept()
            client.sendall(str(os.getpid()).encode())
            client.close()
    """
)
QUICK = ProcessWatchConfig(look_s=0.05, stopped_s=0.4, late_s=0.3, stuck_s=0.8)
PATIENT = ProcessWatchConfig(look_s=0.05, stopped_s=300.0, late_s=0.3, stuck_s=300.0)


class Scene:
    """A supervisor with control and gateways, and the report that it writes."""

    def __init__(self, folder, config, workers=1):
        self.sockets = open_listeners(Address("127.0.0.1", 0), workers, takeover=False)
        python = [sys.executable, "-S", "-c", BEATING]
        fds = [sock.fileno() for sock in self.sockets]
        self.control = Child("control", python)
        self.gateways = [
            Child(f"gateway-{place}", [*python, "--listen-fd", str(fd)], (fd,))
            for place, fd in enumerate(fds)
        ]
        self.gateway = self.gateways[0]
        self.address = self.sockets[0].getsockname()
        self.said = []
        self.path = folder / REPORT_FILE
        self.watcher = ProcessWatcher(config, self.path, self.said.append)
        tree = Tree(self.control, self.gateways, self.sockets, in_order=True)
        self.supervisor = Supervisor(
            tree, DrainingConfig(0.1, 5.0), settled_s=0.0, watcher=self.watcher
        )

    def play(self, scene):
        async def main():
            task = asyncio.create_task(self.supervisor.run())
            try:
                async with asyncio.timeout(60):
                    await self.until(lambda: self.conditions() == {"turning"})
                    await scene()
            finally:
                for _ in range(2):  # they are not asked to drain
                    self.supervisor._asked_to_stop()
                await asyncio.wait_for(task, 20)

        try:
            asyncio.run(main())
        finally:
            for sock in self.sockets:
                sock.close()

    async def until(self, condition):
        async with asyncio.timeout(30):
            while not condition():  # noqa: ASYNC110 processes have no events
                await asyncio.sleep(0.01)

    def report(self):
        return read_report(self.path)

    def conditions(self):
        report = self.report()
        return {row.condition for row in report.processes} if report else set()

    def condition(self, name):
        return {row.name: row.condition for row in self.report().processes}[name]

    async def whose(self):
        """The pid of who answers a new connection."""

        def ask():
            with socket.create_connection(self.address, timeout=30) as client:
                return int(client.makefile("rb").read())

        return await asyncio.to_thread(ask)


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path, QUICK)


def test_a_stopped_gateway_is_replaced_and_who_waited_is_served_by_its_successor(scene):
    async def play():
        pid = await scene.whose()
        os.kill(pid, signal.SIGSTOP)
        waiting = await asyncio.gather(*(scene.whose() for _ in range(20)))
        assert set(waiting) == {scene.gateway.process.pid}
        assert pid not in waiting
        (replaced,) = scene.report().replaced
        assert (replaced.name, replaced.pid, replaced.condition) == ("gateway-0", pid, "stopped")
        assert replaced.lasted_s >= QUICK.stopped_s
        assert scene.report().counts == {"gateway stopped": 1}
        await scene.until(lambda: scene.conditions() == {"turning"})

    scene.play(play)
    assert any(line.startswith("gateway-0 was stopped") for line in scene.said)


def test_a_stopped_control_is_replaced_too(scene):
    async def play():
        pid = scene.control.process.pid
        os.kill(pid, signal.SIGSTOP)
        await scene.until(lambda: scene.report().counts == {"control stopped": 1})
        await scene.until(lambda: scene.control.process and scene.control.process.pid != pid)
        await scene.until(lambda: scene.conditions() == {"turning"})

    scene.play(play)


def test_a_loop_that_does_not_turn_is_named_and_then_replaced(scene):
    async def play():
        pid = await scene.whose()
        os.kill(pid, signal.SIGUSR1)
        await scene.until(lambda: scene.report().counts == {"gateway stuck": 1})
        assert await scene.whose() != pid
        assert scene.report().replaced[0].lasted_s >= QUICK.stuck_s - 0.1

    scene.play(play)


def test_a_process_that_goes_on_in_time_keeps_its_place(tmp_path):
    scene = Scene(tmp_path, PATIENT)

    async def play():
        pid = await scene.whose()
        os.kill(pid, signal.SIGSTOP)
        await scene.until(lambda: scene.condition("gateway-0") == "stopped")
        os.kill(pid, signal.SIGCONT)
        await scene.until(lambda: scene.conditions() == {"turning"})
        os.kill(pid, signal.SIGUSR1)  # late and not stopped
        await scene.until(lambda: scene.condition("gateway-0") == "late")
        assert scene.gateway.process.pid == pid
        assert (scene.report().replaced, scene.report().counts) == ([], {})

    scene.play(play)


def test_a_leaving_process_that_is_stopped_is_killed_and_has_one_successor(scene):
    async def play():
        first = await scene.whose()
        os.kill(first, signal.SIGTERM)
        await scene.until(lambda: scene.supervisor._leaving)
        os.kill(first, signal.SIGSTOP)
        await scene.until(lambda: not scene.supervisor._leaving)
        second = scene.gateway.process.pid
        assert await scene.whose() == second != first

    scene.play(play)


def test_a_report_that_cannot_be_written_changes_nothing_else(scene, tmp_path):
    async def play():
        scene.watcher._path = tmp_path / "gone" / REPORT_FILE
        pid = await scene.whose()
        os.kill(pid, signal.SIGSTOP)
        assert await scene.whose() != pid

    scene.play(play)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("7 (python3) S 1 7 7 0 -1 0 0 0 0 0 200 50 0 0", KernelState.SLEEPING),
        ("7 (a) T (b) R 1 7 7 0 -1 0 0 0 0 0 200 50 0 0", KernelState.RUNNABLE),
        ("7 (x) T 1 7 7 0 -1 0 0 0 0 0 200 50 0 0", KernelState.STOPPED),
        ("7 (x) t 1 7 7 0 -1 0 0 0 0 0 200 50 0 0", KernelState.TRACED),
        ("7 (x) D 1 7 7 0 -1 0 0 0 0 0 200 50 0 0", KernelState.BLOCKED),
        ("7 (x) ? 1 7 7 0 -1 0 0 0 0 0 200 50 0 0", KernelState.UNKNOWN),
    ],
)
def test_state_and_cpu_time_are_read_behind_the_name(tmp_path, line, expected):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(line)
    state, cpu = read_stat(tmp_path, 7)
    assert state is expected
    assert cpu == 250 * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))


@pytest.mark.parametrize("line", [None, "", "7 (x)", "7 (x) S 1 2", "7 (x) S " + "x " * 20])
def test_what_cannot_be_read_is_unknown(tmp_path, line):
    if line is not None:
        (tmp_path / "7").mkdir()
        (tmp_path / "7" / "stat").write_text(line)
    assert read_stat(tmp_path, 7) == (KernelState.UNKNOWN, 0)


def test_a_supervisor_that_does_not_read_is_never_waited_for():
    reading, writing = os.pipe()
    try:
        tell = _teller(writing)
        while tell(b"B" * 4_096):
            pass  # until the pipe is full
        assert not tell(b"B")
        os.read(reading, 65_536)
        assert tell(b"B")
    finally:
        os.close(reading)
        os.close(writing)
    assert not _teller(None)(b"B")


def test_new_connections_are_led_past_a_frozen_gateway_while_another_accepts(tmp_path):
    scene = Scene(tmp_path, PATIENT, workers=2)

    async def play():
        first, second = scene.gateway.process.pid, scene.gateways[1].process.pid
        await scene.until(lambda: all(child.accepts for child in scene.gateways))
        os.kill(first, signal.SIGSTOP)
        await scene.until(lambda: scene.supervisor._avoided == {0})
        assert {await scene.whose() for _ in range(20)} == {second}
        os.kill(first, signal.SIGCONT)
        await scene.until(lambda: not scene.supervisor._avoided)
        await scene.until(lambda: scene.conditions() == {"turning"})
        pids = set()
        async with asyncio.timeout(30):
            while pids != {first, second}:
                pids.add(await scene.whose())

    scene.play(play)
