import asyncio

import pytest

from holdfast.control.fleet import versions as module
from holdfast.control.fleet.versions import VersionWatch, read_version


@pytest.mark.parametrize(
    ("body", "version"),
    [
        (b'{"version":"0.9.1"}', "0.9.1"),
        (b'{"version":7}', ""),
        (b'{"other":"1"}', ""),
        (b'["version"]', ""),
        (b"<html>", ""),
        (b'{"version":"' + b"9" * 99 + b'"}', ""),
        (b'{"version":"a\\nb"}', ""),
    ],
)
def test_a_version_is_a_short_text_or_unknown(body, version):
    assert read_version(body, "version") == version


def test_every_engine_with_a_page_is_asked_for_its_own(world):
    told = []

    async def main():
        engine = await world.Engine().start()
        engine.answers["/version"] = (200, "", b'{"version":"1.2"}')
        engine.answers["/props"] = (200, "", b'{"build_info":"b42"}')
        engine.default = (404, "", b'{"version":"no"}')
        nobody = f"http://127.0.0.1:{world.free_port()}"
        watch = VersionWatch(lambda *found: told.append(found), {})
        for name, url, kind in (
            ("m-1", engine.url, "vllm"),
            ("m-2", engine.url, "llamacpp"),
            ("m-3", engine.url, "tgi"),
            ("m-4", engine.url, "openai"),
            ("m-5", nobody, "vllm"),
        ):
            watch.ask(world.deployed(url, name, kind))
        await world.until(lambda: not watch._asking)
        await watch.close()
        await engine.stop()

    asyncio.run(main())
    assert sorted(told) == [("m-1", "1.2"), ("m-2", "b42")]


def test_what_is_under_way_is_bounded_and_let_go(world, monkeypatch):
    monkeypatch.setattr(module, "WAITING_MAX", 2)

    async def main():
        engine = await world.Engine().start()
        engine.silent = True
        watch = VersionWatch(lambda *_: None, {})
        for number in range(5):
            watch.ask(world.deployed(engine.url, f"m-{number}"))
        assert len(watch._asking) == 2
        await watch.close()
        await engine.stop()

    asyncio.run(main())
