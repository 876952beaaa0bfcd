"""What the kernel counts, read from kernels on paper."""

import pytest

from holdfast.launchers.oom import OomWatch, count_file, host_kills, kills_in


class Kernel:
    """Folders that look like /proc and /sys/fs/cgroup."""

    def __init__(self, root, cgroup_line, count_path):
        self.proc = root / "proc"
        self.cgroups = root / "cgroup"
        self.process = self.proc / "7"
        self.process.mkdir(parents=True)
        (self.process / "cgroup").write_text(f"3:cpuset:/\n{cgroup_line}\n")
        self.counts = self.cgroups / count_path
        self.counts.parent.mkdir(parents=True)
        self.set(cgroup=0, host=0)

    def set(self, cgroup=None, host=None):
        if cgroup is not None:
            self.counts.write_text(f"oom 9\nunder_oom 0\noom_kill {cgroup}\n")
        if host is not None:
            (self.proc / "vmstat").write_text(f"nr_free_pages 5\noom_kill {host}\n")

    def witness(self):
        return OomWatch(7, proc=str(self.proc), cgroups=str(self.cgroups))

    def file(self):
        return count_file(7, str(self.proc), str(self.cgroups))


LAYOUTS = {
    "v1": ("4:memory:/pod/a", "memory/pod/a/memory.oom_control"),
    "v1-in-a-container": ("4:memory:/docker/abc", "memory/memory.oom_control"),
    "v2": ("0::/pod/a", "pod/a/memory.events"),
    "v2-in-a-container": ("0::/docker/abc", "memory.events"),
    "v2-beside-v1": ("0::/pod/a", "unified/pod/a/memory.events"),
}


@pytest.fixture(params=LAYOUTS)
def kernel(request, tmp_path):
    return Kernel(tmp_path, *LAYOUTS[request.param])


def test_the_count_of_the_cgroup_is_found(kernel):
    kernel.set(cgroup=4)
    assert kernel.file() == str(kernel.counts)
    assert kills_in(kernel.file()) == 4


def test_a_count_that_grew_is_a_witness_even_after_the_process_is_gone(kernel):
    witness = kernel.witness()
    witness.look(0.0)
    (kernel.process / "cgroup").unlink()
    kernel.set(cgroup=1, host=1)
    verdict = witness.verdict(0.5)
    assert verdict.in_cgroup
    assert "OOM killer" in verdict.words


def test_a_count_that_stood_still_is_none(kernel):
    kernel.set(cgroup=5, host=9)
    witness = kernel.witness()
    witness.look(0.0)
    verdict = witness.verdict(0.5)
    assert not verdict.in_cgroup
    assert not verdict.on_host
    assert not verdict.words
    assert verdict.nobody


def test_a_kill_long_before_the_end_is_none(kernel):
    witness = kernel.witness()
    witness.look(0.0)
    kernel.set(cgroup=1, host=1)
    witness.look(1.0)
    assert witness.verdict(5.0).in_cgroup
    assert not witness.verdict(60.0).in_cgroup


def test_a_kill_elsewhere_on_the_host_is_said_to_be_somebody(kernel):
    witness = kernel.witness()
    witness.look(0.0)
    kernel.set(host=1)
    verdict = witness.verdict(0.5)
    assert not verdict.in_cgroup
    assert verdict.words.startswith("somebody was OOM-killed on this host")
    assert not verdict.nobody


def test_a_process_that_was_moved_is_followed(tmp_path):
    kernel = Kernel(tmp_path, *LAYOUTS["v1"])
    other = kernel.cgroups / "memory/pod/b/memory.oom_control"
    other.parent.mkdir(parents=True)
    other.write_text("oom_kill 7\n")
    witness = kernel.witness()
    witness.look(0.0)
    (kernel.process / "cgroup").write_text("4:memory:/pod/b\n")
    witness.look(1.0)
    assert not witness.verdict(1.0).in_cgroup, "another cgroup's count did not grow to 7"
    other.write_text("oom_kill 8\n")
    assert witness.verdict(1.5).in_cgroup


def test_a_machine_that_counts_nothing_gives_no_witness(tmp_path):
    (tmp_path / "proc").mkdir()
    witness = OomWatch(7, proc=str(tmp_path / "proc"), cgroups=str(tmp_path))
    witness.look(0.0)
    verdict = witness.verdict(1.0)
    assert not verdict.words
    assert host_kills(str(tmp_path / "proc")) is None


def test_a_count_that_cannot_be_read_is_not_zero(tmp_path):
    kernel = Kernel(tmp_path, *LAYOUTS["v2"])
    kernel.counts.write_text("oom_kill many\n")
    witness = kernel.witness()
    witness.look(0.0)
    kernel.set(cgroup=3)
    assert not witness.verdict(1.0).in_cgroup
