"""What only the SQLite queue promises: its file, its clock across boots, a disk that is full."""

import asyncio
import os
import resource
import shutil
import sqlite3
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from holdfast.queue_port import (
    ItemState,
    LeaseAnswer,
    NewItem,
    QueueFullError,
    QueueUnavailableError,
    QueueUnsupportedError,
    Settlement,
)
from holdfast.storage.queues.sqlite import SqliteQueue

OK = LeaseAnswer.OK


def items(count, size=10, start=0):
    return [NewItem(f"i{start + n}", bytes(size)) for n in range(count)]


def test_a_reboot_ends_all_leases_and_time_goes_on(tmp_path):
    async def story():
        clock = [50_000.0]
        before = SqliteQueue(tmp_path / "q.db", monotonic=lambda: clock[0], boot=lambda: "one")
        await before.enqueue("q", items(2))
        (held,) = await before.lease("q", 1, 3_600.0)
        await before.close()
        clock[0] = 10.0  # the monotonic clock begins anew
        after = SqliteQueue(tmp_path / "q.db", monotonic=lambda: clock[0], boot=lambda: "two")
        leased = await after.lease("q", 5, 30.0)
        assert [item.receives for item in leased] == [2, 1]
        assert await after.ack([Settlement(held.lease)]) == [LeaseAnswer.FENCED]
        again = SqliteQueue(tmp_path / "q.db", monotonic=lambda: clock[0], boot=lambda: "two")
        assert await again.lease("q", 5, 30.0) == []  # a second opener of this boot ends none
        clock[0] += 31.0
        assert len(await again.lease("q", 5, 30.0)) == 2
        await after.close()
        await again.close()

    asyncio.run(story())


def test_the_file_is_private_and_synced_in_full(tmp_path):
    async def story():
        queue = SqliteQueue(tmp_path / "deep" / "q.db")
        await queue.enqueue("q", items(1))
        await queue.close()

    asyncio.run(story())
    path = tmp_path / "deep" / "q.db"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_a_damaged_file_is_refused_and_kept(tmp_path):
    path = tmp_path / "q.db"

    async def fill():
        queue = SqliteQueue(path)
        await queue.enqueue("q", items(200, 500))
        await queue.close()

    asyncio.run(fill())
    raw = bytearray(path.read_bytes())
    for place in range(8_192, len(raw), 4_096):
        raw[place : place + 200] = os.urandom(200)
    path.write_bytes(raw)

    async def use():
        queue = SqliteQueue(path)
        with pytest.raises(QueueUnavailableError, match=r"q\.db: .*damaged; stop Holdfast, keep"):
            await queue.lease("q", 1, 30.0)
        await queue.close()

    asyncio.run(use())
    assert path.read_bytes() == bytes(raw)


def test_a_torn_tail_of_the_log_takes_back_only_what_was_not_confirmed(tmp_path):
    """Cut the log anywhere: what was on disk before its last commit stays."""

    async def story():
        queue = SqliteQueue(tmp_path / "q.db")
        await queue.enqueue("q", items(5))
        confirmed = (tmp_path / "q.db-wal").stat().st_size
        await queue.enqueue("q", items(5, start=5))
        whole = (tmp_path / "q.db-wal").stat().st_size
        for cut in (confirmed, confirmed + 1, (confirmed + whole) // 2, whole - 1):
            copy = tmp_path / f"cut-{cut}"
            copy.mkdir()
            shutil.copy(tmp_path / "q.db", copy)
            shutil.copy(tmp_path / "q.db-wal", copy)
            os.truncate(copy / "q.db-wal", cut)
            torn = SqliteQueue(copy / "q.db")
            assert len(await torn.items("q")) == 5
            await torn.close()
        await queue.close()

    asyncio.run(story())


def test_a_file_of_another_version_is_refused(tmp_path):
    connection = sqlite3.connect(tmp_path / "q.db")
    connection.execute("PRAGMA user_version = 7")
    connection.close()

    async def story():
        queue = SqliteQueue(tmp_path / "q.db")
        with pytest.raises(QueueUnsupportedError, match="its version is 7, not 1; use"):
            await queue.enqueue("q", items(1))
        await queue.close()
        with pytest.raises(QueueUnavailableError, match="closed"):
            await queue.enqueue("q", items(1))

    asyncio.run(story())


def test_the_number_of_items_is_bounded_and_ends_are_not(tmp_path):
    async def story():
        queue = SqliteQueue(tmp_path / "q.db", items_max=5)
        await queue.enqueue("q", items(4))
        with pytest.raises(QueueFullError, match="has 4 items and may have 5; purge"):
            await queue.enqueue("q", items(2, start=4))
        leased = await queue.lease("q", 4, 30.0)
        assert await queue.ack([Settlement(item.lease) for item in leased]) == [OK] * 4
        assert await queue.purge("q", states=[ItemState.DONE]) == 4
        assert await queue.enqueue("q", items(2, start=4)) == [True, True]
        await queue.close()

    asyncio.run(story())


def test_little_room_on_the_disk_refuses_new_items_only(tmp_path):
    async def story():
        queue = SqliteQueue(tmp_path / "q.db")
        await queue.enqueue("q", items(1))
        narrow = SqliteQueue(tmp_path / "q.db", reserve_bytes=1 << 60)
        with pytest.raises(QueueFullError, match=r"MiB are free on its disk, and .* make room"):
            await narrow.enqueue("q", items(1, start=1))
        (leased,) = await narrow.lease("q", 1, 30.0)
        assert await narrow.ack([Settlement(leased.lease)]) == [OK]
        await queue.close()
        await narrow.close()

    asyncio.run(story())


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB; only root may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, check=False).returncode != 0:
        pytest.skip("may not mount")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_loses_nothing_and_work_goes_on_when_there_is_room(small_disk):
    async def story():
        queue = SqliteQueue(small_disk / "q.db", reserve_bytes=-(1 << 40))  # until it hurts
        ballast = small_disk / "ballast"
        await queue.enqueue("q", items(5))
        leased = await queue.lease("q", 2, 3_600.0)
        ballast.write_bytes(bytes(300_000))
        added, refused = 5, ""
        while not refused and added < 200:
            try:
                await queue.enqueue("q", items(5, 8_000, added))
                added += 5
            except QueueFullError as error:
                refused = str(error)
        assert "nothing was changed; make room" in refused
        (depth,) = await queue.depths()  # looking works all the same
        assert depth.open == added
        ballast.unlink()
        assert await queue.ack([Settlement(item.lease) for item in leased]) == [OK, OK]
        assert all(await queue.enqueue("q", items(5, 8_000, added)))
        await queue.close()
        connection = sqlite3.connect(small_disk / "q.db")
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("SELECT count(*) FROM items").fetchone() == (added + 5,)
        connection.close()

    asyncio.run(story())


LIMITED = """
    import asyncio, resource, sys
    from pathlib import Path
    from holdfast.queue_port import NewItem, QueueFullError
    from holdfast.storage.queues.sqlite import SqliteQueue

    async def story():
        queue = SqliteQueue(Path(sys.argv[1]))
        await queue.enqueue("q", [NewItem("first", b"x")])
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        added = 1
        try:
            while added < 500:
                await queue.enqueue("q", [NewItem(f"i{added}", bytes(8_000))])
                added += 1
        except QueueFullError as error:
            resource.setrlimit(resource.RLIMIT_FSIZE, (-1, resource.RLIM_INFINITY))
            assert await queue.enqueue("q", [NewItem("after", b"x")]) == [True]
            print(added + 1, (await queue.depths())[0].open, "make room" in str(error))
        await queue.close()

    asyncio.run(story())
"""


def test_a_file_that_may_not_grow_is_as_a_full_disk(tmp_path):
    """Without root: the kernel refuses to write beyond a size, and later allows it."""
    if resource.getrlimit(resource.RLIMIT_FSIZE)[1] != resource.RLIM_INFINITY:
        pytest.skip("sizes of files are limited here")
    command = [sys.executable, "-c", textwrap.dedent(LIMITED), str(tmp_path / "q.db")]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    added, kept, told = ran.stdout.split()[-3:]
    assert (added, told) == (kept, "True")
    assert 2 < int(added) < 400
    connection = sqlite3.connect(tmp_path / "q.db")
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_one_call_that_fails_spoils_none_that_shares_its_commit(tmp_path):
    async def story():
        queue = SqliteQueue(tmp_path / "q.db", items_max=3)
        await queue.enqueue("q", items(1))
        calls = [queue.enqueue("q", items(1, start=n)) for n in range(1, 6)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [answer == [True] for answer in answers].count(True) == 2
        assert sum(isinstance(answer, QueueFullError) for answer in answers) == 3
        assert len(await queue.items("q")) == 3
        await queue.close()

    asyncio.run(story())


def test_a_caller_that_went_away_disturbs_nobody(tmp_path):
    async def story():
        queue = SqliteQueue(tmp_path / "q.db")
        task = asyncio.create_task(queue.enqueue("q", items(1)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await queue.enqueue("q", items(2)) == [False, True]  # it had been sent on its way
        await queue.close()

    asyncio.run(story())


@pytest.mark.parametrize("store", ["sqlite"])
def test_nothing_is_lost_and_nothing_ends_twice_when_processes_are_killed(store):
    """A short run of bench/queue_kill.py; the whole one has 2,000 items and 139 kills."""
    script = Path(__file__).parents[3] / "bench" / "queue_kill.py"
    amount = ["--items", "120", "--each", "1", "--random", "6"]
    command = [sys.executable, str(script), "--store", store, *amount]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=500)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert '"lost": 0' in ran.stdout
    assert '"two_terminal_records": 0' in ran.stdout
