"""Work in a thread, and a caller that is cancelled while it runs: nothing is left open."""

import asyncio
import threading

import pytest

from holdfast.batch.disk_threads import in_disk_thread
from holdfast.batch.file_store import FileStore


class Hold:
    """Holds what runs in a thread until it is let go, and tells when it got there."""

    def __init__(self):
        self._loop = asyncio.get_running_loop()
        self.reached = asyncio.Event()
        self._go = threading.Event()

    def __call__(self):
        self._loop.call_soon_threadsafe(self.reached.set)
        assert self._go.wait(60)

    def let_go(self):
        self._go.set()


@pytest.fixture
def slow_open(monkeypatch):
    """A maker of a hold that each opening of a stored file meets; and all files opened."""
    opened = []

    def make():
        hold, plain = Hold(), FileStore.open

        def open_slowly(store, file_id):
            hold()
            opened.append(plain(store, file_id))
            return opened[-1]

        monkeypatch.setattr(FileStore, "open", open_slowly)
        return hold

    return make, opened


def test_the_result_and_the_error_of_the_work_are_those_of_the_caller():
    async def scenario():
        assert await in_disk_thread(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await in_disk_thread(divmod, 7, 0)

    asyncio.run(scenario())


@pytest.mark.parametrize("fails", [False, True])
def test_a_cancelled_caller_goes_on_when_the_work_has_ended(fails):
    async def scenario():
        hold, done = Hold(), []

        def work():
            hold()
            done.append(1)
            if fails:
                raise OSError

        caller = asyncio.create_task(in_disk_thread(work))
        await hold.reached.wait()
        for _ in range(3):  # however often it is told
            caller.cancel()
            await asyncio.sleep(0)
        assert not caller.done()
        assert not done
        hold.let_go()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert done

    asyncio.run(scenario())


def test_a_process_that_stops_while_it_opens_an_input_file_leaves_none_open(
    stage, make_line, slow_open
):
    make_hold, opened = slow_open

    async def scenario(_, make):
        async with make() as here:
            hold = make_hold()
            await here.create(make_line(1))
            await hold.reached.wait()
            stopping = asyncio.create_task(here.desk.stop())
            await asyncio.sleep(0)
            hold.let_go()
            await stopping
        assert [file.closed for file in opened] == [True]

    stage(scenario)


def test_a_client_that_leaves_while_its_file_is_opened_leaves_none_open(
    stage, make_line, slow_open
):
    make_hold, opened = slow_open

    async def scenario(_, make):
        async with make() as here:
            file = (await here.upload(make_line(1))).json()
            hold = make_hold()
            asking = asyncio.create_task(here.get(f"/v1/files/{file['id']}/content"))
            await hold.reached.wait()
            asking.cancel()
            await asyncio.sleep(0)
            hold.let_go()
            with pytest.raises(asyncio.CancelledError):
                await asking
        assert [file.closed for file in opened] == [True]

    stage(scenario)


def test_an_answer_that_cannot_begin_leaves_its_file_closed(stage, make_line, slow_open):
    make_hold, opened = slow_open

    async def scenario(_, make):
        async with make() as here:
            file = (await here.upload(make_line(1))).json()
            make_hold().let_go()
            with pytest.raises(ConnectionResetError):
                await here.client().ask("GET", f"/v1/files/{file['id']}/content", reset=True)
        assert [file.closed for file in opened] == [True]

    stage(scenario)


def test_an_upload_that_is_cut_while_its_file_begins_leaves_no_part(stage, make_line, monkeypatch):
    async def scenario(_, make):
        async with make() as here:
            hold, plain = Hold(), FileStore.begin

            def begin_slowly(store):
                hold()
                return plain(store)

            monkeypatch.setattr(FileStore, "begin", begin_slowly)
            uploading = asyncio.create_task(here.upload(make_line(1)))
            await hold.reached.wait()
            uploading.cancel()
            await asyncio.sleep(0)
            hold.let_go()
            with pytest.raises(asyncio.CancelledError):
                await uploading
            assert not list(here.store.folder.iterdir())

    stage(scenario)
