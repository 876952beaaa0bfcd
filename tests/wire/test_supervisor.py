"""The supervisor keeps gateways and control: deaths, successors, takeovers, the end."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from wire_stage import connect, port_of

from holdfast.config.fleet_file import Address
from holdfast.config.gateway import DrainingConfig
from holdfast.wire.sockets import listeners_beside
from holdfast.wire.supervisor import Child, Supervisor, Tree

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
        "import signal, pathlib\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "signal.sigwait([signal.SIGHUP])\n"
        f"pathlib.Path({str(mark)!r}).touch()\n"
        "signal.pause()"
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
        import pathlib, signal, time
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until it is waited for
        pathlib.Path({str(ready)!r}).touch()
        signal.sigwait([signal.SIGTERM])
        time.sleep(0.4)  # longer than others get
        pathlib.Path({str(ended)!r}).touch()
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
