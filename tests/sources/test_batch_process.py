"""The backlog of batches as rows of the view, also while the batch process is away."""

import asyncio
import json

from holdfast.core.view.fleet_records import FleetRecords
from holdfast.core.view.layers import Part, Queue, Reading
from holdfast.core.view.reading_diff import ReadingDiff, ReadingDiffConfig
from holdfast.core.view.snapshot_join import join
from holdfast.sources.batch_process import BatchSource

TOLD = {
    "models": {
        "m": {
            "waiting": 40,
            "delayed": 1,
            "in_flight": 9,
            "dead": 2,
            "oldest_s": 7_200.0,
            "drain_s": 60.0,
        }
    },
    "batches": {"in_progress": 1},
    "problem": "",
}


async def read(path, told, status="200 OK"):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\n\r\n".encode() + json.dumps(told).encode())
        writer.close()
        await writer.wait_closed()

    source = BatchSource(path)
    server = await asyncio.start_unix_server(answer, str(path))
    async with server:
        first = await source.read()
    path.unlink(missing_ok=True)
    return source, first, await source.read()


def test_its_rows_tell_what_waits_and_when_it_is_done(tmp_path):
    source, first, _ = asyncio.run(read(tmp_path / "s", TOLD))
    (queue,) = first.queues
    assert (queue.name, queue.model, queue.visible, queue.in_flight) == ("batch m", "m", 40, 9)
    assert (queue.dead_letters, queue.drain_s, queue.deferrable) == (2, 60.0, True)
    assert source.gauges()['batch_items_waiting{model="m"}'] == 40
    assert source.gauges()['batches_open{state="in_progress"}'] == 1
    (row,) = join([first], FleetRecords(), (), first.at, 0).queues
    assert row.drain_s == 60.0
    assert row.faults[0] == "2 dead letters"
    assert not any("oldest" in fault for fault in row.faults)  # batch work waits by nature


def test_a_backlog_of_batches_is_no_evidence_of_a_failure(tmp_path):
    _, first, _ = asyncio.run(read(tmp_path / "s", TOLD))
    facts = ReadingDiff(ReadingDiffConfig()).take(first, 0, first.at)
    assert not [fact for fact in facts if type(fact).__name__ == "QueueSeen"]


def test_while_the_batch_process_is_away_the_last_rows_stay_with_the_reason(tmp_path):
    _, _, second = asyncio.run(read(tmp_path / "s", TOLD))
    (part,) = second.parts
    assert "does not answer" in part.error
    assert part.at is not None
    assert len(second.queues) == 1


def test_an_answer_that_is_none_is_an_error_of_its_part(tmp_path):
    for told, status in ((TOLD, "500 X"), ([], "200 OK")):
        _, first, _ = asyncio.run(read(tmp_path / "s", told, status))
        assert first.parts[0].error
    full = {**TOLD, "problem": "disk full"}
    _, first, _ = asyncio.run(read(tmp_path / "s", full))
    assert "disk full" in first.parts[0].error


CONSUMED = {
    **TOLD,
    "models": {},
    "consumers": [
        {
            "queue": "m-requests",
            "model": "m",
            "priority": "interactive",
            "waiting": 40,
            "in_flight": 3,
            "delayed": 0,
            "dead": 1,
            "dead_letter_queue": "m-dead",
            "receives_max": 2,
            "drain_s": 9.0,
            "held": 3,
            "problem": "SQS: denied",
        }
    ],
}


def test_a_consumed_queue_is_a_row_with_its_own_name_and_its_troubles_are_notes(tmp_path):
    source, first, _ = asyncio.run(read(tmp_path / "s", CONSUMED))
    (queue,) = first.queues
    assert (queue.name, queue.model, queue.visible, queue.dead_letters) == (
        "m-requests",
        "m",
        40,
        1,
    )
    assert queue.deferrable is False
    assert source.gauges()['consumed_messages_waiting{queue="m-requests",model="m"}'] == 40
    denied, early = first.notes
    assert denied == "m-requests: SQS: denied"
    assert "after 2 receives; set maxReceiveCount to 3" in early
    # People wait for it: its growth is evidence, as that of a platform's queue is.
    facts = ReadingDiff(ReadingDiffConfig()).take(first, 0, first.at)
    assert [fact.waiting for fact in facts if type(fact).__name__ == "QueueSeen"] == [40]


def test_a_queue_that_its_platform_counts_too_is_one_row(tmp_path):
    _, ours, _ = asyncio.run(read(tmp_path / "s", CONSUMED))
    counted = Queue("m-requests", "m", 41, 3, dead_letters=1, oldest_s=7_200.0)
    aws = Reading("aws", "aws", ours.at, (Part("sqs", ours.at),), queues=(counted,))
    other = Queue("n-requests", "n", 1)
    beside = Reading("other", "aws", ours.at, (Part("sqs", ours.at),), queues=(other,))
    rows = join([aws, ours, beside], FleetRecords(), (), ours.at, 0).queues
    by_name = {row.name: row for row in rows}
    assert len(rows) == 2
    row = by_name["m-requests"]
    assert (row.source, row.visible, row.oldest_s, row.drain_s) == ("aws", 41, 7_200.0, 9.0)


def test_whoever_reads_tells_which_models_are_down(tmp_path):
    heard = []

    async def scenario():
        async def answer(reader, writer):
            heard.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + json.dumps(TOLD).encode())
            writer.close()
            await writer.wait_closed()

        down = {}
        source = BatchSource(tmp_path / "s", lambda: down)
        async with await asyncio.start_unix_server(answer, str(tmp_path / "s")):
            await source.read()
            down["m\u00fc"] = "hung of m"
            await source.read()

    asyncio.run(scenario())
    assert "x-holdfast-held" not in heard[0]
    (line,) = [one for one in heard[1].split("\r\n") if one.startswith("x-holdfast-held: ")]
    assert json.loads(line.partition(": ")[2]) == {"m\u00fc": "hung of m"}
