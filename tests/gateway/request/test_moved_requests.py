"""Requests caught at a replica that hangs, over real sockets: they are answered elsewhere."""

import asyncio
from dataclasses import dataclass, replace

import orjson
import pytest

from holdfast.core.messages import FleetView, Report
from holdfast.core.types import SECOND, State
from holdfast.testing.standin import Options, expected_text

ASK = [{"role": "user", "content": "Who is there?"}]
TEXT = expected_text("m", ASK, 4)
QUICK = Options(ttft_ms=5.0, tpot_ms=1.0, tokens=4)
SIGNS = {"listen": "127.0.0.1:0", "stream": {"sign_of_life_s": 0.1}}


@dataclass
class Answer:
    """What came back over one connection."""

    status: int
    headers: dict[str, str]
    text: str  # with the framing of chunks, where it came in chunks


async def ask(gateway, path: str = "/v1/chat/completions", **body) -> Answer:
    asked = orjson.dumps({"model": "m", "messages": ASK, **body})
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(asked)}"
    writer.write(head.encode() + b"\r\ncontent-type: application/json\r\n\r\n" + asked)
    try:
        came = (await reader.read()).decode()
    finally:
        writer.close()
    told, _, text = came.partition("\r\n\r\n")
    status, *lines = told.split("\r\n")
    return Answer(int(status.split()[1]), dict(line.split(": ", 1) for line in lines), text)


async def catch(gateway, **body) -> tuple[asyncio.Task, str]:
    """A request that hangs on the replica it was sent to, and that replica."""
    for index in range(len(gateway.engines)):
        gateway.ail(index, "hang")
    asking = asyncio.create_task(ask(gateway, **body))
    requests = gateway.driver.port.requests
    await gateway.until(lambda: any(one.attempts for one in requests.values()))
    [proxied] = requests.values()
    [attempt] = proxied.attempts.values()
    lost = attempt.replica_id
    for engine in gateway.engines:
        if engine is not gateway.engine_of(lost):
            engine.engine.clear_fault()
    return asking, lost


def lose(gateway, lost: str, state: State, **told) -> None:
    """Control's next view, in which this replica serves nobody."""
    rows = [
        replace(row, state=state, share=0.0, **told) if row.replica.id == lost else row
        for row in gateway.views
    ]
    gateway.driver.view(FleetView(2, tuple(rows)))


@pytest.mark.parametrize("stream", [False, True], ids=["in one piece", "stream"])
def test_the_first_request_of_a_fresh_gateway_leaves_a_replica_found_dead(live, stream):
    async def body(gateway):
        asking, lost = await catch(gateway, stream=stream)
        now = gateway.driver.now_ns
        found_at = now()
        lose(gateway, lost, State.DEAD)
        answer = await asking
        assert now() - found_at < SECOND  # 100 ms and the service, on a busy machine
        assert (answer.status, answer.headers["x-holdfast-attempts"]) == (200, "2")
        assert answer.headers["x-holdfast-replica"] != lost
        if not stream:
            assert orjson.loads(answer.text)["choices"][0]["message"]["content"] == TEXT
        idle = gateway.engine_of(lost)
        await gateway.until(lambda: not idle.engine.connections)  # cancelled there

    live(body, options=QUICK)


def test_what_stores_something_stays_at_a_replica_found_dead(live):
    async def body(gateway):
        asking, lost = await catch(gateway, path="/v1/responses", input="Who?")
        lose(gateway, lost, State.DEAD)
        await asyncio.sleep(0.2)
        [proxied] = gateway.driver.port.requests.values()
        assert [a.replica_id for a in proxied.attempts.values()] == [lost]
        asking.cancel()

    live(body, options=QUICK)


def test_a_move_empties_a_replica_of_what_was_not_shown(live):
    async def body(gateway):
        asking, lost = await catch(gateway)
        gateway.driver.move("m", lost)
        answer = await asking
        assert answer.headers["x-holdfast-attempts"] == "2"

    live(body, options=QUICK)


def test_a_stream_that_pauses_is_reported_before_it_is_given_up(live):
    async def body(gateway):
        asking = asyncio.create_task(ask(gateway, stream=True))
        port = gateway.driver.port
        await gateway.until(lambda: port.streaming)
        [attempt] = port.streaming
        attempt.last -= 5 * SECOND
        port._quiet_at = 0
        await gateway.until(lambda: any(isinstance(told, Report) for told in gateway.news))
        [report] = [told for told in gateway.news if isinstance(told, Report)]
        assert (report.replica_id, report.what) == (attempt.replica_id, "overdue")
        assert (await asking).text.count("data: [DONE]") == 1

    live(body, options=Options(ttft_ms=5.0, tpot_ms=200.0, tokens=10), replicas=1)


def test_where_no_replica_can_be_ready_in_time_the_answer_is_503_at_once(live):
    async def body(gateway):
        reason = "its process is stopped (by signal 19)"
        lose(gateway, "m-1", State.QUARANTINED, ready_in_s=41.0, reason=reason)
        refused = await ask(gateway)
        assert (refused.status, refused.headers["retry-after"]) == (503, "41")
        message = orjson.loads(refused.text)["error"]["message"]
        assert message.startswith("the only replica of m is quarantined: its process is stopped")
        assert "signal" not in message

    live(body, options=QUICK, replicas=1)


def test_a_stream_that_waits_for_a_replica_is_told_for_how_long(live):
    async def body(gateway):
        lose(gateway, "m-1", State.LOADING, ready_in_s=12.0)
        asking = asyncio.create_task(ask(gateway, stream=True))
        await gateway.until(lambda: gateway.driver.port.requests)
        await asyncio.sleep(0.25)
        gateway.driver.view(FleetView(3, gateway.views))
        text = (await asking).text
        assert ": waiting for the model, which may be ready in 12 s\n\n" in text
        assert "data: [DONE]\n\n" in text

    live(body, options=QUICK, replicas=1, gateway=SIGNS)
