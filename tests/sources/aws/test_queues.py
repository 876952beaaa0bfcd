import json

import pytest
from aws_caller import Clock, FakeCaller, denied, missing, unreachable

from holdfast.sources.aws.config import AwsConfig
from holdfast.sources.aws.errors import CallError
from holdfast.sources.aws.queues import Queues

BASE = "https://sqs.eu-west-2.amazonaws.com/123456789012"
OURS = "arn:aws:sqs:eu-west-2:123456789012"


class Account:
    """Queues by name: (visible, in flight, delayed, arn of the dead letters)."""

    def __init__(self, queues, tags=None):
        self.queues = queues
        self.tags = tags or {}
        self.listed = None  # all of them
        self.refuse = {}  # by queue: what is raised instead

    def caller(self):
        return FakeCaller(
            list_queues=self.list_queues,
            get_queue_attributes=self.attributes,
            list_queue_tags=self.tags_of,
        )

    def list_queues(self, QueueNamePrefix=""):  # noqa: N803 - as boto3 names it
        names = self.listed if self.listed is not None else self.queues
        return {"QueueUrls": [f"{BASE}/{n}" for n in names if n.startswith(QueueNamePrefix)]}

    def attributes(self, QueueUrl, AttributeNames):  # noqa: N803
        name = QueueUrl.rpartition("/")[2]
        if name in self.refuse:
            self.refuse[name]()
        visible, in_flight, delayed, dead = self.queues[name]
        told = {
            "ApproximateNumberOfMessages": str(visible),
            "ApproximateNumberOfMessagesNotVisible": str(in_flight),
            "ApproximateNumberOfMessagesDelayed": str(delayed),
        }
        if dead:
            told["RedrivePolicy"] = json.dumps({"deadLetterTargetArn": dead})
        return {"Attributes": told}

    def tags_of(self, QueueUrl):  # noqa: N803
        name = QueueUrl.rpartition("/")[2]
        return {"Tags": {"model": self.tags[name]}} if name in self.tags else {}


def reader(clock=None, **settings):
    return Queues(AwsConfig(**settings), clock or Clock())


def test_one_queue_of_dead_letters_may_serve_several_and_have_any_name():
    account = Account(
        {
            "a-requests": (5, 1, 0, f"{OURS}:graveyard"),
            "b-queue": (0, 0, 2, f"{OURS}:graveyard"),
            "graveyard": (3, 1, 0, ""),
        }
    )
    table = reader().read(account.caller())
    assert table.models == {"a-requests": "a", "b-queue": "b"}
    assert table.counted["a-requests"].dead_letter_queue == "graveyard"
    assert table.counted["b-queue"].delayed == 2
    assert table.depth("graveyard") == 4  # somebody looks at one of them just now


def test_dead_letters_outside_the_prefix_are_found_through_the_policy():
    account = Account(
        {"llm-requests": (1, 0, 0, f"{OURS}:shared-dead"), "shared-dead": (7, 0, 0, "")}
    )
    caller = account.caller()
    table = reader(queue_prefix="llm-").read(caller)
    assert table.depth("shared-dead") == 7
    assert table.models == {"llm-requests": "llm"}
    assert caller.count("list_queues") == 1


def test_dead_letters_of_another_account_are_noted_and_unknown():
    account = Account({"x": (1, 0, 0, "arn:aws:sqs:eu-west-2:999999999999:theirs")})
    caller = account.caller()
    table = reader().read(caller)
    assert table.depth("theirs") is None
    assert caller.notes == ["sqs: dead letters of x lie in another account"]


def test_a_tag_names_the_model_and_is_read_once():
    account = Account({"q1": (0, 0, 0, ""), "q2.fifo": (0, 0, 0, "")}, {"q1": "llama"})
    clock = Clock()
    queues = reader(clock)
    assert queues.read(account.caller()).models == {"q1": "llama", "q2.fifo": "q2"}
    caller = account.caller()
    clock.now += 15
    queues.read(caller)
    assert caller.count("list_queue_tags") == 0
    assert caller.count("list_queues") == 0


def test_old_tags_are_read_again_one_in_each_refresh():
    account = Account({f"q{n}": (0, 0, 0, "") for n in range(5)})
    clock = Clock()
    queues = reader(clock)
    queues.read(account.caller())
    clock.now += 3_601
    account.tags = dict.fromkeys(account.queues, "new")
    caller = account.caller()
    models = queues.read(caller).models
    assert caller.count("list_queue_tags") == 1
    assert list(models.values()).count("new") == 1


def test_named_queues_are_the_only_ones_and_a_missing_one_is_noted():
    account = Account({"llm-a": (1, 0, 0, ""), "llm-b": (2, 0, 0, ""), "other": (3, 0, 0, "")})
    caller = account.caller()
    table = reader(queue_names=("llm-a", "llm-x")).read(caller)
    assert set(table.counted) == {"llm-a"}
    assert caller.asked[0] == ("list_queues", {"QueueNamePrefix": "llm-"})
    assert caller.notes == ["sqs: there is no queue llm-x"]


def test_a_queue_that_was_deleted_is_left_out_and_the_list_is_read_anew():
    account = Account({"a": (1, 0, 0, ""), "b": (2, 0, 0, "")})
    queues = reader()
    account.refuse = {"b": missing}
    assert set(queues.read(account.caller()).counted) == {"a"}
    caller = account.caller()
    queues.read(caller)
    assert caller.count("list_queues") == 1


def test_a_queue_that_may_not_be_counted_is_shown_without_counts():
    account = Account({"a": (1, 0, 0, ""), "b": (2, 0, 0, "")})
    account.refuse = {"b": denied}
    caller = account.caller()
    table = reader().read(caller)
    assert (table.counted["a"].visible, table.counted["b"].visible) == (1, None)
    assert caller.notes == ["sqs: b: fake:Do is not allowed"]


@pytest.mark.parametrize("refusals", [{"a": denied, "b": denied}, {"a": unreachable}])
def test_the_part_fails_where_none_may_be_counted_or_nobody_answers(refusals):
    account = Account({"a": (1, 0, 0, ""), "b": (2, 0, 0, "")})
    account.refuse = refusals
    with pytest.raises(CallError):
        reader().read(account.caller())


def test_tags_that_may_not_be_read_leave_the_names():
    account = Account({"a-requests": (1, 0, 0, "")})
    caller = account.caller()
    caller.answers["list_queue_tags"] = denied
    assert reader().read(caller).models == {"a-requests": "a"}
    assert "is taken from its name" in caller.notes[0]
    caller.answers["list_queue_tags"] = unreachable
    with pytest.raises(CallError):
        reader().read(caller)


def test_beyond_so_many_queues_metrics_have_to_count_and_policies_are_read_in_turns():
    queues = {f"q{n:03d}": (n, 0, 0, f"{OURS}:dead") for n in range(10)} | {"dead": (1, 0, 0, "")}
    account = Account(queues)
    clock = Clock()
    many = reader(clock, queue_metrics_above=5, queue_details_each=4)
    for refresh in range(3):
        clock.now += 15
        caller = account.caller()
        table = many.read(caller)
        assert caller.count("get_queue_attributes") == 4, refresh
        assert caller.count("list_queue_tags") <= 4
    assert table.by_metrics
    assert {one.visible for one in table.counted.values()} == {None}
    assert {table.counted[name].dead_letter_queue for name in table.models} == {"dead"}
    assert len(table.models) == 10


def test_a_policy_that_is_no_json_is_no_policy():
    account = Account({"a": (1, 0, 0, "")})
    caller = account.caller()
    caller.answers["get_queue_attributes"] = lambda **_: {"Attributes": {"RedrivePolicy": "{"}}
    table = reader().read(caller)
    assert table.counted["a"].dead_letter_queue == ""
    assert table.counted["a"].visible is None
