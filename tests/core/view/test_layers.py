from dataclasses import fields

from holdfast.core.view.layers import (
    DesiredReplicas,
    Disk,
    Group,
    Host,
    Part,
    Placed,
    Queue,
    Reading,
)


def test_what_nobody_said_is_unknown_and_not_zero():
    for row in (Host("h"), Queue("q", "m"), Disk("d"), DesiredReplicas("m"), Group("g")):
        told = {one.name: getattr(row, one.name) for one in fields(row)}
        numbers = [value for value in told.values() if not isinstance(value, str | tuple | bool)]
        assert set(numbers) <= {None}


def test_a_reading_without_rows_is_a_reading():
    reading = Reading("aws", "aws", 1.0, (Part("ecs"),))
    assert (reading.hosts, reading.placed, reading.queues, reading.notes) == ((), (), (), ())
    assert reading.parts[0].at is None
    assert Placed("t", "m", "running").oom is False
