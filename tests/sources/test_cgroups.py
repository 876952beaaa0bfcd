import pytest

from holdfast.sources.cgroups import kills_since, read_cgroup

V2 = {
    "memory.current": "900\n",
    "memory.max": "1000\n",
    "memory.stat": "anon 500\ninactive_file 300\n",
    "memory.events": "low 0\noom 2\noom_kill 1\n",
    "cgroup.procs": "10\n11\n",
}
V1 = {
    "memory.usage_in_bytes": "900\n",
    "memory.limit_in_bytes": "9223372036854771712\n",
    "memory.stat": "inactive_file 1\ntotal_inactive_file 100\n",
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
    "cgroup.procs": "10\n",
}


class Machine:
    def __init__(self, root):
        self.proc, self.cgroups = root / "proc", root / "cgroup"

    def process(self, pid, text):
        folder = self.proc / str(pid)
        folder.mkdir(parents=True)
        (folder / "cgroup").write_text(text)

    def cgroup(self, path, files):
        folder = self.cgroups / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text)
        return folder

    def read(self, pid):
        return read_cgroup(pid, self.proc, self.cgroups)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_use_is_what_counts_against_the_limit_less_what_the_kernel_drops_first(machine):
    machine.process(10, "0::/a/b\n")
    folder = machine.cgroup("a/b", V2)
    read = machine.read(10)
    assert (read.folder, read.used_bytes, read.limit_bytes, read.kills, read.pids) == (
        folder,
        600,
        1000,
        1,
        (10, 11),
    )


def test_version_1_tells_the_same_and_its_huge_limit_is_none(machine):
    machine.process(10, "4:memory:/a\n1:cpu:/\n0::/\n")
    machine.cgroup("memory/a", V1)
    read = machine.read(10)
    assert (read.used_bytes, read.limit_bytes, read.kills) == (800, None, 4)


def test_in_a_container_the_own_cgroup_is_at_the_root(machine):
    machine.process(10, "0::/system.slice/docker-1.scope\n")
    folder = machine.cgroup("", V2)
    assert machine.read(10).folder == folder


def test_without_a_limit_or_any_memory_file_these_are_unknown(machine):
    machine.process(10, "0::/a\n")
    machine.cgroup("a", {"cgroup.procs": "", "memory.max": "max\n"})
    read = machine.read(10)
    assert (read.used_bytes, read.limit_bytes, read.kills) == (None, None, None)


@pytest.mark.parametrize("text", ["", "0::/gone\n", "garbage\n", "0::\n"])
def test_no_cgroup_is_none(machine, text):
    machine.process(10, text)
    assert machine.read(10) is None
    assert machine.read(99) is None


def test_a_path_does_not_lead_out_of_the_tree(machine, tmp_path):
    (tmp_path / "cgroup.procs").write_text("1\n")
    machine.process(10, "0::/../..\n")
    machine.cgroups.mkdir()
    assert machine.read(10) is None


def test_kills_are_counted_from_the_last_reading_on(machine):
    machine.process(10, "0::/a\n")
    folder = machine.cgroup("a", V2)
    before = machine.read(10)
    assert kills_since(before) == 0
    (folder / "memory.events").write_text("oom_kill 3\n")
    assert kills_since(before) == 2


def test_a_cgroup_that_is_gone_or_was_made_anew_tells_nothing_of_the_one_before(machine):
    machine.process(10, "0::/a\n")
    folder = machine.cgroup("a", V2)
    before = machine.read(10)
    folder.rename(machine.cgroups / "elsewhere")
    assert kills_since(before) is None
    machine.cgroup("a", V2)
    assert kills_since(before) is None
