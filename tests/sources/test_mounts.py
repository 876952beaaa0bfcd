import threading

import pytest

from holdfast.core.view.layers import Disk
from holdfast.sources import mounts
from holdfast.sources.background_call import BackgroundCall
from holdfast.sources.mounts import MOUNTS_MAX, Mount, Mounts, name_of, read_mounts

# As a kernel of 2024 writes it, shortened to what matters.
NFS = """\
device {device} mounted on {point} with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.1,rsize=1048576,hard,proto=tcp,addr=10.0.0.7
\tage:\t86400
\tcaps:\tcaps=0x3ffbffff,wtmult=512,dtsize=1048576
\tnfsv4:\tbm0=0xfdffbfff,bm1=0x40f9be3e,bm2=0x60803,acl=0x3,sessions,pnfs=not configured
\tsec:\tflavor=1,pseudoflavor=1
\tevents:\t52 226 0 0 39 13 293 0 0 102 0 0 18 0 73 0 0 17 0 0 0 0 0 0 0 0 0
\tbytes:\t{normal} 0 0 0 {server} 0 25 0
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:\ttcp 772 1 2 0 0 1024 1024 0 1100 0 2 0 0
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 0 0 0
\t        READ: {reads} 30 0 6000 31000000 5 400 410 0
\t     GETATTR: 20 20 0 4000 4800 0 8 9 0

"""
OTHERS = (
    "device /dev/vda mounted on / with fstype ext4\ndevice proc mounted on /proc with fstype proc\n"
)
EFS = "fs-0123456789abcdef0.efs.eu-west-2.amazonaws.com:/"
LONG_S = 30.0


def nfs(device="filer:/models", point="/mnt/models", normal=7, server=1000, reads=30):
    return NFS.format(device=device, point=point, normal=normal, server=server, reads=reads)


@pytest.fixture
def write(tmp_path):
    def put(*texts):
        path = tmp_path / "self"
        path.mkdir(exist_ok=True)
        (path / "mountstats").write_text("".join(texts))
        return tmp_path

    return put


def test_shared_filesystems_are_read_with_what_came_from_the_server(write):
    found = read_mounts(write(OTHERS, nfs(), OTHERS))
    assert found == [Mount("filer:/models", "/mnt/models", "nfs4", 1000, 51)]


def test_nothing_is_there_and_nothing_can_be_read(write, tmp_path):
    assert read_mounts(tmp_path) == []
    assert read_mounts(write(OTHERS)) == []


def test_a_name_with_blanks_is_the_name_it_has(write):
    found = read_mounts(write(nfs(point="/mnt/my\\040models")))
    assert found[0].point == "/mnt/my models"


def test_counts_that_are_none_are_unknown(write):
    text = "device a:/b mounted on /c with fstype nfs\n\tbytes:\tx y\n\tbytes: 1 2 3 4 many\n"
    assert read_mounts(write(text)) == [Mount("a:/b", "/c", "nfs")]


def test_there_is_an_end_to_the_mounts(write):
    texts = [nfs(point=f"/mnt/{number}") for number in range(MOUNTS_MAX + 5)]
    assert len(read_mounts(write(*texts))) == MOUNTS_MAX


CEPH = "device 10.0.0.1:6789:/ mounted on /mnt/ceph with fstype ceph\n"
SIZES = """item          total       avg_sz(bytes)   min_sz(bytes)   max_sz(bytes)  total_sz(bytes)
----------------------------------------------------------------------------------------
read          4           1024            512             2048           4096
write         0           0               0               0              0
"""


def test_ceph_counts_in_debugfs_where_that_can_be_read(write, tmp_path):
    proc = write(CEPH)
    assert read_mounts(proc, tmp_path)[0].read_bytes is None
    folder = tmp_path / "kernel/debug/ceph/1234.client77/metrics"
    folder.mkdir(parents=True)
    (folder / "size").write_text(SIZES)
    assert read_mounts(proc, tmp_path)[0].read_bytes == 4096
    (folder / "size").write_text("read\n")
    assert read_mounts(proc, tmp_path)[0].read_bytes is None


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("filer:/models", "filer:/models"),
        (EFS, "fs-0123456789abcdef0"),
        ("127.0.0.1:/", "gpu-1:/mnt"),
        ("localhost:/x", "gpu-1:/mnt"),
        ("weights", "gpu-1:/mnt"),
    ],
)
def test_a_filesystem_has_one_name_on_all_hosts_if_its_server_can_be_seen(device, name):
    assert name_of(Mount(device, "/mnt", "nfs4"), "gpu-1") == name


def test_rates_are_what_came_between_two_looks(write):
    proc = write(nfs(server=1000, reads=30))
    own = Mounts("h", (), proc)
    (first,), problem = own.look(10.0)
    assert (first.id, first.mode, first.read_bytes_s, first.operations_s, problem) == (
        "filer:/models",
        "nfs4",
        None,
        None,
        "",
    )
    write(nfs(server=51_000, reads=40))
    (second,), _ = own.look(20.0)
    assert (second.read_bytes_s, second.operations_s) == (5000.0, 1.0)


def test_a_mount_that_was_made_anew_has_no_rate_at_first(write):
    proc = write(nfs(server=1000))
    own = Mounts("h", (), proc)
    own.look(10.0)
    write(nfs(server=5))
    assert own.look(20.0)[0][0].read_bytes_s is None
    write(nfs(device="other:/models", server=50))
    assert own.look(30.0)[0][0].read_bytes_s is None


def test_one_filesystem_that_is_mounted_twice_is_one(write):
    proc = write(nfs(point="/a", server=1), nfs(point="/b", server=1))
    disks, _ = Mounts("h", (), proc).look(1.0)
    assert [disk.id for disk in disks] == ["filer:/models"]


def test_only_what_was_named_is_watched_and_under_the_name_it_was_given(write):
    proc = write(nfs(point="/a"), nfs(device="127.0.0.1:/", point="/b"))
    disks, problem = Mounts("h", ("weights=/b", "/nothing"), proc).look(1.0)
    assert [disk.id for disk in disks] == ["weights"]
    assert problem == "nothing shared is mounted on /nothing"


def test_a_path_on_a_shared_filesystem_names_it(write):
    own = Mounts("h", (), write(nfs(point="/mnt/models")))
    own.look(1.0)
    assert own.filesystem_of(("serve", "/mnt/models/qwen")) == "filer:/models"
    assert own.filesystem_of(("--model=/mnt/models",)) == "filer:/models"
    assert own.filesystem_of(("/mnt/models2/qwen", "", "/")) == ""


def test_sizes_come_from_the_filesystem_itself(write, tmp_path):
    own = Mounts("h", (), write(nfs(point=str(tmp_path))))
    own._sizes[str(tmp_path)] = BackgroundCall(lambda: (100, 40), 1e9)
    own._sizes[str(tmp_path)].poll(LONG_S)
    assert own.look(1.0)[0] == [Disk("filer:/models", "nfs4", size_bytes=100, free_bytes=40)]


def test_a_dead_server_says_so_and_holds_up_nobody(write, monkeypatch):
    go = threading.Event()
    monkeypatch.setattr(mounts, "_HUNG_S", -1.0)
    monkeypatch.setattr(mounts, "free_space", lambda _: go.wait(LONG_S) and None)
    own = Mounts("h", (), write(nfs()))
    try:
        disks, problem = own.look(1.0)
        assert disks[0].size_bytes is None
        assert "/mnt/models has not answered for" in problem
    finally:
        go.set()
        own._sizes["/mnt/models"]._thread.join(LONG_S)
