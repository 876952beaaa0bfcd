import os
import socket

import pytest

from holdfast.agent.process_finder import AGAIN_S, ProcessFinder
from holdfast.agent.settings import ReplicaRule

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt uid inode\n"


def rule(how, what, name="r"):
    return ReplicaRule(name, "m", how, str(what))


class Machine:
    def __init__(self, root):
        self.proc = root
        self.now = 0.0

    def listens(self, port, inode, name="tcp", state="0A"):
        path = self.proc / "net" / name
        path.parent.mkdir(exist_ok=True)
        text = path.read_text() if path.exists() else HEAD
        row = f"   0: 0100007F:{port:04X} 00000000:0000 {state} 0:0 00:0 0 1000 0 {inode} 1 x\n"
        path.write_text(text + row)

    def process(self, pid, *inodes, parent=1, start=5):
        folder = self.proc / str(pid) / "fd"
        folder.mkdir(parents=True, exist_ok=True)
        stat = " ".join(["S", str(parent), *["0"] * 17, str(start)])
        (self.proc / str(pid) / "stat").write_text(f"{pid} (x) {stat}\n")
        for number, inode in enumerate(inodes):
            (folder / str(number)).symlink_to(f"socket:[{inode}]")

    def finder(self, *rules):
        return ProcessFinder(rules, self.proc, lambda: self.now)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_a_pid_is_what_was_said_and_a_file_what_it_holds(machine, tmp_path):
    file = tmp_path / "engine.pid"
    file.write_text("77\n")
    finder = machine.finder(rule("pid", 42, "a"), rule("pidfile", file, "b"))
    assert finder.find() == {"a": (42, ""), "b": (77, "")}
    file.write_text("nothing")
    assert finder.find()["b"] == (None, f"{file} holds no process id")
    file.unlink()
    assert finder.find()["b"][0] is None


def test_the_eldest_of_those_who_listen_on_a_port(machine):
    machine.listens(8000, 111)
    machine.listens(8000, 222, "tcp6")
    machine.listens(8001, 333, state="01")
    machine.process(20, 111, 222)
    machine.process(30, 111, parent=20)
    machine.process(10, 999)
    finder = machine.finder(rule("port", 8000), rule("port", 8001, "s"))
    assert finder.find() == {
        "r": (20, ""),
        "s": (None, "no process listens on port 8001"),
    }


def test_a_port_is_looked_for_again_only_now_and_then(machine):
    finder = machine.finder(rule("port", 8000))
    assert finder.find()["r"][0] is None
    machine.listens(8000, 111)
    machine.process(20, 111)
    assert finder.find()["r"][0] is None
    machine.now += AGAIN_S
    assert finder.find()["r"] == (20, "")


def test_a_holder_that_ended_is_looked_for_anew(machine):
    machine.listens(8000, 111)
    machine.process(20, 111)
    finder = machine.finder(rule("port", 8000))
    assert finder.find()["r"][0] == 20
    machine.process(20, start=9)  # another process has the pid now
    (machine.proc / "20" / "fd" / "0").unlink()
    assert finder.find()["r"][0] is None
    machine.process(40, 111)
    machine.now += AGAIN_S
    assert finder.find()["r"][0] == 40


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everybody's descriptors")
def test_descriptors_that_are_not_ours_to_read_are_said(machine):
    machine.listens(8000, 111)
    machine.process(20, 111)
    (machine.proc / "20" / "fd").chmod(0)
    assert "(1 are others')" in machine.finder(rule("port", 8000)).find()["r"][1]
    (machine.proc / "20" / "fd").chmod(0o700)


def test_this_very_process_is_found_by_its_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert ProcessFinder([rule("port", port)]).find()["r"][0] == os.getpid()
