import asyncio

import orjson
import pytest

from holdfast.config.incidents import NotifySection
from holdfast.control.fetch import FetchError, HttpAnswer
from holdfast.control.incidents import notifier
from holdfast.control.incidents.notifier import HookMessage, Notifier, as_json, as_slack, as_text

INCIDENT = {
    "id": "inc-000007",
    "title": "undersized of m-1",
    "class": "runtime",
    "cause": "undersized",
    "stage": "open",
    "about": {"replica": "m-1", "model": "m"},
    "confidence": 0.93,
    "opened_at": 1.0,
    "evidence": [{"sign": "exit_137", "text": f"it was killed, time {n}"} for n in range(9)],
    "consequences": [{"sign": "queue_grows", "text": "40 wait"}],
    "timeline": [{"at": 1.0}],
    "action": "restarted",
    "fix": "set 4 GB",
}


def message(event="opened", *, page=False, **more):
    return HookMessage(event, INCIDENT | more, page)


class Wire:
    """What was posted, and what comes back: statuses or errors, the last for ever."""

    def __init__(self, *answers):
        self.answers = list(answers) or [200]
        self.posted = []

    async def __call__(self, url, body, deadline_s):
        self.posted.append((url, orjson.loads(body), deadline_s))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return HttpAnswer(answer, {}, b"")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(notifier, "BACKOFF_S", 0.001)


def play(wire, sections, scene, environment=None):
    async def main():
        notifier = Notifier(environment or {}, wire)
        notifier.follow(sections)
        try:
            await scene(notifier)
        finally:
            await notifier.close()
        return notifier

    return asyncio.run(main())


def counted(notifier, outcome):
    return notifier.counters()[f'notifications_total{{outcome="{outcome}"}}']


async def settled(world, notifier, messages):
    await world.until(lambda: sum(notifier.counters().values()) >= messages)


def hook(**more):
    return NotifySection(**({"url": "http://127.0.0.1:9/h"} | more))


def test_a_text_names_the_cause_the_evidence_what_follows_and_what_to_do():
    text = as_text(message("changed"))
    assert text.splitlines()[0] == (
        "[inc-000007] changed: undersized of m-1 (runtime, undersized, confidence 0.93)"
    )
    assert text.count("- it was killed") == notifier.EVIDENCE_MAX
    assert text.splitlines()[-3:] == [
        "follows from it: queue grows",
        "done: restarted",
        "to do: set 4 GB",
    ]
    assert orjson.loads(as_slack(message())) == {"text": as_text(message())}


def test_no_name_is_a_command_to_slack():
    told = orjson.loads(as_slack(message(title="slow of <!channel> & co")))["text"]
    assert "slow of &lt;!channel&gt; &amp; co" in told
    assert "<!channel>" not in told


def test_json_holds_the_incident_without_its_long_parts():
    told = orjson.loads(as_json(message(page=True)))
    assert (told["event"], told["page"], told["incident"]["id"]) == ("opened", True, "inc-000007")
    assert "timeline" not in told["incident"]
    assert len(told["incident"]["evidence"]) == notifier.EVIDENCE_MAX


def test_every_hook_is_told_in_its_own_format(world):
    wire = Wire()

    async def scene(notifier):
        notifier.tell(message())
        await settled(world, notifier, 2)

    play(wire, [hook(), hook(format="slack", deadline=3.0)], scene)
    assert sorted(len(body) for _, body, _ in wire.posted) == [1, 5]
    assert {deadline_s for _, _, deadline_s in wire.posted} == {5.0, 3.0}


def test_a_pager_hears_only_what_needs_a_person(world):
    wire = Wire()

    async def scene(notifier):
        notifier.tell(message())
        notifier.tell(message("page", page=True))
        await settled(world, notifier, 1)

    play(wire, [hook(at_least="page")], scene)
    assert [body["event"] for _, body, _ in wire.posted] == ["page"]


def test_what_fails_is_tried_again_and_then_given_up(world):
    wire = Wire(500, FetchError("timeout", "x"), 429, 200)

    async def scene(notifier):
        notifier.tell(message())
        await settled(world, notifier, 1)
        wire.answers = [503]
        notifier.tell(message("closed"))
        await settled(world, notifier, 2)

    done = play(wire, [hook(retries=3)], scene)
    assert len(wire.posted) == 8
    assert (counted(done, "sent"), counted(done, "failed")) == (1, 1)


def test_a_refusal_is_not_repeated_and_a_mistake_of_ours_is_no_end(world):
    wire = Wire(404)

    async def scene(notifier):
        notifier.tell(message())
        await settled(world, notifier, 1)
        wire.answers = [RuntimeError("a surprise")]
        notifier.tell(message())
        await settled(world, notifier, 2)

    done = play(wire, [hook(retries=1)], scene)
    assert len(wire.posted) == 3
    assert counted(done, "failed") == 2


def test_the_address_comes_from_the_environment_and_is_in_no_log(world, capsys):
    wire = Wire(500)
    secret = "https://hooks.slack.com/services/T0/B0/secret"

    async def scene(notifier):
        notifier.tell(message())
        await settled(world, notifier, 3)

    sections = [hook(url=None, url_env=name, retries=0) for name in ("HOOK", "NONE", "ODD")]
    done = play(wire, sections, scene, {"HOOK": secret, "ODD": "file:///etc/passwd"})
    assert [url for url, _, _ in wire.posted] == [secret]
    assert counted(done, "failed") == 3
    told = capsys.readouterr()
    assert "secret" not in told.out + told.err
    assert "passwd" not in told.out + told.err


def test_a_hook_that_hangs_holds_up_nobody_and_loses_the_oldest(world, monkeypatch):
    monkeypatch.setattr(notifier, "QUEUE_MAX", 2)
    begun, go = asyncio.Event(), asyncio.Event()

    async def hangs(url, body, deadline_s):
        begun.set()
        await go.wait()
        return HttpAnswer(200, {}, b"")

    async def scene(notifier):
        notifier.tell(message())
        await begun.wait()
        for _ in range(5):
            notifier.tell(message("changed"))
        assert counted(notifier, "dropped") == 3
        go.set()
        await world.until(lambda: counted(notifier, "sent") == 3)

    play(hangs, [hook()], scene)


def test_a_reload_keeps_hooks_that_stay_and_what_others_had_done(world):
    wire = Wire()

    async def scene(notifier):
        notifier.tell(message())
        await settled(world, notifier, 2)
        notifier.follow([hook()])
        notifier.tell(message())
        await settled(world, notifier, 3)

    done = play(wire, [hook(), hook(url="http://127.0.0.1:9/other")], scene)
    assert counted(done, "sent") == 3


def test_a_real_hook_gets_its_path_and_query(world):
    async def main():
        engine = await world.Engine().start()
        try:
            assert (await notifier.post(f"{engine.url}/a/b?c=d", b"{}", 5)).status == 200
            assert (await notifier.post(engine.url, b"{}", 5)).status == 200
        finally:
            await engine.stop()
        return engine.asked

    assert asyncio.run(main()) == ["/a/b?c=d", "/"]
