"""The SQS queue on moto, with its records in the fake: one end for a message that comes twice."""

import asyncio
import json

import boto3
import pytest
import structlog.testing
from moto import mock_aws

from holdfast.queue_port import (
    TERMINAL,
    ItemRefusedError,
    ItemState,
    LeaseAnswer,
    NewItem,
    QueueUnavailableError,
    QueueUnsupportedError,
    Settlement,
)
from holdfast.storage.queues.sqs import SqsQueue
from holdfast.testing.queue import MemoryQueue

OK, FENCED, REPEATED = LeaseAnswer.OK, LeaseAnswer.FENCED, LeaseAnswer.REPEATED


class Stage:
    """A queue of SQS, its records, and a clock of moto that the test moves."""

    def __init__(self, client, monkeypatch):
        self.client = client
        self.url = client.create_queue(QueueName="chat")["QueueUrl"]
        self.records = MemoryQueue()
        self.queue = SqsQueue(client, {"chat": self.url}, self.records)
        self.now_ms = 1_800_000_000_000.0
        monkeypatch.setattr("moto.sqs.models.unix_time_millis", lambda *_: self.now_ms)
        monkeypatch.setattr("moto.sqs.models.unix_time", lambda *_: self.now_ms / 1_000)

    def pass_time(self, seconds):
        self.now_ms += seconds * 1_000

    def counts(self):
        (depth,) = asyncio.run(self.queue.depths("chat"))
        return {state.value: n for state, n in depth.counts.items()}


@pytest.fixture
def stage(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with mock_aws():
        yield Stage(boto3.client("sqs", region_name="us-east-1"), monkeypatch)


def test_a_message_is_sent_leased_and_ended_once(stage):
    async def story():
        queue = stage.queue
        item = NewItem("i", b"\x00\xff binary", group="b1", tenant="acme", max_receives=5)
        texts = [NewItem(f"t{n}", f"täxt {n}".encode()) for n in range(12)]
        assert await queue.enqueue("chat", [item, *texts]) == [True] * 13
        leased = await queue.lease("chat", 100, 30.0)
        assert len(leased) == 13
        assert await queue.lease("chat", 1, 30.0) == []
        by_id = {one.id: one for one in leased}
        mine = by_id["i"]
        assert (mine.payload, mine.group, mine.tenant) == (b"\x00\xff binary", "b1", "acme")
        assert (mine.receives, mine.max_receives) == (1, 5)
        assert by_id["t3"].payload == "täxt 3".encode()
        ends = [Settlement(one.lease, ItemState.DONE, b"r") for one in leased]
        assert await queue.ack(ends) == [OK] * 13
        assert await queue.ack(ends[:1]) == [REPEATED]
        (record,) = await queue.items("chat", states=TERMINAL, group="b1")
        assert (record.result, record.tenant, record.state) == (b"r", "acme", ItemState.DONE)

    asyncio.run(story())
    assert stage.counts() == {"done": 13}


def test_a_message_of_somebody_else_is_an_item_too(stage):
    stage.client.send_message(QueueUrl=stage.url, MessageBody='{"model": "m"}')

    async def story():
        (leased,) = await stage.queue.lease("chat", 1, 30.0)
        assert (leased.payload, leased.max_receives) == (b'{"model": "m"}', 3)
        assert await stage.queue.ack([Settlement(leased.lease)]) == [OK]

    asyncio.run(story())


def test_a_message_delivered_twice_has_one_record(stage):
    async def story():
        queue = stage.queue
        await queue.enqueue("chat", [NewItem("i", b"p")])
        (first,) = await queue.lease("chat", 1, 30.0)
        stage.pass_time(31)
        (second,) = await queue.lease("chat", 1, 30.0)
        assert second.receives == 2
        assert await queue.ack([Settlement(second.lease, result=b"second")]) == [OK]
        assert await queue.ack([Settlement(first.lease, result=b"first")]) == [FENCED]
        assert await queue.extend([first.lease], 30.0) == [FENCED]
        # The producer repeated a send of which it had no answer: the id is known.
        await queue.enqueue("chat", [NewItem("i", b"p")])
        assert await queue.lease("chat", 1, 30.0) == []
        record = await queue.item("chat", "i")
        assert record.result == b"second"

    asyncio.run(story())
    assert stage.counts() == {"done": 1}


def test_a_heartbeat_a_release_and_a_pause(stage):
    async def story():
        queue = stage.queue
        assert not queue.traits.release_keeps_receives
        await queue.enqueue("chat", [NewItem("i", b"p")])
        (leased,) = await queue.lease("chat", 1, 30.0)
        stage.pass_time(20)
        assert await queue.extend([leased.lease], 30.0) == [OK]
        stage.pass_time(20)
        assert await queue.lease("chat", 1, 30.0) == []
        assert await queue.release([leased.lease]) == [OK]
        stage.pass_time(0.001)
        (leased,) = await queue.lease("chat", 1, 30.0)
        assert leased.receives == 2  # SQS counts by itself
        assert await queue.nack([leased.lease], note={"why": "busy"}, delay_s=10.0) == [OK]
        stage.pass_time(9)
        assert await queue.lease("chat", 1, 30.0) == []
        stage.pass_time(2)
        (leased,) = await queue.lease("chat", 1, 30.0)
        assert (leased.receives, leased.story[0]["note"]) == (3, {"why": "busy"})

    asyncio.run(story())


def test_poison_is_a_dead_letter_of_ours_and_can_be_sent_again(stage):
    async def story():
        queue = stage.queue
        await queue.enqueue("chat", [NewItem("i", b"poison"), NewItem("j", b"too")])
        for _ in range(3):
            leased = {one.id: one for one in await queue.lease("chat", 2, 5.0)}
            if "i" in leased:
                await queue.nack([leased["i"].lease], note={"lost_replica": "r1"}, delay_s=0.0)
            stage.pass_time(6)
        assert await queue.lease("chat", 2, 5.0) == []
        dead = {one.id: one for one in await queue.items("chat", states=[ItemState.DEAD])}
        assert set(dead) == {"i", "j"}  # nacked three times, and left lying three times
        assert dead["i"].payload == b"poison"
        assert [told["what"] for told in dead["i"].story] == ["nacked"] * 3
        assert await queue.redrive("chat", ["i"]) == 1
        (again,) = await queue.lease("chat", 2, 30.0)
        assert (again.id, again.payload, again.receives) == ("i", b"poison", 1)
        assert await queue.ack([Settlement(again.lease)]) == [OK]
        assert await queue.purge("chat", states=[ItemState.DEAD]) == 1

    asyncio.run(story())
    assert stage.counts() == {"done": 1}


def test_a_redrive_that_was_cut_short_loses_nothing(stage):
    """The record is open and the message sent: the item ends all the same."""

    async def story():
        queue = stage.queue
        await queue.enqueue("chat", [NewItem("i", b"p", max_receives=1)])
        (leased,) = await queue.lease("chat", 1, 30.0)
        await queue.nack([leased.lease])
        await stage.records.redrive("chat")  # and the process is gone
        assert await queue.redrive("chat") == 1
        await stage.records.settle("chat", [])
        (again,) = await queue.lease("chat", 1, 30.0)
        assert await queue.ack([Settlement(again.lease)]) == [OK]

    asyncio.run(story())


def test_an_early_redrive_policy_is_told_once(stage):
    dead = stage.client.create_queue(QueueName="dead")["QueueUrl"]
    arn = stage.client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])
    policy = {"deadLetterTargetArn": arn["Attributes"]["QueueArn"], "maxReceiveCount": 2}
    attributes = {"RedrivePolicy": json.dumps(policy)}
    stage.client.set_queue_attributes(QueueUrl=stage.url, Attributes=attributes)
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            asyncio.run(stage.queue.lease("chat", 1, 30.0))
    assert [line["max_receive_count"] for line in logs if line["log_level"] == "warning"] == [2]


def test_what_sqs_cannot_do_is_told(stage):
    async def story():
        queue = stage.queue
        for call, told in (
            (queue.items("chat"), "cannot be looked at without receiving"),
            (queue.cancel("chat", "g"), "cannot be found in the SQS queue chat"),
            (queue.purge("chat", states=[ItemState.READY]), "all together only"),
            (queue.enqueue("other", [NewItem("i", b"")]), "no SQS queue is named 'other'; known"),
            (queue.enqueue("chat", [NewItem("i", b"", delay_s=901.0)]), "use at most 900"),
        ):
            with pytest.raises(QueueUnsupportedError, match=told):
                await call
        with pytest.raises(ItemRefusedError, match=r"items\[0\]\.payload has 190001 bytes"):
            await queue.enqueue("chat", [NewItem("i", bytes(190_001))])
        with pytest.raises(ItemRefusedError, match="visibility_s is 50000"):
            await queue.lease("chat", 1, 50_000.0)
        assert await queue.reclaim("owner") == 0
        stage.client.delete_queue(QueueUrl=stage.url)
        with pytest.raises(QueueUnavailableError, match="SQS: "):
            await queue.enqueue("chat", [NewItem("i", b"")])

    asyncio.run(story())
