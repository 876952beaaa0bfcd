"""A queue that others fill, worked off: SQS on moto, real records, and a small HTTP gateway."""

import asyncio
import json
from time import monotonic_ns
from types import SimpleNamespace

import boto3
import pytest
import structlog.testing
from moto import mock_aws

from holdfast.batch.consumers import consumer as consumer_module
from holdfast.batch.consumers.consumer import Consumer
from holdfast.batch.consumers.consumer_group import ConsumerGroup
from holdfast.batch.consumers.ended_messages import EndedMessages, story_of
from holdfast.batch.items import LongResults
from holdfast.batch.load_reports import LoadReports
from holdfast.config.batch.consumers import ConsumerSection
from holdfast.core.batch.spare_capacity import SpareCapacityConfig
from holdfast.core.batch.verdicts import ItemPolicyConfig
from holdfast.core.types import SECOND
from holdfast.frames.batch_load import LoadDatagram, LoadRow
from holdfast.queue_port import EndedItem, ItemState
from holdfast.storage.message_queues.object_outboxes import FolderOutbox, S3Outbox
from holdfast.storage.message_queues.sqs_boxes import SqsInbox, SqsOutbox


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    # Without a wait: moto would sleep in a thread that the test has to wait for.
    # An answer of moto that got lost between its threads comes again, as one of SQS would.
    times = (("VISIBILITY_S", 20.0), ("HEARTBEAT_S", 2.0), ("TEND_S", 0.05), ("AGAIN_S", 0.05))
    for name, value in (("WAIT_S", 0.0), ("DRAIN_S", 0.2), *times):
        monkeypatch.setattr(consumer_module, name, value)
    with mock_aws():
        yield


class Account:
    """One account of AWS: a queue of requests with dead letters, a reply queue, a bucket."""

    def __init__(self, receives=3):
        self.sqs = boto3.client("sqs", region_name="us-east-1")
        self.s3 = boto3.client("s3", region_name="us-east-1")
        self.s3.create_bucket(Bucket="answers")
        self.dead = self.sqs.create_queue(QueueName="m-dead")["QueueUrl"]
        arn = "arn:aws:sqs:us-east-1:123456789012:m-dead"
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": receives})
        made = self.sqs.create_queue(QueueName="m-requests", Attributes={"RedrivePolicy": policy})
        self.requests = made["QueueUrl"]
        self.replies = self.sqs.create_queue(QueueName="m-replies")["QueueUrl"]

    def send(self, prompt, **envelope):
        body = {"messages": [{"role": "user", "content": prompt}]}
        told = {**envelope, "body": body} if envelope else body
        self.sqs.send_message(QueueUrl=self.requests, MessageBody=json.dumps(told))

    def count(self, url):
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        told = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return sum(int(value) for value in told.values())

    def replied(self):
        found = []
        while messages := self.sqs.receive_message(
            QueueUrl=self.replies, MaxNumberOfMessages=10, MessageAttributeNames=["All"]
        ).get("Messages"):
            for message in messages:
                found.append(json.loads(message["Body"]))
                handle = message["ReceiptHandle"]
                self.sqs.delete_message(QueueUrl=self.replies, ReceiptHandle=handle)
        return found


class Works:
    """A consumer beside a batch runner, as the batch process has it."""

    def __init__(self, here, account, folder, outbox=None, **section):
        told = {
            "model": "m",
            "from": {"kind": "sqs", "queue": "m-requests"},
            "reply": {"kind": "sqs", "queue": "m-replies"},
            **section,
        }
        self.here = here
        made = ConsumerSection.model_validate(told)
        outbox = outbox or SqsOutbox(account.sqs, "m-replies")
        self.records = EndedMessages("m", here.queue, LongResults(folder / "replies"))
        self.consumer = Consumer(
            made,
            SqsInbox(account.sqs, "m-requests"),
            outbox,
            self.records,
            here.gateway,
            ItemPolicyConfig(pause_s=0.01, pause_max_s=0.02),
        )
        pace = SpareCapacityConfig(young_s=60.0)
        self.group = ConsumerGroup([self.consumer], here.loads, here.runner, pace, monotonic_ns)

    async def __aenter__(self):
        self._tasks = [asyncio.create_task(self.group.run()), asyncio.create_task(self._report())]
        return self

    async def _report(self):
        while True:
            running = self.consumer.gate.inside + len(self.here.runner._running)
            rows = [LoadRow("m", self.here.waiting, running, 20, None, ready=self.here.ready)]
            self.here.loads.take(LoadDatagram("gateway-0", rows))
            await asyncio.sleep(0.02)

    async def __aexit__(self, *_):
        self.group.stop()
        await self._tasks[0]
        self._tasks[1].cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
def consume(stage, tmp_path):
    """Runs a scenario with a gateway, an account and a maker of consumers in one folder."""

    def run(scenario, **account):
        async def main(gateway, make):
            aws = Account(**account)
            async with make() as here:
                here.ready = True

                def works(**more):
                    return Works(here, aws, tmp_path, **more)

                await scenario(gateway, here, aws, works)

        stage(main)

    return run


def test_requests_are_answered_and_ended_once(consume, until):
    async def scenario(gateway, here, aws, works):
        for number in range(25):
            aws.send(f"p{number}", id=f"i{number}", custom_id=f"c{number}")
        aws.send("alone")
        async with works() as work:
            await until(lambda: not aws.count(aws.requests))
            row = (await work.group.backlog())[0]
        replies = aws.replied()
        assert len(replies) == 26
        by_id = {reply["id"]: reply for reply in replies}
        assert by_id["i7"]["response"]["body"] == {"echo": "p7"}
        assert by_id["i7"]["custom_id"] == "c7"
        assert all(reply["response"]["status_code"] == 200 for reply in replies)
        assert max(gateway.asked.values()) == 1
        (depth,) = await here.queue.depths("consume/m")
        assert depth.counts == {ItemState.DONE: 26}
        assert (row["queue"], row["model"], row["dead"]) == ("m-requests", "m", 0)
        assert (row["dead_letter_queue"], row["receives_max"]) == ("m-dead", 3)

    consume(scenario)


def test_an_id_that_has_ended_is_answered_from_its_record(consume, until):
    async def scenario(gateway, here, aws, works):
        aws.send("p", id="i")
        async with works():
            await until(lambda: not aws.count(aws.requests))
            aws.send("p", id="i")  # its producer had no answer to its first call
            await until(lambda: aws.count(aws.replies) == 2)
            await until(lambda: not aws.count(aws.requests))
        first, second = aws.replied()
        assert first == second
        assert gateway.asked["p"] == 1

    consume(scenario)


def test_another_request_with_the_id_of_an_ended_one_gets_an_error_and_no_answer(consume, until):
    async def scenario(gateway, here, aws, works):
        aws.send("the first sender's secret", id="i", custom_id="first")
        async with works():
            await until(lambda: not aws.count(aws.requests))
            aws.send("what is known of i?", id="i", custom_id="second")
            await until(lambda: aws.count(aws.replies) == 2)
            await until(lambda: not aws.count(aws.requests))
            aws.send("the first sender's secret", id="i", custom_id="first")
            await until(lambda: aws.count(aws.replies) == 3)
            await until(lambda: not aws.count(aws.requests))
        replies = aws.replied()
        (error,) = (one for one in replies if one["error"] is not None)
        assert (error["id"], error["custom_id"], error["response"]) == ("i", "second", None)
        assert error["error"]["code"] == "id_reused"
        assert "secret" not in json.dumps(error)
        assert [one["custom_id"] for one in replies if one is not error] == ["first", "first"]
        assert gateway.asked == {"the first sender's secret": 1}

    consume(scenario)


def test_a_record_without_a_fingerprint_answers_its_id_as_before(consume, until):
    async def scenario(gateway, here, aws, works):
        kept = b'{"id":"i","custom_id":null,"response":null,"error":{"code":"kept"}}'
        await here.queue.settle("consume/m", [EndedItem("i", ItemState.DONE, kept)])
        aws.send("p", id="i")
        async with works():
            await until(lambda: aws.count(aws.replies) == 1)
        (reply,) = aws.replied()
        assert reply["error"] == {"code": "kept"}
        assert not gateway.asked

    consume(scenario)


def test_who_takes_an_id_while_another_consumer_ends_it_gets_no_answer_either(consume, until):
    async def scenario(gateway, here, aws, works):
        async with works() as work:
            gateway.hold = asyncio.Event()
            aws.send("slow", id="i")
            await until(lambda: gateway.now == 1)
            other = EndedItem("i", ItemState.DONE, b'{"secret":1}', story=story_of("other", []))
            await here.queue.settle(work.records.queue, [other])
            gateway.hold.set()
            await until(lambda: aws.count(aws.replies) == 1)
        (reply,) = aws.replied()
        assert reply["error"]["code"] == "id_reused"

    consume(scenario)


def test_the_answer_of_the_first_is_not_replaced_in_a_folder(consume, until, tmp_path):
    folder = tmp_path / "out"

    async def scenario(gateway, here, aws, works):
        aws.send("first", id="i")
        async with works(outbox=FolderOutbox(folder)):
            await until(lambda: not aws.count(aws.requests))
            aws.send("second", id="i")
            await until(lambda: len(list(folder.glob("*.json"))) == 2)
            await until(lambda: not aws.count(aws.requests))
        answer = json.loads((folder / "i.json").read_bytes())
        assert answer["response"]["body"] == {"echo": "first"}
        (other,) = set(folder.glob("*.json")) - {folder / "i.json"}
        assert json.loads(other.read_bytes())["error"]["code"] == "id_reused"

    consume(scenario)


def test_a_dead_letter_is_not_another_requests_to_revive(consume, until):
    async def scenario(gateway, here, aws, works):
        gateway.answers["bad"] = (502, "replicas_lost")
        aws.send("bad", id="i")
        async with works():
            await until(lambda: aws.count(aws.replies) == 1 and not aws.count(aws.requests))
            aws.send("good", id="i")
            await until(lambda: aws.count(aws.replies) == 2)
        codes = {reply["error"]["code"] for reply in aws.replied()}
        assert codes == {"dead_letter", "id_reused"}
        assert gateway.asked == {"bad": 1}

    consume(scenario)


def test_what_was_recorded_and_not_replied_to_is_replied_to_by_the_next_life(consume, until):
    async def scenario(gateway, here, aws, works):
        aws.send("p", id="i")

        replying = asyncio.Event()

        class Silent(SqsOutbox):
            async def put(self, item_id, answer):
                replying.set()
                await asyncio.Event().wait()  # ended between the record and the reply

        async with works(outbox=Silent(aws.sqs, "m-replies")):
            await replying.wait()
        record = await here.queue.item("consume/m", "i")
        assert record.state is ItemState.DONE
        async with works():
            await until(lambda: not aws.count(aws.requests))
        (reply,) = aws.replied()
        assert reply["response"]["body"] == {"echo": "p"}
        assert gateway.asked["p"] == 1

    consume(scenario)


def test_a_poison_message_is_sent_once_and_lies_with_the_dead_letters(consume, until):
    async def scenario(gateway, here, aws, works):
        gateway.answers["bad"] = (502, "replicas_lost")
        gateway.answers["ill"] = (502, "upstream_failed")
        aws.send("bad", id="bad")
        aws.send("ill", id="ill")
        aws.send("good", id="good")
        async with works() as work:
            await until(lambda: not aws.count(aws.requests))
            assert (gateway.asked["bad"], gateway.asked["ill"]) == (1, 3)
            assert aws.count(aws.dead) == 2  # where this fleet's people look for them
            dead = await here.queue.items("consume/m", states=[ItemState.DEAD])
            notes = {item.id: item.story[-1]["note"]["code"] for item in dead}
            assert notes == {"bad": "replicas_lost", "ill": "upstream_failed"}
            replies = {reply["id"]: reply for reply in aws.replied()}
            assert replies["bad"]["error"]["code"] == "dead_letter"
            assert replies["good"]["response"]["status_code"] == 200
            assert (await work.group.backlog())[0]["dead"] == 2
            # Mended, and sent again with `holdfast queue redrive`.
            gateway.answers.clear()
            assert await here.queue.redrive("consume/m", ["ill"]) == 1
            await until(lambda: gateway.asked["ill"] == 4)
            await until(lambda: aws.count(aws.replies) == 1)
        (again,) = aws.replied()
        assert (again["id"], again["response"]["status_code"]) == ("ill", 200)

    consume(scenario)


def test_messages_that_were_lost_with_a_poison_one_are_answered(consume, until):
    async def scenario(gateway, here, aws, works):
        gateway.deadly = "bad"
        aws.send("bad", id="bad")
        for number in range(4):
            aws.send(f"p{number}", id=f"i{number}")
        async with works() as work:
            await until(lambda: not aws.count(aws.requests))
            turns = work.consumer.suspect_turns
            assert turns is here.runner.suspect_turns["m"], "batches of the model wait as well"
            await until(lambda: (turns.running, turns.waiting) == (0, 0))
        assert gateway.lost[0] > {"bad"}
        assert gateway.lost[1:] == [{"bad"}]
        replies = {reply["id"]: reply for reply in aws.replied()}
        assert replies.pop("bad")["error"]["code"] == "dead_letter"
        assert {reply["response"]["status_code"] for reply in replies.values()} == {200}
        assert len(replies) == 4
        (dead,) = await here.queue.items("consume/m", states=[ItemState.DEAD])
        codes = [entry["note"]["code"] for entry in dead.story if "note" in entry]
        assert codes == ["replica_lost"] * 2

    consume(scenario)


def test_a_dead_letter_that_sqs_sends_again_is_tried_again(consume, until):
    async def scenario(gateway, here, aws, works):
        gateway.answers["bad"] = (502, "replicas_lost")
        aws.send("bad", id="bad")
        async with works():
            await until(lambda: aws.count(aws.dead) == 1 and not aws.count(aws.requests))
            gateway.answers.clear()
            (message,) = aws.sqs.receive_message(QueueUrl=aws.dead)["Messages"]
            aws.sqs.send_message(QueueUrl=aws.requests, MessageBody=message["Body"])
            await until(lambda: gateway.asked["bad"] == 2)
            await until(lambda: not aws.count(aws.requests))
        record = await here.queue.item("consume/m", "bad")
        assert record.state is ItemState.DONE

    consume(scenario)


def test_nothing_is_received_while_the_model_is_down_and_no_receive_is_counted(consume, until):
    async def scenario(gateway, here, aws, works):
        here.ready = False
        async with works() as work:
            pace = work.group._reasons
            await until(lambda: pace.get(("m", False)) == "no replica is ready")
            aws.send("p", id="i")
            here.ready = True
            work.group.hold({"m": "undersized of m"})
            await until(lambda: pace.get(("m", False)) == "incident: undersized of m")
            await asyncio.sleep(0.3)
            assert work.group.cap("m") == 0  # nor are batches fed
            assert not gateway.asked
            work.group.hold({})
            await until(lambda: not aws.count(aws.requests))
        record = await here.queue.item("consume/m", "i")
        assert record.receives == 1

    consume(scenario)


def test_a_message_waits_here_while_there_is_no_room_and_is_received_once(consume, until):
    async def scenario(gateway, here, aws, works):
        gateway.answers["p"] = (503, "no_ready_replica")
        aws.send("p", id="i")
        async with works():
            await until(lambda: gateway.asked["p"] >= 2)
            gateway.answers.clear()
            await until(lambda: not aws.count(aws.requests))
        record = await here.queue.item("consume/m", "i")
        assert (record.state, record.receives) == (ItemState.DONE, 1)

    consume(scenario)


def test_what_is_not_done_at_a_stop_goes_back_and_is_done_by_the_next(consume, until):
    async def scenario(gateway, here, aws, works):
        gateway.stand_still()
        for number in range(3):
            aws.send(f"p{number}", id=f"i{number}")
        async with works() as work:
            await until(lambda: work.consumer.gate.inside == 3)
        names = ["ApproximateNumberOfMessages"]
        told = aws.sqs.get_queue_attributes(QueueUrl=aws.requests, AttributeNames=names)
        assert told["Attributes"][names[0]] == "3"  # at once, not after their visibility
        gateway.hold.set()
        gateway.hold = None
        async with works():
            await until(lambda: not aws.count(aws.requests))
        assert len(aws.replied()) == 3

    consume(scenario)


def test_people_who_wait_take_young_messages_back_without_a_receive(consume, until):
    async def scenario(gateway, here, aws, works):
        gateway.stand_still()
        for number in range(4):
            aws.send(f"p{number}", id=f"i{number}")
        async with works() as work:
            await until(lambda: work.consumer.gate.inside == 4)
            here.waiting = 4
            await until(lambda: work.consumer.gate.inside == 0)
            assert len(work.consumer.held) == 4
            here.waiting = 0
            gateway.hold.set()
            gateway.hold = None
            await until(lambda: not aws.count(aws.requests))
        records = await here.queue.items("consume/m")
        assert [record.receives for record in records] == [1] * 4

    consume(scenario)


def test_a_batch_and_a_queue_share_what_is_spare(consume, until, make_line):
    async def scenario(gateway, here, aws, works):
        gateway.stand_still()
        here.ready = False
        for number in range(30):
            aws.send(f"p{number}")
        async with works() as work:
            here.working = [
                asyncio.create_task(here.runner.run()),
                asyncio.create_task(asyncio.sleep(0)),
            ]
            await here.create(b"".join(make_line(n) for n in range(100, 160)))
            await until(lambda: "m" in here.runner.feeds)
            here.ready = True
            both = lambda: (len(here.runner._running), work.consumer.gate.inside)  # noqa: E731
            await until(lambda: sum(both()) >= 16 and min(both()) >= 6)
            gateway.hold.set()
            gateway.hold = None
            await until(lambda: not aws.count(aws.requests))

    consume(scenario)


def test_replies_may_go_to_a_bucket_or_a_folder(consume, until, tmp_path):
    async def scenario(gateway, here, aws, works):
        aws.send("p", id="a/../b")
        async with works(outbox=S3Outbox(aws.s3, "answers", "m/")):
            await until(lambda: not aws.count(aws.requests))
        told = aws.s3.get_object(Bucket="answers", Key="m/a%2F..%2Fb.json")["Body"].read()
        assert json.loads(told)["id"] == "a/../b"
        folder = tmp_path / "out"
        aws.send("q", id="x" * 256)
        async with works(outbox=FolderOutbox(folder)):
            await until(lambda: not aws.count(aws.requests))
        (path,) = folder.iterdir()
        assert json.loads(path.read_bytes())["id"] == "x" * 256
        assert path.stat().st_mode & 0o777 == 0o600

    consume(scenario)


def test_what_is_no_request_is_refused_with_a_reply(consume, until):
    async def scenario(gateway, here, aws, works):
        aws.sqs.send_message(QueueUrl=aws.requests, MessageBody="hello")
        aws.send("p", id="i", url="/etc/passwd")
        async with works():
            await until(lambda: not aws.count(aws.requests))
        codes = {reply["error"]["code"] for reply in aws.replied()}
        assert codes == {"invalid_json", "invalid_url"}
        assert not gateway.asked

    consume(scenario)


def test_a_redrive_policy_that_gives_up_early_is_warned_of(consume, until):
    async def scenario(gateway, here, aws, works):
        with structlog.testing.capture_logs() as logs:
            async with works() as work:
                await until(lambda: work.consumer.empty)
        (told,) = [entry for entry in logs if "redrive policy" in entry["event"]]
        assert told["max_receive_count"] == 2

    consume(scenario, receives=2)


def test_a_queue_that_is_missing_is_a_problem_that_is_shown(consume, until):
    async def scenario(gateway, here, aws, works):
        aws.sqs.delete_queue(QueueUrl=aws.requests)
        async with works() as work:
            await until(lambda: work.consumer.problem)
            assert "SQS" in (await work.group.backlog())[0]["problem"]

    consume(scenario)


def test_a_virtual_model_is_down_when_all_its_targets_are():
    now = [0]
    loads = LoadReports()
    loads.leads_to = {"auto": ("a", "b")}
    runner = SimpleNamespace(cap=None, feeds={})
    group = ConsumerGroup([], loads, runner, SpareCapacityConfig(), lambda: now[0])
    group.hold({"a": "hung of a"})
    assert (group.down("auto"), runner.cap("auto"), runner.cap("a")) == ("", None, 0)
    group.hold({"a": "hung of a", "b": "hung of b"})
    assert group.down("auto") == "incident: hung of a"
    now[0] = 60 * SECOND  # control is gone: nobody knows any more that it is down
    assert group.down("auto") == ""


def test_old_records_are_forgotten_with_their_long_replies(consume, until, tmp_path):
    async def scenario(gateway, here, aws, works):
        long = "x" * 150_000
        aws.send(long, id="long")
        async with works() as work:
            await until(lambda: not aws.count(aws.requests))
            assert await here.queue.item("consume/m", "long") is not None
            work.records._wall = lambda: 1e12
            assert await work.records.forget_old(60.0) <= 1  # the consumer may have been quicker
            assert await here.queue.item("consume/m", "long") is None
        assert not list((tmp_path / "replies").iterdir())

    consume(scenario)
