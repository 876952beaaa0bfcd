import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.sources.process_memory import TREE_MAX, ProcessTreeUsage, host_memory, read_trees

MB = 1 << 20


class Machine:
    """A /proc and a cgroup tree on paper."""

    def __init__(self, root):
        self.proc = root / "proc"
        self.cgroups = root / "cgroup"
        self.proc.mkdir()
        self.cgroups.mkdir()

    def process(self, pid, parent=1, name="engine", *, anon=0, file=0, shmem=0, cgroup="/", io=()):
        folder = self.proc / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} ({name}) S {parent} 1 1 0\n")
        (folder / "status").write_text(
            f"Name:\t{name}\nVmRSS:\t 999 kB\nRssAnon:\t{anon // 1024} kB\n"
            f"RssFile:\t{file // 1024} kB\nRssShmem:\t{shmem // 1024} kB\n"
        )
        (folder / "cgroup").write_text(f"0::{cgroup}\n")
        if io:
            (folder / "io").write_text(f"rchar: {io[0]}\nwchar: 7\nread_bytes: {io[1]}\n")

    def limit(self, path, text):
        folder = self.cgroups / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{text}\n")

    def read(self, *roots):
        return read_trees(roots, self.proc, self.cgroups)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_a_tree_is_its_anonymous_memory_and_one_share_of_what_is_mapped_by_all(machine):
    machine.process(10, anon=100 * MB, file=50 * MB)
    machine.process(11, 10, anon=20 * MB, file=50 * MB, shmem=5 * MB)
    machine.process(12, 11, anon=3 * MB)
    machine.process(90, anon=999 * MB)
    assert machine.read(10) == {10: ProcessTreeUsage(178 * MB, None, None, (10, 11, 12))}


def test_what_is_gone_is_left_out(machine):
    machine.process(10, anon=MB)
    assert list(machine.read(10, 4711)) == [10]
    assert machine.read() == {}


def test_a_zombie_has_no_memory(machine):
    machine.process(10, anon=MB)
    (machine.proc / "10" / "status").write_text("Name:\tengine\nState:\tZ (zombie)\n")
    assert machine.read(10) == {}


def test_a_name_with_brackets_and_blanks_does_not_hide_the_parent(machine):
    machine.process(10, name="a) S 99 (b", anon=MB)
    machine.process(11, 10, name="x y) Z", anon=MB)
    assert machine.read(10)[10].pids == (10, 11)


def test_the_narrowest_cgroup_counts(machine):
    machine.process(10, anon=MB, cgroup="/pod/engine")
    machine.limit("pod/engine", "max")
    machine.limit("pod", str(512 * MB))
    machine.limit(".", str(900 * MB))
    assert machine.read(10)[10].limit_bytes == 512 * MB


@pytest.mark.parametrize("line", ["", "1:name=systemd:/x\n", "0::/../..\n"])
def test_without_a_limit_none_is_made_up(machine, line):
    machine.process(10, anon=MB)
    (machine.proc / "10" / "cgroup").write_text(line)
    assert machine.read(10)[10].limit_bytes is None


def test_what_was_read_is_the_most_that_any_measure_shows(machine):
    machine.process(10, file=9 * MB, io=(5 * MB, 2 * MB))
    machine.process(20, file=1 * MB, io=(5 * MB, 8 * MB))
    found = machine.read(10, 20)
    assert found[10].read_bytes == 9 * MB
    assert found[20].read_bytes == 8 * MB


def test_a_tree_is_counted_up_to_a_bound(machine):
    machine.process(10, anon=MB)
    for pid in range(1000, 1000 + TREE_MAX + 5):
        (machine.proc / str(pid)).mkdir()
        (machine.proc / str(pid) / "stat").write_text(f"{pid} (x) S 10 1\n")
    assert machine.read(10)[10].pids == (10,)


def test_nonsense_in_proc_is_passed_over(machine):
    machine.process(10, anon=MB)
    for number, text in ((20, ""), (21, "21 (x"), (22, "22 (x) S y")):
        (machine.proc / str(number)).mkdir()
        (machine.proc / str(number) / "stat").write_text(text)
    (machine.proc / "meminfo").write_text("MemTotal: lots\n")
    assert list(machine.read(10)) == [10]
    assert host_memory(machine.proc) is None


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_a_real_process_and_its_child_are_found():
    program = "import sys; held = b'x' * (64 << 20); print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        found = read_trees([os.getpid()])[os.getpid()]
        alone = read_trees([child.pid])[child.pid]
        child.stdin.close()
    assert child.pid in found.pids
    assert found.used_bytes > alone.used_bytes > 64 << 20
    assert host_memory() > alone.used_bytes
