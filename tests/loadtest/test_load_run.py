"""The client against a stand-in with a known law: what is counted, from when, and how it ends."""

import asyncio
import time
from itertools import pairwise

import pytest

from holdfast.core.types import ConfigError
from holdfast.loadtest.client_check import ClientLimits
from holdfast.loadtest.load_run import StepLoad
from holdfast.loadtest.records import BenchOutcome
from holdfast.testing.standin import fault


def test_an_open_loop_sends_as_planned_and_measures_the_law(stage):
    async def main():
        async with stage.standin() as engine:
            return await stage.hold(engine.url, stage.plan(100.0, pattern="constant"))

    step, records = stage.run(main())
    assert (step.mode, step.rate, step.refused) == ("open", 100.0, "")
    assert 45 <= len(records) <= 50  # at 100 a second, for half a second
    assert {record.outcome for record in records} == {BenchOutcome.SUCCESS}
    assert {record.output_tokens for record in records} == {stage.tokens}
    assert {record.events for record in records} == {stage.tokens}
    assert {record.prompt_tokens for record in records} == {20}
    gaps = [b.arrived_s - a.arrived_s for a, b in pairwise(records)]
    assert sum(gaps) / len(gaps) == pytest.approx(0.01, rel=0.05)
    for record in records:  # a machine that stalls makes it later, never earlier
        assert record.ttft_s >= stage.ttft_s - 0.001
        assert record.total_s >= stage.ttft_s + (stage.tokens - 1) * stage.tpot_s - 0.002
        assert record.ended_s >= record.last_s >= record.first_s > record.sent_s


def test_a_server_that_falls_behind_cannot_hide_it(stage):
    """One answer at a time, 40 ms each, asked 50 times a second: the wait grows to the end."""

    async def main():
        async with stage.standin(slots=1, ttft_ms=20, tpot_ms=2) as engine:
            plan = stage.plan(50.0, pattern="constant")
            return await stage.hold(engine.url, plan, seconds=0.4)

    _, records = stage.run(main())
    waits = [record.ttft_s for record in records]
    assert len(waits) >= 18
    # The last request of 19 waits for all before it, less the time that passed until it came.
    assert waits[-1] > 18 * 0.038 - 0.4
    assert waits[-1] > 5 * waits[0]


def test_a_closed_loop_has_so_many_users_and_no_more(stage):
    async def main():
        async with stage.standin() as engine:
            return await stage.hold(engine.url, users=4)

    step, records = stage.run(main())
    assert (step.mode, step.users, step.client.streams_max) == ("closed", 4, 4)
    assert len(records) > 8  # each asks again
    moments = sorted(
        [(record.sent_s, 1) for record in records] + [(record.ended_s, -1) for record in records]
    )
    under_way = most = 0
    for _, change in moments:
        under_way += change
        most = max(most, under_way)
    assert most <= 4


def test_an_end_is_set_by_count_too(stage):
    async def main():
        async with stage.standin() as engine:
            one = await stage.hold(engine.url, users=4, seconds=600.0, requests_max=10)
            other = await stage.hold(engine.url, seconds=600.0, requests_max=10)
            return one, other

    for step, records in stage.run(main()):
        assert len(records) == 10
        assert step.counted_to_s < 100


def test_requests_of_the_warm_up_do_not_count(stage):
    async def main():
        async with stage.standin() as engine:
            return await stage.hold(engine.url, warmup_s=0.3, seconds=0.3)

    step, records = stage.run(main())
    warm = [record for record in records if record.arrived_s < step.counted_from_s]
    assert 0 < len(warm) < len(records)


@pytest.mark.parametrize(
    ("ailment", "outcome", "problem"),
    [
        (fault("status", code=500), BenchOutcome.FAILURE, "500"),
        (fault("status", code=503), BenchOutcome.FAILURE, "503"),
        (
            fault("status", code=503, instant=True, retry_after=True),
            BenchOutcome.BACKPRESSURE,
            "503",
        ),
        (fault("status", code=429), BenchOutcome.BACKPRESSURE, "429"),
        (fault("status", code=400), BenchOutcome.CLIENT_ERROR, "400"),
        (fault("hang"), BenchOutcome.FAILURE, "timeout"),
        (fault("cut", tokens=3), BenchOutcome.FAILURE, "reset"),
        (fault("close", tokens=3), BenchOutcome.FAILURE, "without a finish reason"),
        (fault("error_frame", tokens=3), BenchOutcome.FAILURE, "an error within the stream"),
        (fault("garbage", form="bytes"), BenchOutcome.FAILURE, "no stream of events"),
    ],
)
def test_what_is_no_whole_answer_is_told_apart(stage, ailment, outcome, problem):
    async def main():
        async with stage.standin() as engine:
            engine.set_fault(ailment)
            return await stage.hold(engine.url, requests_max=5, timeout_s=0.4)

    _, records = stage.run(main())
    assert len(records) == 5
    for record in records:
        assert record.outcome is outcome
        assert record.problem
        assert problem in record.problem
        assert record.total_s is None


def test_a_server_that_is_not_there_is_a_failure_of_each_request(stage):
    async def main():
        async with stage.standin() as engine:
            url = engine.url
        return await stage.hold(url, requests_max=3)

    _, records = stage.run(main())
    assert [record.problem for record in records] == ["refused"] * 3
    assert {record.status for record in records} == {None}


ANSWER = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def test_a_pooled_connection_that_was_closed_is_no_failure(stage):
    """The server says keep-alive and closes: the next request is sent again, once, for free."""
    seen = []

    async def answer(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        seen.append(length)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
        writer.write(b"content-length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER))
        await writer.drain()
        await reader.read(1)  # the next request has begun: now it is too late for an answer
        writer.transport.abort()

    async def main():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            return await stage.hold(
                f"http://127.0.0.1:{port}", users=1, requests_max=4, seconds=60.0
            )
        finally:
            server.close()

    _, records = stage.run(main())
    assert [record.outcome for record in records] == [BenchOutcome.SUCCESS] * 4
    assert len(seen) == 4


def test_a_client_that_is_late_refuses_to_report(stage):
    """Something keeps the client's own event loop busy: its figures would be the client's."""

    async def main():
        async with stage.standin() as engine:
            return await stage.hold(
                engine.url,
                limits=ClientLimits(cpu_share_max=1.0),
                on_progress=lambda _: time.sleep(0.08),
                seconds=0.8,
            )

    step, _ = stage.run(main())
    assert "the client was" in step.refused
    assert "late at its p99" in step.refused
    assert step.client.late_p99_s > 0.05


def test_beyond_its_streams_it_refuses_to_report(stage):
    async def main():
        async with stage.standin(ttft_ms=300) as engine:
            return await stage.hold(engine.url, limits=ClientLimits(late_s_max=600, streams_max=5))

    step, records = stage.run(main())
    assert "were not sent, because 5 answers were under way already" in step.refused
    assert step.client.streams_max == 5
    unsent = [record for record in records if record.outcome is BenchOutcome.CANCELLED]
    assert len(unsent) == step.client.unsent > 0
    assert all(record.sent_s is None for record in unsent)


@pytest.mark.parametrize(
    ("field", "value"),
    [("seconds", 0), ("warmup_s", -1), ("requests_max", 0), ("timeout_s", 0), ("users", 0)],
)
def test_a_load_without_an_end_or_a_beginning_is_refused(field, value):
    with pytest.raises(ConfigError, match="use"):
        StepLoad(**{"name": "x", field: value})
