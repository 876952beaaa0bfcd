"""Answers of a stand-in that share a batch; no time is measured from above, for machines stall."""

import asyncio
import time

import pytest

from holdfast.core.types import ConfigError
from holdfast.testing.standin import Options, fault

USER = {"model": "m", "messages": [{"role": "user", "content": "a b c d"}], "ignore_eos": True}
PATH = "/v1/chat/completions"


def ask_all(kit, bodies, **options):
    """The answers to all bodies at once, and how long they took together."""

    async def main():
        async with kit.live(step_ms=5.0, **options) as standin:
            began = time.monotonic()
            answers = await asyncio.gather(*(kit.ask(standin, PATH, body) for body in bodies))
            return answers, time.monotonic() - began

    return asyncio.run(main())


def test_streams_and_whole_answers_of_one_batch_are_complete(kit):
    bodies = [{**USER, "max_tokens": n, "stream": n % 2 == 0} for n in (1, 2, 5, 8)]
    answers, _ = ask_all(kit, bodies)
    for body, answer in zip(bodies, answers, strict=True):
        assert answer.status == 200
        if body["stream"]:
            assert answer.events()[-1] == "[DONE]"
            words = answer.text().split()
        else:
            words = answer.json["choices"][0]["message"]["content"].split()
        assert len(words) == body["max_tokens"]


def test_no_answer_is_sooner_than_its_steps(kit):
    _, alone = ask_all(kit, [{**USER, "max_tokens": 20, "stream": True}])
    assert alone >= 20 * 0.005
    # Four prompt tokens of 10 ms, and two in the batch of 5 ms each, twenty times.
    bodies = [{**USER, "max_tokens": 20, "stream": True}] * 2
    law = {"per_sequence_ms": 5.0, "prefill_us_per_token": 10_000.0}
    _, together = ask_all(kit, bodies, **law)
    assert together >= 19 * 0.015 + 0.04


def test_more_than_the_slots_wait_for_the_next_batch(kit):
    bodies = [{**USER, "max_tokens": 10, "stream": True}] * 3
    answers, took = ask_all(kit, bodies, slots=1)
    assert [answer.status for answer in answers] == [200] * 3
    assert took >= 30 * 0.005


def test_a_hung_engine_goes_on_where_it_was(kit):
    async def main():
        async with kit.live(step_ms=5.0, slots=1) as standin:
            engine = standin.engine
            engine.set_fault(fault("hang"))
            asked = asyncio.create_task(kit.ask(standin, PATH, {**USER, "max_tokens": 4}))
            await kit.until(lambda: engine.now().running == 1)
            engine.clear_fault()
            answer = await asked
            return len(answer.json["choices"][0]["message"]["content"].split())

    assert asyncio.run(main()) == 4


def test_bad_times_are_refused_by_name():
    for field in ("step_ms", "per_sequence_ms", "per_kv_token_ms"):
        with pytest.raises(ConfigError, match=f"standin.{field}"):
            Options(**{field: -1.0})
