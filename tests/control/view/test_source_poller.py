import asyncio
from dataclasses import dataclass

import pytest
import structlog

from holdfast.control.view import source_poller as module
from holdfast.control.view.source_poller import SourcePoller
from holdfast.core.view.layers import Host, Part, Reading
from holdfast.core.view.staleness import Freshness


@dataclass(frozen=True)
class Section:
    """What a config says of a source."""

    called: str
    type: str = "fake"
    setting: int = 0


class FakeSource:
    """Answers what a test decides; the fake of ``ports.Source``."""

    kind = "fake"

    def __init__(self, name="fake", period_s=0.01):
        self.name = name
        self.period_s = period_s
        self.answers = []  # readings, errors to raise, or events to wait for
        self.asked = 0
        self.closed = 0
        self.reads = asyncio.Event()

    async def read(self):
        self.asked += 1
        self.reads.set()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            return read(self.name)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def close(self):
        self.closed += 1


def read(name="fake", at=100.0, *parts):
    parts = parts or (Part("hosts", at, calls=3, took_s=0.5),)
    return Reading(name, "fake", at, parts, hosts=(Host("h"),))


class Stage:
    def __init__(self, *sources, **more):
        self.heard = []
        self.left = []
        self.made = {source.name: source for source in sources}
        self.now = 1_000.0
        self.poller = SourcePoller(
            self.heard.append, self.make, self.left.append, wall=lambda: self.now, **more
        )

    def make(self, section):
        found = self.made.get(section.called)
        if found is None:
            raise RuntimeError("pip install 'holdfast[fake]'")
        return found

    async def __aenter__(self):
        self.task = asyncio.create_task(self.poller.run())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def fake(*answers, name="fake", **more):
    source = FakeSource(name, **more)
    source.answers = list(answers)
    return source


def test_readings_are_heard_and_kept(world):
    async def main():
        source = fake(read(at=100.0), read(at=101.0))
        stage = Stage(source)
        stage.poller.follow([Section("fake")])
        async with stage:
            await world.until(lambda: len(stage.heard) > 2)
            (kept,) = stage.poller.readings()
            assert kept.at == 101.0
            assert stage.poller.source("fake") is source
            assert stage.poller.sources == {"fake": source}
            counters, gauges = stage.poller.metrics()
            assert counters['source_calls_total{source="fake"}'] >= 6
            assert counters['source_failures_total{source="fake"}'] == 0
            assert gauges['source_age_seconds{source="fake"}'] == 899.0
            assert stage.poller.took_s >= 0
        assert source.closed == 1

    asyncio.run(main())


def test_a_part_that_fails_is_a_failed_read_with_the_age_of_what_it_knew(world):
    """An API server that is gone: the source answers at once, with what it saw before."""
    well = Part("pods", 990.0), Part("nodes", 990.0)
    blind = Part("pods", 900.0, "no answer", 901.0), Part("nodes", 990.0)
    never = Part("pods", None, "403: forbidden", 950.0), Part("nodes", 990.0)

    async def main():
        source = fake(read("fake", 990.0, *well))
        stage = Stage(source)
        stage.poller.follow([Section("fake")])
        async with stage:
            await world.until(lambda: stage.heard)
            assert told(stage) == (0, 0, 10.0)
            source.answers = [read("fake", 990.0, *blind)]
            await world.until(lambda: told(stage)[1] == 1)
            failures, _, age = told(stage)
            assert failures > 0
            assert age == 100.0
            source.answers = [read("fake", 990.0, *never)]
            await world.until(lambda: told(stage)[2] == 50.0)  # since it has failed
            source.answers = [read("fake", 990.0, *well)]
            await world.until(lambda: told(stage)[1] == 0)

    def told(stage):
        counters, gauges = stage.poller.metrics()
        label = '{source="fake"}'
        named = ("source_parts_failing", "source_age_seconds")
        return counters[f"source_failures_total{label}"], *(gauges[one + label] for one in named)

    with structlog.testing.capture_logs() as logs:
        asyncio.run(main())
    lines = [(line["event"], line["part"]) for line in logs if "part" in line]
    assert lines == [("source cannot see", "pods"), ("source sees again", "pods")]


def test_before_its_first_answer_a_source_is_shown_without_rows():
    async def main():
        never = fake(asyncio.Event())
        stage = Stage(never)
        stage.poller.follow([Section("fake")])
        async with stage:
            (shown,) = stage.poller.readings()
            assert (shown.parts[0].name, shown.parts[0].at, shown.hosts) == ("all", None, ())
            assert 'source_age_seconds{source="fake"}' not in stage.poller.metrics()[1]

    asyncio.run(main())


def test_one_that_hangs_says_so_and_holds_up_nobody(world):
    async def main():
        later = asyncio.Event()
        slow = fake(read("slow"), later, name="slow")
        quick = fake(read("quick"), name="quick")
        stage = Stage(slow, quick, answer_s=0.02)
        stage.poller.follow([Section("slow"), Section("quick")])
        async with stage:
            await world.until(lambda: stage.poller.readings()[0].parts[0].error)
            shown = stage.poller.readings()[0]
            assert shown.parts[0].error.startswith("no answer for")
            assert (shown.parts[0].at, shown.parts[0].failing_since) == (100.0, 1_000.0)
            assert shown.hosts == (Host("h"),)
            assert not Freshness(shown).fresh("hosts")
            asked, before = slow.asked, quick.asked
            await world.until(lambda: quick.asked > before + 5)
            assert slow.asked == asked == 2  # nobody asks a second time meanwhile
            later.set()
            await world.until(lambda: not stage.poller.readings()[0].parts[0].error)

    asyncio.run(main())


def test_one_that_hangs_for_too_long_is_asked_anew(world):
    async def main():
        source = fake(asyncio.Event(), read())
        stage = Stage(source, answer_s=0.01, hung_s=0.03)
        stage.poller.follow([Section("fake")])
        async with stage:
            await world.until(lambda: stage.heard)
            assert stage.poller.metrics()[0]['source_failures_total{source="fake"}'] == 1

    asyncio.run(main())


def test_one_that_raises_is_asked_less_and_less_often_and_keeps_what_it_had(world):
    async def main():
        pauses = []

        async def noted(delay):
            pauses.append(delay)
            await asyncio.sleep(0.001)

        source = fake(read(), *(ValueError("a mistake of ours") for _ in range(30)))
        stage = Stage(source, sleep=noted)
        stage.poller.follow([Section("fake")])
        async with stage:
            await world.until(lambda: source.asked > 20)
            (shown,) = stage.poller.readings()
            assert shown.parts[0].error == "ValueError: a mistake of ours"
            assert shown.hosts == (Host("h"),)
        assert pauses[1:4] == [0.02, 0.04, 0.08]
        assert max(pauses) <= module.AGAIN_MAX_S

    asyncio.run(main())


def test_what_cannot_be_made_says_why_in_its_place(world):
    async def main():
        stage = Stage(fake(read("good"), name="good"))
        stage.poller.follow([Section("missing"), Section("good")])
        async with stage:
            await world.until(lambda: stage.heard)
            missing, good = stage.poller.readings()
            assert missing.parts[0].error == "pip install 'holdfast[fake]'"
            assert (missing.source, missing.kind) == ("missing", "fake")
            assert good.hosts
            assert stage.poller.sources.keys() == {"good"}

    asyncio.run(main())


def test_who_hears_it_may_fail_and_the_reading_is_kept(world):
    async def main():
        source = fake(read())
        stage = Stage(source)

        def broken(reading):
            raise KeyError(reading.source)

        stage.poller._heard = broken
        stage.poller.follow([Section("fake")])
        async with stage:
            await world.until(lambda: source.asked > 2)
            assert stage.poller.readings()[0].hosts
            assert stage.poller.metrics()[0]['source_failures_total{source="fake"}'] >= 1

    asyncio.run(main())


def test_a_new_config_lets_go_of_what_it_does_not_name_and_leaves_the_rest_alone(world):
    async def main():
        kept, gone, changed = (fake(read(n), name=n) for n in ("kept", "gone", "changed"))
        stage = Stage(kept, gone, changed)
        stage.poller.follow([Section("kept"), Section("gone"), Section("changed")])
        async with stage:
            await world.until(lambda: kept.asked and gone.asked and changed.asked)
            again = fake(read("changed"), name="changed")
            stage.made["changed"] = again
            stage.poller.follow([Section("kept"), Section("changed", setting=1)])
            await world.until(lambda: gone.closed and changed.closed and again.asked)
            assert kept.closed == 0
            assert stage.left == ["gone", "changed"]
            assert [one.source for one in stage.poller.readings()] == ["kept", "changed"]
        assert (kept.closed, again.closed) == (1, 1)

    asyncio.run(main())


def test_a_source_of_our_own_is_not_let_go_by_a_config(world):
    async def main():
        own = fake(read("own"), name="own")
        stage = Stage()
        stage.poller.add(own)
        async with stage:
            stage.poller.follow([])
            await world.until(lambda: stage.heard)
        assert own.closed == 1

    asyncio.run(main())


def test_one_that_will_not_close_does_not_hold_up_the_end(monkeypatch, world):
    monkeypatch.setattr(module, "CLOSE_S", 0.02)

    async def main():
        stubborn = fake(read())

        async def never():
            await asyncio.Event().wait()

        stubborn.close = never
        stage = Stage(stubborn)
        stage.poller.follow([Section("fake")])
        async with stage:
            await world.until(lambda: stage.heard)

    asyncio.run(main())


@pytest.mark.parametrize("parts", [(), (Part("a", 90.0, "old", 80.0), Part("b", 95.0))])
def test_failures_of_parts_and_of_the_whole_are_both_kept(parts):
    watch = module.PolledSource("s", "fake", reading=Reading("s", "fake", 99.0, parts))
    watch.error, watch.since = "no answer for 30 s", 97.0
    shown = watch.shown(130.0).parts
    if not parts:
        assert shown == (Part("all", 99.0, "no answer for 30 s", 97.0),)
    else:
        assert [(one.error, one.failing_since) for one in shown] == [
            ("old", 80.0),
            ("no answer for 30 s", 97.0),
        ]
