import pytest

from holdfast.core.view.layers import Part, Reading
from holdfast.core.view.staleness import (
    DISKS,
    HOSTS,
    LOGS,
    MEMORY,
    PLACED,
    QUEUES,
    Freshness,
    feeds,
)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("sqs", (QUEUES,)),
        ("ecs tasks", (PLACED,)),
        ("container-insights", (MEMORY,)),
        ("Pods", (PLACED,)),
        ("cloudwatch", (DISKS, MEMORY)),
        ("weather", ()),
    ],
)
def test_the_name_of_a_part_tells_what_it_feeds(name, rows):
    assert feeds(Part(name)) == rows


def test_a_part_may_say_itself_what_it_feeds():
    assert feeds(Part("sqs", feeds=(LOGS,))) == (LOGS,)


def read(*parts):
    return Freshness(Reading("s", "aws", 100.0, parts))


def test_rows_are_as_old_as_the_oldest_that_feeds_them():
    fresh = read(Part("ec2", 90.0), Part("ecs hosts", 80.0), Part("logs", 99.0))
    assert fresh.read_at(HOSTS) == 80.0
    assert fresh.read_at(HOSTS, LOGS) == 80.0
    assert fresh.read_at(QUEUES) == 100.0  # nobody says otherwise


def test_what_was_never_read_has_no_age_and_is_not_fresh():
    fresh = read(Part("ec2", 90.0), Part("ecs hosts", None))
    assert fresh.read_at(HOSTS) is None
    assert fresh.read_at(HOSTS, QUEUES) is None
    assert not fresh.fresh(HOSTS)
    assert fresh.fresh(QUEUES)


def test_errors_are_told_once_with_who_had_them():
    fresh = read(Part("cloudwatch", 1.0, "denied"), Part("efs", 2.0, "throttled"))
    assert fresh.errors(DISKS, MEMORY) == ("cloudwatch: denied", "efs: throttled")
    assert fresh.errors(QUEUES) == ()
    assert not fresh.fresh(MEMORY)
