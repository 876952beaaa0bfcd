"""Lists and watches against the fake API server, and everything that ends them."""

import asyncio
import time
from contextlib import asynccontextmanager
from random import Random

import pytest

from fakekube import event, pod
from fakekube.server import Connection
from fakekube.store import GoneError
from holdfast.sources.kubernetes import KubernetesConfig
from holdfast.sources.kubernetes import api as api_module
from holdfast.sources.kubernetes.api import KubernetesApi
from holdfast.sources.kubernetes.object_watch import TURN_ROWS, ObjectWatch

QUICK = {"retry_s": 0.02, "retry_max_s": 0.1}


class Stage:
    def __init__(self, watch):
        self.watch = watch
        self.news = asyncio.Event()

    async def until(self, condition):
        async with asyncio.timeout(20):
            while not condition():
                self.news.clear()
                await self.news.wait()

    @property
    def names(self):
        return sorted(self.watch.rows)

    def part(self):
        return self.watch.part(time.time())


@asynccontextmanager
async def watching(kube, resource="pods", read=lambda thing: thing["metadata"]["uid"], **more):
    options = {"limit": 100, **{k: more.pop(k) for k in ("limit", "forgets") if k in more}}
    config = KubernetesConfig(api_url=kube.url, **{**QUICK, **more})
    api = KubernetesApi(config)
    stage = None

    def changed():
        stage.news.set()

    path = f"api/v1/{resource}"
    watch = ObjectWatch(
        resource, path, read, api, config, changed=changed, chance=Random(1), **options
    )
    stage = Stage(watch)
    task = asyncio.create_task(watch.run())
    try:
        yield stage
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await api.close()


def test_what_is_there_and_what_comes_changes_and_goes_is_known(kube):
    kube.put("pods", pod("a"))

    async def main():
        async with watching(kube, read=lambda thing: thing["status"]["phase"]) as stage:
            await stage.until(lambda: stage.names == ["default/a"])
            kube.put("pods", pod("b"))
            await stage.until(lambda: stage.names == ["default/a", "default/b"])
            kube.patch("pods", "b", {"status": {"phase": "Failed"}})
            await stage.until(lambda: stage.watch.rows["default/b"] == "Failed")
            kube.delete("pods", "a")
            await stage.until(lambda: stage.names == ["default/b"])
            part = stage.part()
            assert (part.error, part.failing_since) == ("", None)
            assert len([q for _, q in kube.asked("/pods") if "watch" not in q]) == 1

    asyncio.run(main())


def test_lists_are_read_in_pages(kube):
    for number in range(7):
        kube.put("pods", pod(f"p{number}"))

    async def main():
        async with watching(kube, page=3) as stage:
            await stage.until(lambda: len(stage.names) == 7)
            lists = [query for _, query in kube.asked("/pods") if "watch" not in query]
            assert [query["limit"] for query in lists] == ["3", "3", "3"]
            assert "continue" in lists[1]

    asyncio.run(main())


def test_a_page_that_grew_too_old_is_no_end(kube):
    for number in range(4):
        kube.put("pods", pod(f"p{number}"))
    real = kube.objects.page

    def page(resource, namespace, query):
        if "continue" in query:
            kube.objects.pages.clear()
        return real(resource, namespace, query)

    kube.objects.page = page

    async def main():
        async with watching(kube, page=3) as stage:
            await stage.until(lambda: len(stage.names) == 4)
            last = [query for _, query in kube.asked("/pods") if "watch" not in query][-1]
            assert "limit" not in last

    asyncio.run(main())


@pytest.mark.parametrize("gone_as", ["event", "status"])
def test_a_version_that_is_too_old_leads_to_a_new_list_without_ghosts(kube, gone_as):
    kube.gone_as = gone_as
    kube.put("pods", pod("a"))
    kube.put("pods", pod("b"))

    async def main():
        async with watching(kube) as stage:
            await stage.until(lambda: len(stage.names) == 2)
            await asyncio.to_thread(kube.await_watch, "pods")
            with kube.objects.changed:  # nothing of it reaches the watch that is open
                kube.objects.things["pods"].pop(("default", "a"))
                kube.expire()
            await stage.until(lambda: stage.names == ["default/b"])
            kube.put("pods", pod("c"))
            await stage.until(lambda: stage.names == ["default/b", "default/c"])
            assert stage.part().error == ""

    asyncio.run(main())


def test_what_is_as_it_was_is_not_read_again_by_a_new_list(kube):
    for name in "abc":
        kube.put("pods", pod(name))
    read = []

    def noted(thing):
        read.append(thing["metadata"]["name"])
        return [thing["metadata"]["uid"]]  # a row of its own each time

    async def main():
        async with watching(kube, read=noted) as stage:
            await stage.until(lambda: len(stage.names) == 3)
            await asyncio.to_thread(kube.await_watch, "pods")
            before = dict(stage.watch.rows)
            with kube.objects.changed:  # the watch that is open hears nothing of it
                kube.put("pods", pod("b", restarts=1))
                kube.objects.things["pods"].pop(("default", "c"))
                kube.expire()
            await stage.until(lambda: stage.names == ["default/a", "default/b"])
            assert stage.watch.rows["default/a"] is before["default/a"]
            assert stage.watch.rows["default/b"] is not before["default/b"]
            assert read == ["a", "b", "c", "b"]
            kube.put("pods", pod("c"))  # another one by that name
            await stage.until(lambda: len(stage.names) == 3)
            assert read[-1] == "c"

    asyncio.run(main())


def test_others_have_their_turn_while_a_long_list_is_read(kube):
    for number in range(4 * TURN_ROWS):
        kube.put("pods", pod(f"p-{number}"))
    turns = []

    def noted(thing):
        turns.append(ticks)
        return thing["metadata"]["uid"]

    ticks = 0

    async def main():
        nonlocal ticks
        async with watching(kube, read=noted, limit=1_000, page=1_000) as stage:
            while len(stage.names) < 4 * TURN_ROWS:
                ticks += 1
                await asyncio.sleep(0)

    asyncio.run(main())
    read_at_once = max(turns.count(turn) for turn in set(turns))
    assert read_at_once <= TURN_ROWS


def test_of_versions_no_more_are_kept_than_rows(kube):
    for number in range(10):
        kube.put("pods", pod(f"p-{number}"))

    async def main():
        async with watching(kube, limit=4, forgets=True) as stage:
            await stage.until(lambda: len(stage.names) == 4)
            await asyncio.to_thread(kube.await_watch, "pods")
            kube.put("pods", pod("q"))
            await stage.until(lambda: "default/q" in stage.names)
            assert set(stage.watch._versions) == set(stage.watch.rows)
            kube.delete("pods", "q")
            await stage.until(lambda: "default/q" not in stage.names)
            assert set(stage.watch._versions) == set(stage.watch.rows)

    asyncio.run(main())


def test_a_server_that_finds_every_list_too_old_is_not_asked_without_end(kube):
    kube.put("pods", pod("a"))

    def never(resource, version):
        raise GoneError

    kube.objects.since = never

    async def main():
        async with watching(kube, retry_s=5.0, retry_max_s=5.0) as stage:
            await stage.until(lambda: stage.names == ["default/a"])
            await asyncio.to_thread(kube.await_request, "/pods", 4)
            await asyncio.sleep(0.2)
            assert len(kube.asked("/pods")) == 4  # a list, a watch, and both once more

    asyncio.run(main())


def test_bookmarks_move_the_version_on(kube):
    kube.put("pods", pod("a"))

    async def main():
        async with watching(kube) as stage:
            await asyncio.to_thread(kube.await_watch, "pods")
            kube.bookmark()
            mark = str(kube.objects.version)
            async with asyncio.timeout(20):
                while stage.watch._version != mark:  # noqa: ASYNC110 a bookmark is no news
                    await asyncio.sleep(0.005)
            kube.cut()
            await asyncio.to_thread(kube.await_watch, "pods", 2)
            again = [query for _, query in kube.asked("/pods") if "watch" in query][-1]
            assert again["resourceVersion"] == mark
            assert again["allowWatchBookmarks"] == "true"
            assert stage.names == ["default/a"]

    asyncio.run(main())


def test_a_cut_watch_goes_on_from_where_it_was(kube):
    kube.put("pods", pod("a"))

    async def main():
        async with watching(kube) as stage:
            await asyncio.to_thread(kube.await_watch, "pods")
            kube.cut(abrupt=True)
            kube.put("pods", pod("b"))
            await stage.until(lambda: len(stage.names) == 2)
            await stage.until(lambda: not stage.watch.failing)
            lists = [query for _, query in kube.asked("/pods") if "watch" not in query]
            assert len(lists) == 1

    asyncio.run(main())


def test_a_failure_keeps_the_rows_and_says_how_old_they_are(kube):
    kube.put("pods", pod("a"))

    async def main():
        async with watching(kube) as stage:
            await stage.until(lambda: stage.names == ["default/a"])
            await asyncio.to_thread(kube.await_watch, "pods")
            before = time.time()
            kube.refuse("pods", 500)
            kube.cut()
            # The cut itself may be told first; then the server's own words.
            await stage.until(lambda: stage.part().error.startswith("500 Internal Server Error"))
            part = stage.part()
            assert before - 1 <= part.at <= part.failing_since <= time.time()
            assert stage.names == ["default/a"]
            later = stage.part()
            assert later.at == part.at  # it does not look younger than it is
            kube.refuse("pods", 0)
            await stage.until(lambda: not stage.watch.failing)
            assert stage.part().failing_since is None

    asyncio.run(main())


def test_who_may_list_and_not_watch_lists_again_and_says_so(kube, monkeypatch):
    kube.put("pods", pod("a"))

    def refused(self, *_):
        self._refuse(403, "cannot watch")

    monkeypatch.setattr(Connection, "_watch", refused)

    async def main():
        async with watching(kube) as stage:
            await stage.until(lambda: stage.watch.failing)
            kube.put("pods", pod("b"))
            await stage.until(lambda: len(stage.names) == 2)
            assert "403 Forbidden: cannot watch" in stage.part().error

    asyncio.run(main())


def test_a_quiet_connection_is_opened_anew_and_is_no_failure(kube):
    kube.put("pods", pod("a"))

    async def main():
        async with watching(kube, silence_s=0.05) as stage:
            await stage.until(lambda: stage.names == ["default/a"])
            await asyncio.to_thread(kube.await_watch, "pods", 3)
            assert not stage.watch.failing
            lists = [query for _, query in kube.asked("/pods") if "watch" not in query]
            assert len(lists) == 1

    asyncio.run(main())


def test_a_server_that_ends_every_watch_at_once_is_asked_ever_more_rarely(kube, monkeypatch):
    monkeypatch.setattr(Connection, "_follow", lambda *_: None)

    async def main():
        async with watching(kube, retry_s=5.0, retry_max_s=5.0):
            await asyncio.to_thread(kube.await_request, "/pods", 3)
            await asyncio.sleep(0.2)
            assert len(kube.asked("/pods")) == 3  # a list, a watch, one more at once

    asyncio.run(main())


def test_more_objects_than_are_kept_are_left_out_and_that_is_known(kube):
    for number in range(5):
        kube.put("pods", pod(f"p{number}"))

    async def main():
        async with watching(kube, limit=3, page=2) as stage:
            await stage.until(lambda: len(stage.names) == 3)
            assert stage.watch.left_out
            await asyncio.to_thread(kube.await_watch, "pods")
            kube.delete("pods", "p0")
            await stage.until(lambda: len(stage.names) == 2)
            kube.put("pods", pod("q"))
            await stage.until(lambda: "default/q" in stage.names)

    asyncio.run(main())


def test_of_events_the_oldest_make_room(kube):
    for number in range(5):
        kube.put("events", event(f"e{number}", "BackOff", "x", about="m-1"))

    async def main():
        async with watching(kube, "events", limit=3, forgets=True) as stage:
            await stage.until(lambda: stage.names == ["default/e2", "default/e3", "default/e4"])
            kube.patch("events", "e2", {"count": 2})
            kube.put("events", event("e9", "BackOff", "x", about="m-1"))
            await stage.until(lambda: "default/e9" in stage.names)
            assert stage.names == ["default/e2", "default/e4", "default/e9"]

    asyncio.run(main())


def test_objects_that_make_no_sense_are_counted_and_others_go_on(kube):
    kube.put("pods", pod("a"))
    kube.put("pods", pod("b"))

    def read(thing):
        if thing["metadata"]["name"] == "a":
            raise KeyError("spec")
        return 1

    async def main():
        async with watching(kube, read=read) as stage:
            await stage.until(lambda: stage.names == ["default/b"])
            assert stage.watch.unread == 1

    asyncio.run(main())


def test_a_mistake_of_ours_does_not_end_the_watch(kube):
    wrong = [True]

    def read(thing):
        if wrong:
            wrong.clear()
            raise RecursionError
        return 1

    kube.put("pods", pod("a"))

    async def main():
        async with watching(kube, read=read) as stage:
            await stage.until(lambda: stage.watch.failing or stage.names)
            await stage.until(lambda: stage.names == ["default/a"])

    asyncio.run(main())


@pytest.mark.parametrize("line", [b"nonsense", b"{}", b'{"type":"ADDED","object":{}}', b"[]"])
def test_what_is_no_event_is_a_failure(kube, monkeypatch, line):
    kube.put("pods", pod("a"))
    monkeypatch.setattr(Connection, "_follow", lambda self, *_: self._chunk(line + b"\n"))

    async def main():
        async with watching(kube) as stage:
            await stage.until(lambda: stage.watch.failing)
            assert stage.part().error == "its watch sent what is no event"
            assert stage.names == ["default/a"]

    asyncio.run(main())


def test_a_line_without_an_end_is_not_kept(kube, monkeypatch):
    monkeypatch.setattr(api_module, "LINE_BYTES_MAX", 10)
    monkeypatch.setattr(Connection, "_follow", lambda self, *_: self._chunk(b"x" * 100))

    async def main():
        async with watching(kube) as stage:
            await stage.until(lambda: stage.watch.failing)
            assert stage.part().error == "it sent a line of more than 10 bytes"

    asyncio.run(main())


@pytest.mark.parametrize("answer", ["[]", "{}", '{"metadata": {}, "items": []}'])
def test_what_is_no_list_is_a_failure(kube, answer):
    kube.pages["/api/v1/pods"] = answer

    async def main():
        async with watching(kube) as stage:
            await stage.until(lambda: stage.watch.failing)
            assert stage.part().error.startswith("its list has no ")
            assert not stage.watch.listed

    asyncio.run(main())
