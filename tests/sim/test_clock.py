import pytest

from holdfast.sim.clock import CONTROL, TRAFFIC, WORLD, Clock


def test_things_happen_in_the_order_of_their_time() -> None:
    clock, told = Clock(), []
    for time in (30, 10, 20):
        clock.at(time, WORLD, lambda what, now: told.append((what, now)), f"at {time}")
    clock.run(100)
    assert told == [("at 10", 10), ("at 20", 20), ("at 30", 30)]


def test_at_one_instant_the_world_goes_first_and_control_last() -> None:
    clock, told = Clock(), []
    for priority in (CONTROL, WORLD, TRAFFIC):
        clock.at(5, priority, lambda what, _now: told.append(what), priority)
    clock.run(5)
    assert told == [WORLD, TRAFFIC, CONTROL]


def test_ties_are_settled_by_who_was_scheduled_first() -> None:
    clock, told = Clock(), []
    for name in "abcde":
        clock.at(5, TRAFFIC, lambda what, _now: told.append(what), name)
    clock.run(5)
    assert told == ["a", "b", "c", "d", "e"]


def test_a_handler_may_schedule_more_even_at_the_same_instant() -> None:
    clock, told = Clock(), []

    def again(count: int, now: int) -> None:
        told.append((count, now))
        if count:
            clock.at(now, WORLD, again, count - 1)

    clock.at(7, CONTROL, again, 2)
    clock.at(7, CONTROL, lambda _, now: told.append(("later", now)))
    clock.run(7)
    assert told == [(2, 7), (1, 7), (0, 7), ("later", 7)]


def test_running_includes_the_last_instant_and_nothing_after_it() -> None:
    clock, told = Clock(), []
    clock.at(10, WORLD, lambda _, now: told.append(now))
    clock.at(11, WORLD, lambda _, now: told.append(now))
    clock.run(10)
    assert told == [10]
    assert (clock.now, len(clock), clock.steps) == (10, 1, 1)
    clock.run(20)
    assert told == [10, 11]
    assert (clock.now, len(clock), clock.steps) == (20, 0, 2)


def test_time_never_runs_backward() -> None:
    clock = Clock()
    clock.run(10)
    clock.run(5)
    assert clock.now == 10


def test_now_is_the_time_of_what_happens() -> None:
    clock, told = Clock(), []
    clock.at(3, WORLD, lambda _, now: told.append(clock.now == now))
    clock.run(9)
    assert told == [True]


def test_somebody_may_look_after_every_event() -> None:
    clock, looks = Clock(), []
    clock.after_event = looks.append
    for time in (1, 1, 2):
        clock.at(time, WORLD, lambda _, _now: None)
    clock.run(9)
    assert looks == [1, 1, 2]


def test_a_failing_handler_stops_the_run_where_it_is() -> None:
    clock = Clock()

    def fail(_: object, _now: int) -> None:
        raise RuntimeError("as planned")

    clock.at(4, WORLD, fail)
    with pytest.raises(RuntimeError, match="as planned"):
        clock.run(9)
    assert clock.now == 4
