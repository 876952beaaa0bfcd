"""The backlog of batches as rows of the view, also while the batch process is away."""

import asyncio
import json

from holdfast.core.view.fleet_records import FleetRecords
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
