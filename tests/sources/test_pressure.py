import pytest

from holdfast.sources.pressure import HostUse, counted, free_space, read_host

MEMINFO = "MemTotal:       1000 kB\nMemFree:         10 kB\nMemAvailable:    400 kB\n"
PRESSURE = "some avg10=12.50 avg60=1.00 avg300=0.00 total=1\nfull avg10=3.00 avg60=0 total=0\n"


@pytest.fixture
def machine(tmp_path):
    for name, text in {
        "proc/meminfo": MEMINFO,
        "proc/loadavg": "3.25 2.00 1.00 2/300 4711\n",
        "proc/uptime": "5000.25 9000.00\n",
        "proc/vmstat": "pgfault 7\noom_kill 3\n",
        "proc/pressure/memory": PRESSURE,
        "sys/devices/system/cpu/online": "0-3,8,10-11\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def read(root):
    return read_host(root / "proc", root / "sys")


def test_a_host_tells_its_cpus_load_memory_and_who_waits_for_it(machine):
    assert read(machine) == HostUse(7, 3.25, 1000 * 1024, 600 * 1024, 0.125, 5000.25, 3)


def test_what_cannot_be_read_is_unknown(tmp_path):
    assert read(tmp_path) == HostUse()


def test_what_makes_no_sense_is_unknown(machine):
    (machine / "proc/meminfo").write_text("MemTotal: many kB\nMemAvailable:\n")
    (machine / "proc/loadavg").write_text("high\n")
    (machine / "proc/vmstat").write_text("oom_kill none\n")
    (machine / "proc/pressure/memory").write_text("some avg60=1\nfull avg10=9\n")
    (machine / "sys/devices/system/cpu/online").write_text("0-x\n")
    use = read(machine)
    assert use == HostUse(uptime_s=5000.25)


def test_an_old_kernel_that_does_not_tell_what_is_available_leaves_the_use_unknown(machine):
    (machine / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemFree: 10 kB\n")
    assert read(machine).memory_bytes == 1000 * 1024
    assert read(machine).used_bytes is None


def test_a_count_is_found_by_its_whole_name():
    assert counted("oom 1\noom_kill_all 2\noom_kill 3\n", "oom_kill") == 3
    assert counted("", "oom_kill") is None


def test_free_space_of_a_filesystem_and_of_none(tmp_path):
    size, free = free_space(str(tmp_path))
    assert 0 < free <= size
    assert free_space(str(tmp_path / "nothing")) is None
