import asyncio
import socket
from pathlib import Path

import orjson
import pytest

from holdfast.core.plan.faults import REPLICA_KINDS, FaultKind
from holdfast.testing.standin import FaultError, Like, SocketKind, expected_text, fault
from holdfast.testing.standin.faults import read_fault

USER = {"role": "user", "content": "Tell me all about it"}
CHAT = "/v1/chat/completions"
STREAM = {"model": "m", "messages": [USER], "stream": True}
WHOLE = {"model": "m", "messages": [USER]}
TEXT = expected_text("m", [USER])
SILENCE_S = 0.3  # long enough to have been answered, were an answer to come


def struck(kit, ailment, *bodies, **options):
    """The answers to these bodies while the stand-in has the fault; its health; its figures."""

    async def main():
        async with kit.live(**options) as standin:
            standin.set_fault(ailment)
            answers = [await kit.ask(standin, CHAT, body) for body in bodies]
            if standin.exit_status is not None:
                return answers, standin.exit_status, standin.stats()
            health = await kit.ask(standin, "/health", method="GET")
            metrics = await kit.ask(standin, "/metrics", method="GET")
            assert metrics.status == 200
            return answers, health.status, standin.stats()

    return asyncio.run(main())


def test_every_fault_of_a_replica_can_be_had_and_no_other():
    for kind in (*REPLICA_KINDS, *SocketKind):
        assert fault(kind).known is kind
    for kind in (FaultKind.ZONE_LOSS, FaultKind.PROBE_BLIND, "measles"):
        with pytest.raises(FaultError, match="one replica"):
            fault(kind)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"kind": "slow", "factor": 0}',
        b'{"kind": "slow", "factr": 3}',
        b'{"kind": "flaky", "probability": 2}',
        b'{"kind": "status", "code": 200}',
        b'{"kind": "garbage", "form": "poem"}',
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(body):
    with pytest.raises(FaultError):
        read_fault(body)


def test_after_a_cut_the_client_sees_a_reset_and_the_tokens_before_it(kit):
    (stream, whole), health, stats = struck(kit, fault("cut", tokens=3), STREAM, WHOLE)
    assert stream.broken == "reset"
    assert whole.broken == "reset"
    assert TEXT.startswith(stream.text())
    assert health == 200
    assert stats["failed"] == 2


def test_a_cut_comes_after_the_promised_number_of_tokens(kit):
    # With time between the tokens none is lost in the reset.
    (stream,), _, _ = struck(kit, fault("cut", tokens=3), STREAM, tpot_ms=30)
    assert stream.text() == expected_text("m", [USER], 3)


def test_a_silent_end_is_complete_http_without_finish_or_done(kit):
    (stream, whole), _, _ = struck(kit, fault("close", tokens=4), STREAM, WHOLE)
    assert stream.broken == ""
    assert stream.text() == expected_text("m", [USER], 4)
    assert stream.finish() is None
    assert "[DONE]" not in stream.events()
    assert whole.broken == "closed"


def test_a_connection_closed_in_the_middle(kit):
    (stream,), _, _ = struck(kit, fault("close", tokens=4, form="fin"), STREAM)
    assert stream.broken == "closed"
    assert stream.text() == expected_text("m", [USER], 4)


def test_an_error_frame_comes_before_a_done(kit):
    (stream, whole), health, _ = struck(kit, fault("error_frame", tokens=2), STREAM, WHOLE)
    assert stream.status == 200
    assert stream.text() == expected_text("m", [USER], 2)
    assert "error" in stream.events()[-2]
    assert stream.events()[-1] == "[DONE]"
    assert stream.finish() is None
    assert whole.status == 500
    assert health == 200


@pytest.mark.parametrize("like", Like)
def test_an_empty_answer_finishes_without_a_word(kit, like):
    (stream, whole), health, _ = struck(kit, fault("empty"), STREAM, WHOLE, like=like)
    assert stream.text() == ""
    assert stream.finish() == "stop"
    assert stream.events()[-1] == "[DONE]"
    assert whole.json["choices"][0]["message"]["content"] == ""
    assert health == 200


def test_a_wrong_answer_looks_like_a_right_one(kit):
    (stream, whole), health, _ = struck(kit, fault("wrong_output"), STREAM, WHOLE)
    assert stream.text() == whole.json["choices"][0]["message"]["content"] != TEXT
    assert len(stream.text().split()) == 20
    assert stream.finish() == "stop"
    assert health == 200


def test_a_share_of_the_answers_can_be_wrong(kit):
    async def main():
        async with kit.live() as standin:
            standin.set_fault(fault("wrong_output", share=0.25))
            answers = [await kit.ask(standin, "/v1/chat/completions", WHOLE) for _ in range(80)]
            return [one.json["choices"][0]["message"]["content"] == TEXT for one in answers]

    right = asyncio.run(main())
    assert 40 < sum(right) < 75  # drawn, with the seed of the options
    assert right == asyncio.run(main())


def test_a_black_hole_answers_500_and_occupies_nothing(kit):
    (answer,), health, stats = struck(kit, fault("black_hole"), STREAM, ttft_ms=60_000)
    assert answer.status == 500
    assert health == 200
    assert stats["failed"] == 1


@pytest.mark.parametrize(
    ("how", "status", "header"),
    [
        ({"kind": "status"}, 500, False),
        ({"kind": "status", "code": 503, "instant": True}, 503, False),
        ({"kind": "status", "code": 503, "instant": True, "retry_after": True}, 503, True),
        ({"kind": "refuse_busy"}, 429, True),
        ({"kind": "flaky", "probability": 1, "tokens": 0}, 500, False),
    ],
)
def test_refusals_have_their_status_and_headers(kit, how, status, header):
    (answer,), health, _ = struck(kit, fault(**how), STREAM)
    assert answer.status == status
    assert ("retry-after" in answer.headers) == header
    assert "error" in answer.json
    assert health == 200


def test_flaky_breaks_about_so_many(kit):
    ailment = fault("flaky", probability=0.5, tokens=2)
    answers, _, _ = struck(kit, ailment, *[STREAM] * 40)
    broken = [answer for answer in answers if answer.broken == "reset"]
    assert 8 <= len(broken) <= 32
    assert all(a.text() == TEXT for a in answers if not a.broken)


def test_a_start_that_never_ends_shows_in_its_health(kit):
    (answer,), health, _ = struck(kit, fault("load_stall"), WHOLE)
    assert (answer.status, health) == (503, 503)


def test_running_out_of_memory_kills_at_the_next_request(kit):
    (answer,), status, _ = struck(kit, fault("oom"), STREAM)
    assert answer.broken
    assert status == 137


def test_it_can_die_of_certain_requests_only(kit):
    async def main():
        async with kit.live() as standin:
            standin.set_fault(fault("oom", marker="cucumber"))
            sound = await kit.ask(standin, "/v1/chat/completions", WHOLE)
            assert sound.status == 200
            assert standin.exit_status is None
            deadly = {"model": "m", "messages": [{"role": "user", "content": "a cucumber"}]}
            answers = await asyncio.gather(
                *(kit.ask(standin, "/v1/chat/completions", deadly) for _ in range(2))
            )
            assert all(answer.broken for answer in answers)
            assert standin.exit_status == 137

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["leak", "spot_notice"])
def test_death_comes_after_its_lead_and_a_leak_shows_before(kit, kind):
    async def main():
        async with kit.live() as standin:
            standin.set_fault(fault(kind, lead_s=0.15))
            seen = []
            while standin.exit_status is None:
                seen.append(standin.stats()["kv_used"])
                await asyncio.sleep(0.01)
            return seen, standin.exit_status

    seen, status = asyncio.run(main())
    assert status == 137
    assert seen == sorted(seen)
    assert (seen[-1] > seen[0]) == (kind == "leak")  # how far it was seen depends on the machine


def test_a_leak_of_real_memory_ends_in_starvation_with_a_green_page(kit):
    async def main():
        async with kit.live() as standin:
            before = resident()
            standin.set_fault(fault("leak", bytes_s=400e6, bytes_max=200_000_000))
            sound = await kit.ask(standin, CHAT, WHOLE)  # while there is memory it serves
            assert sound.status == 200
            await kit.until(lambda: resident() - before > 150e6)
            reader, writer = await asyncio.open_connection("127.0.0.1", standin.port)
            await kit.until(lambda: standin.stats()["held_bytes"] == 200_000_000)
            writer.write(kit.request_bytes(CHAT, WHOLE))
            await kit.until(lambda: standin.stats()["waiting"] == 1)
            health = await kit.ask(standin, "/health", method="GET")
            metrics = await kit.ask(standin, "/metrics", method="GET")
            told = (health.status, metrics.status, standin.stats()["running"], standin.exit_status)
            assert told == (200, 200, 0, None)
            assert standin.stats()["kv_used"] < 0.1  # nothing of it shows where engines are asked
            standin.clear_fault()
            answer = await kit.read_answer(reader)  # and who waited gets its turn
            writer.close()
            await writer.wait_closed()
            assert answer.status == 200
            await kit.until(lambda: resident() - before < 100e6)

    asyncio.run(main())


def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1_024


def test_a_leak_that_is_called_off_gives_everything_back(kit):
    async def main():
        async with kit.live() as standin:
            standin.set_fault(fault("leak", bytes_s=4e6, bytes_max=1_000_000_000))
            standin.clear_fault()
            answer = await kit.ask(standin, CHAT, WHOLE)
            return answer.status, standin.stats()["fault"]

    assert asyncio.run(main()) == (200, None)


def test_a_death_that_was_called_off_does_not_come(kit):
    async def main():
        async with kit.live() as standin:
            standin.set_fault(fault("spot_notice", lead_s=0.05))
            standin.clear_fault()
            await asyncio.sleep(0.1)
            assert standin.exit_status is None

    asyncio.run(main())


@pytest.mark.parametrize(
    ("form", "sign"), [("", b'"content":"!"'), ("bytes", b"\x8f\xfe"), ("json", b'{"con\n\n')]
)
def test_garbage_flows_without_an_end(kit, form, sign):
    async def main():
        async with kit.live(tpot_ms=1) as standin:
            standin.set_fault(fault("garbage", form=form))
            reader, writer = await asyncio.open_connection("127.0.0.1", standin.port)
            writer.write(kit.request_bytes(CHAT, STREAM))
            answer = await asyncio.wait_for(kit.read_answer(reader, until=50), 20)
            writer.transport.abort()
            return answer

    answer = asyncio.run(main())
    assert answer.status == 200
    assert answer.body.count(sign) >= 40


def test_garbage_respects_a_limit_and_a_whole_answer_ends(kit):
    limited = {**STREAM, "max_tokens": 7}
    (stream, whole), health, _ = struck(kit, fault("garbage"), limited, WHOLE)
    assert stream.text() == "!" * 7
    assert set(whole.json["choices"][0]["message"]["content"]) == {"!"}
    assert health == 200


def test_garbage_may_hit_a_stream_under_way(kit):
    async def main():
        async with kit.live(tpot_ms=2, tokens=100_000) as standin:
            reader, writer = await asyncio.open_connection("127.0.0.1", standin.port)
            writer.write(kit.request_bytes(CHAT, STREAM))
            await reader.readuntil(b"content")
            standin.set_fault(fault("garbage", under_way=True))
            await asyncio.wait_for(reader.readuntil(b'"content":"!"'), 20)
            writer.transport.abort()

    asyncio.run(main())


@pytest.mark.parametrize("like", Like)
def test_a_hang_answers_nothing_but_health_and_goes_on_when_it_is_over(kit, like):
    async def main():
        async with kit.live(like=like, tpot_ms=1) as standin:
            standin.set_fault(fault("hang"))
            asking = [asyncio.create_task(kit.ask(standin, CHAT, b)) for b in (STREAM, WHOLE)]
            await kit.until(lambda: standin.stats()["running"] == 2)
            done, _ = await asyncio.wait(asking, timeout=SILENCE_S)
            assert not done
            assert (await kit.ask(standin, "/health", method="GET")).status == 200
            standin.clear_fault()
            stream, whole = await asyncio.gather(*asking)
            assert stream.text() == whole.json["choices"][0]["message"]["content"] == TEXT

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["stall", "drip", "hang"])
def test_a_stream_stops_in_the_middle_and_stays_open(kit, kind):
    async def main():
        async with kit.live(tpot_ms=20) as standin:
            reader, writer = await asyncio.open_connection("127.0.0.1", standin.port)
            writer.write(kit.request_bytes(CHAT, STREAM))
            await reader.readuntil(b"content")
            standin.set_fault(fault(kind, tokens=3, interval_s=3600))
            rest = asyncio.create_task(reader.readuntil(b"[DONE]"))
            done, _ = await asyncio.wait([rest], timeout=SILENCE_S)
            assert not done
            assert standin.stats()["running"] == 1
            assert standin.stats()["generated_tokens"] == 0
            standin.clear_fault()
            if kind != "drip":  # a drip has its next turn an hour from now
                await asyncio.wait_for(rest, 20)
            rest.cancel()
            writer.transport.abort()

    asyncio.run(main())


def test_slow_stretches_every_duration(kit):
    async def main():
        async with kit.live(ttft_ms=10, tpot_ms=2, tokens=6) as standin:
            standin.set_fault(fault("slow", factor=5))
            loop = asyncio.get_running_loop()
            took = []
            for body in (STREAM, WHOLE):
                began = loop.time()
                await kit.ask(standin, CHAT, body)
                took.append(loop.time() - began)
            return took

    assert min(asyncio.run(main())) >= 5 * (0.010 + 5 * 0.002)


def test_a_crash_resets_everybody_and_refuses_the_next(kit):
    async def main():
        async with kit.live(ttft_ms=60_000) as standin:
            asking = asyncio.create_task(kit.ask(standin, CHAT, WHOLE))
            await kit.until(lambda: standin.stats()["running"] == 1)
            told = await kit.ask(standin, "/fault", {"kind": "crash"}, side=True)
            assert told.status == 200
            assert (await asking).broken == "reset"
            assert standin.exit_status == 1
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", standin.port)

    asyncio.run(main())


def test_behind_a_partition_connects_time_out_until_it_is_healed(kit):
    def connects(port):
        with socket.socket() as sock:
            sock.settimeout(SILENCE_S)
            try:
                sock.connect(("127.0.0.1", port))
            except TimeoutError:
                return False
            return True

    async def main():
        async with kit.live() as standin:
            reader, writer = await asyncio.open_connection("127.0.0.1", standin.port)
            writer.write(kit.request_bytes(CHAT, WHOLE))
            assert (await kit.read_answer(reader)).status == 200
            standin.set_fault(fault("partition"))
            writer.write(kit.request_bytes("/health", None, "GET"))
            assert not await asyncio.to_thread(connects, standin.port)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), SILENCE_S)
            told = await kit.ask(standin, "/stats", method="GET", side=True)
            assert told.json["fault"] == "partition"
            standin.clear_fault()
            assert (await asyncio.wait_for(kit.read_answer(reader), 20)).status == 200
            writer.transport.abort()
            assert (await kit.ask(standin, CHAT, WHOLE)).status == 200

    asyncio.run(main())


def test_faults_are_switched_on_the_side_port_which_is_not_the_data_port(kit):
    async def main():
        async with kit.live() as standin:
            bad = await kit.ask(standin, "/fault", {"kind": "measles"}, side=True)
            assert (bad.status, bad.json["error"]["code"]) == (400, 400)
            assert (await kit.ask(standin, "/fault", {"kind": "hang"})).status == 404
            await kit.ask(standin, "/fault", {"kind": "slow", "factor": 3}, side=True)
            told = await kit.ask(standin, "/fault", method="GET", side=True)
            assert (told.json["kind"], told.json["factor"]) == ("slow", 3)
            await kit.ask(standin, "/fault", method="DELETE", side=True)
            told = await kit.ask(standin, "/fault", method="GET", side=True)
            assert orjson.loads(told.body) is None
            assert (await kit.ask(standin, "/nothing", method="GET", side=True)).status == 404
            stats = (await kit.ask(standin, "/stats", method="GET", side=True)).json
            assert {"requests", "running", "waiting", "cancelled", "fault"} <= set(stats)

    asyncio.run(main())


def test_tasks_have_faults_too(kit):
    async def main():
        async with kit.live() as standin:
            body = {"model": "m", "input": "x"}
            good = (await kit.ask(standin, "/v1/embeddings", body)).body
            standin.set_fault(fault("wrong_output"))
            wrong = await kit.ask(standin, "/v1/embeddings", body)
            standin.set_fault(fault("empty"))
            empty = await kit.ask(standin, "/v1/embeddings", body)
            standin.set_fault(fault("garbage"))
            garbage = await kit.ask(standin, "/v1/embeddings", body)
            assert wrong.status == empty.status == garbage.status == 200
            assert good != wrong.body
            assert empty.body == b"{}"
            with pytest.raises(orjson.JSONDecodeError):
                orjson.loads(garbage.body)

    asyncio.run(main())


def test_streams_of_responses_can_turn_to_garbage(kit):
    async def main():
        async with kit.live() as standin:
            standin.set_fault(fault("garbage"))
            body = {"model": "m", "input": "x", "stream": True, "max_output_tokens": 9}
            return await kit.ask(standin, "/v1/responses", body)

    assert asyncio.run(main()).body.count(b'"delta":"!"') == 9


# --- pages ---------------------------------------------------------------------------------------


def test_a_server_without_its_model_is_green_and_knows_no_model(kit):
    async def main():
        async with kit.live() as standin:
            before = await kit.ask(standin, CHAT, WHOLE)
            standin.set_fault(fault("model_missing"))
            pages = [
                await kit.ask(standin, path, method="GET")
                for path in ("/health", "/v1/models", "/v1/models/m", "/metrics")
            ]
            answers = [await kit.ask(standin, CHAT, body) for body in (WHOLE, STREAM)]
            answers.append(await kit.ask(standin, "/v1/embeddings", {"model": "m", "input": "x"}))
            standin.clear_fault()
            return before, pages, answers, await kit.ask(standin, CHAT, WHOLE)

    before, pages, answers, after = asyncio.run(main())
    assert [page.status for page in pages] == [200, 200, 404, 200]
    assert pages[1].json["data"] == []
    assert [answer.status for answer in answers] == [404, 404, 404]
    assert answers[0].json["error"]["message"] == "the model does not exist"
    assert before.status == after.status == 200


@pytest.mark.parametrize(("how", "told"), [({}, b"1.000000"), ({"share": 0.97}, b"0.970000")])
def test_a_full_cache_shows_in_the_metrics_and_nowhere_else(kit, how, told):
    async def main():
        async with kit.live() as standin:
            standin.set_fault(fault("kv_full", **how))
            metrics = await kit.ask(standin, "/metrics", method="GET")
            return metrics, await kit.ask(standin, CHAT, STREAM)

    metrics, answer = asyncio.run(main())
    (line,) = [line for line in metrics.body.splitlines() if line.startswith(b"vllm:kv_cache")]
    assert line.endswith(told)
    assert answer.text() == TEXT


def test_metrics_can_vanish_while_everything_else_is_well(kit):
    async def main():
        async with kit.live() as standin:
            standin.set_fault(fault("metrics_gone"))
            paths = ("/metrics", "/health", "/v1/models")
            pages = [await kit.ask(standin, path, method="GET") for path in paths]
            return [page.status for page in pages], await kit.ask(standin, CHAT, STREAM)

    statuses, answer = asyncio.run(main())
    assert statuses == [404, 200, 200]
    assert answer.text() == TEXT


def test_a_limit_ends_garbage_as_it_ends_any_answer(kit):
    (stream,), _, _ = struck(kit, fault("garbage"), {**STREAM, "max_tokens": 8})
    assert (stream.text(), stream.finish()) == ("!" * 8, "length")
