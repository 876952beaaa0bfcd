"""Whom to load: a server is found and probed, and whatever is none gets a plain answer."""

import asyncio
import contextlib

import pytest

from holdfast.core.types import ConfigError
from holdfast.loadtest.benchmark import Benchmark, BenchSettings
from holdfast.loadtest.load_run import LoadClient
from holdfast.loadtest.prompts import TokenRule
from holdfast.loadtest.request_plan import BodyForm
from holdfast.loadtest.target import (
    BenchTarget,
    TargetError,
    base_url,
    find_target,
    is_url,
    probe,
)
from holdfast.sim.workload import Workload
from holdfast.testing.standin import fault


@contextlib.asynccontextmanager
async def answering(*answers):
    """A server that gives these answers in turn: (status, body)."""
    waiting = list(answers)
    heads = []

    async def answer(reader, writer):
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        status, body = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n" % (status, len(body)))
        writer.write(b"connection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads
    finally:
        server.close()


def test_the_only_model_is_taken(stage):
    async def main():
        async with stage.standin() as engine:
            return await find_target(f"{engine.url}/v1/", None, None, None), engine.url

    found, url = stage.run(main())
    assert (found.url, found.model) == (url, "m")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((404, b"not found"), "is no gateway and no engine with the OpenAI API"),
        ((200, b"<html>hello</html>"), "answers 200 with something else"),
        ((200, b'{"data": 3}'), "is no gateway"),
        ((500, b""), "answers 500"),
        ((401, b"{}"), "it needs a key"),
        ((200, b'{"data": []}'), "0 models"),
        ((200, b'{"data": [{"id": "a"}, {"id": "b"}]}'), r"2 models \(a, b\); name one"),
    ],
)
def test_what_is_no_server_gets_a_plain_answer(stage, answer, problem):
    async def main():
        async with answering(answer) as (url, _):
            await find_target(url, None, None, None)

    with pytest.raises(TargetError, match=problem):
        stage.run(main())


def test_a_fleet_of_zero_is_named(stage):
    async def main():
        async with answering((200, b'{"data": []}')) as (url, _):
            await find_target(url, "m", None, None)

    with pytest.raises(TargetError, match="a fleet of zero cannot be measured"):
        stage.run(main())


def test_a_model_that_is_not_there_is_named_beside_those_that_are(stage):
    async def main():
        async with stage.standin(models=("a", "b")) as engine:
            await find_target(engine.url, "c", None, None)

    with pytest.raises(TargetError, match="no model 'c'; it has a, b"):
        stage.run(main())


def test_a_model_that_is_nearly_there_is_answered_with_its_name(stage):
    async def main():
        async with stage.standin(models=("classifier", "b")) as engine:
            await find_target(engine.url, "clasifier", None, None)

    with pytest.raises(TargetError, match=r"no model 'clasifier'; did you mean 'classifier'\?"):
        stage.run(main())


def test_nobody_listening_is_said_so(stage):
    async def main():
        async with stage.standin() as engine:
            url = engine.url
        await find_target(url, None, None, None)

    with pytest.raises(TargetError, match="does a gateway or an engine listen there"):
        stage.run(main())


def test_a_key_is_sent_and_told_nobody(stage):
    async def main():
        async with answering((403, b"{}")) as (url, heads):
            with pytest.raises(TargetError, match="its key is not accepted") as refused:
                await find_target(url, None, "hf-secret-1", None)
            return heads, str(refused.value)

    heads, told = stage.run(main())
    assert b"Bearer hf-secret-1" in heads[0]
    assert "secret" not in told
    assert "secret" not in repr(BenchTarget("http://x", "m", "hf-secret-1"))


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://u:p@x", "http://x?y", "http://x:0"])
def test_a_url_that_is_none_is_refused_with_an_example(url):
    with pytest.raises(TargetError, match=r"write it like|leave out|use the port"):
        base_url(url)


def test_a_url_is_told_from_a_model():
    assert is_url("http://x")
    assert is_url("127.0.0.1:8000")
    assert not is_url("org/model:7b")


def probed(stage, *, form=None, **options):
    async def main():
        async with stage.standin(**options) as engine:
            client = LoadClient(engine.url)
            try:
                return await probe(client, form or BodyForm("m"), 30.0)
            finally:
                client.close()

    return stage.run(main())


def test_probes_tell_how_words_are_counted(stage):
    found = probed(stage)
    assert found.rule == TokenRule(0.0, 1.0)  # a stand-in counts words
    assert found.form.ignore_eos
    assert not found.remarks


def test_a_server_that_refuses_ignore_eos_is_asked_without(stage):
    usage = b'{"prompt_tokens": 9, "completion_tokens": 1}'
    event = b'data: {"choices":[{"text":"a","finish_reason":"stop"}],"usage":%b}\n\n' % usage

    async def main():
        async with answering((400, b"{}"), (200, event)) as (url, heads):
            client = LoadClient(url)
            try:
                return await probe(client, BodyForm("m", chat=False), 30.0), heads
            finally:
                client.close()

    found, heads = stage.run(main())
    assert not found.form.ignore_eos
    assert any("ignore_eos" in remark for remark in found.remarks)
    assert len(heads) == 3


def test_a_first_request_that_fails_is_told_with_its_code(stage):
    async def main(ailment):
        async with stage.standin() as engine:
            engine.set_fault(ailment)
            client = LoadClient(engine.url)
            try:
                await probe(client, BodyForm("m"), 0.5)
            finally:
                client.close()

    with pytest.raises(TargetError, match=r"answered 503 .*is a replica of this model ready"):
        stage.run(main(fault("status", code=503, instant=True)))
    with pytest.raises(TargetError, match="a first request failed: timeout"):
        stage.run(main(fault("hang")))


def test_a_whole_benchmark_has_its_plan_its_step_and_its_records(stage):
    async def main():
        async with stage.standin() as engine:
            target = await find_target(engine.url, None, None, None)
            settings = BenchSettings(
                workload=stage.plan(100.0).workload,
                seconds=0.5,
                warmup_s=0.1,
                limits=stage.forgiving,
                label="mine",
            )
            return await Benchmark(target, settings).run()

    file = stage.run(main())
    assert (file.model, file.label, len(file.steps)) == ("m", "mine", 1)
    assert file.workload["pattern"] == "poisson"
    assert len(file.measured()) > 10
    assert file.fleet.gpus_why == "no admin port was asked"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"users": 5_000}, "asks for 5000 streams"),
        ({"users": 300, "scale": (1, 20)}, "asks for 6000 streams"),
        ({"scale": (2, 1)}, "--scale"),
        ({"scale": (0,)}, "--scale"),
    ],
)
def test_more_than_the_client_can_carry_is_refused_before_anything_is_sent(settings, problem):
    with pytest.raises(ConfigError, match=problem):
        BenchSettings(workload=Workload(), **settings)
