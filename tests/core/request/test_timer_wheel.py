from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.request.timer_wheel import TimerWheel
from holdfast.core.types import MILLISECOND, SECOND
from sampling import examples

TICK = 10 * MILLISECOND


class Timer:
    """The smallest thing a wheel can hold."""

    def __init__(self, due: int) -> None:
        self.due = due
        self.filed = 0


def filed(wheel: TimerWheel[Timer], due: int) -> Timer:
    timer = Timer(due)
    wheel.file(timer)
    return timer


# --- one timer -----------------------------------------------------------------------------------


def test_a_timer_is_returned_once_its_time_has_come_and_not_again():
    wheel: TimerWheel[Timer] = TimerWheel()
    timer = filed(wheel, 25 * MILLISECOND)
    assert wheel.advance(20 * MILLISECOND) == []
    assert wheel.advance(30 * MILLISECOND) == [timer]
    assert wheel.advance(40 * MILLISECOND) == []


def test_a_timer_never_fires_before_its_time():
    wheel: TimerWheel[Timer] = TimerWheel()
    timer = filed(wheel, 25 * MILLISECOND)
    assert wheel.advance(25 * MILLISECOND - 1) == []
    assert wheel.advance(30 * MILLISECOND) == [timer]


def test_a_timer_due_exactly_at_a_tick_fires_at_that_tick():
    wheel: TimerWheel[Timer] = TimerWheel()
    timer = filed(wheel, 2 * TICK)
    assert wheel.advance(2 * TICK) == [timer]


def test_a_timer_whose_time_is_past_already_fires_at_the_next_tick():
    wheel: TimerWheel[Timer] = TimerWheel()
    wheel.advance(SECOND)
    timer = filed(wheel, SECOND - TICK)
    assert wheel.advance(SECOND) == []
    assert wheel.advance(SECOND + TICK) == [timer]


def test_a_timer_filed_before_the_first_advance_may_lie_in_the_past():
    wheel: TimerWheel[Timer] = TimerWheel()
    timer = filed(wheel, TICK)
    assert wheel.advance(SECOND) == [timer]


def test_a_dropped_timer_is_forgotten_at_once():
    wheel: TimerWheel[Timer] = TimerWheel()
    timer = filed(wheel, 50 * MILLISECOND)
    wheel.drop(timer)
    assert len(wheel) == 0
    assert wheel.advance(SECOND) == []
    wheel.drop(timer)  # dropping what is not filed changes nothing
    assert timer.filed == 0


def test_a_timer_put_off_is_looked_at_early_and_fires_at_its_new_time():
    wheel: TimerWheel[Timer] = TimerWheel()
    timer = filed(wheel, 50 * MILLISECOND)
    timer.due = 200 * MILLISECOND
    wheel.file(timer)
    assert wheel.advance(100 * MILLISECOND) == []
    assert wheel.advance(190 * MILLISECOND) == []
    assert wheel.advance(200 * MILLISECOND) == [timer]


def test_a_timer_brought_forward_fires_once_at_its_new_time():
    wheel: TimerWheel[Timer] = TimerWheel()
    timer = filed(wheel, 500 * MILLISECOND)
    timer.due = 50 * MILLISECOND
    wheel.file(timer)
    assert wheel.advance(50 * MILLISECOND) == [timer]
    assert wheel.advance(SECOND) == []


def test_a_timer_brought_forward_and_put_back_fires_once():
    wheel: TimerWheel[Timer] = TimerWheel()
    timer = filed(wheel, 500 * MILLISECOND)
    timer.due = 50 * MILLISECOND
    wheel.file(timer)
    timer.due = 500 * MILLISECOND  # found not due at 50 ms and filed where it already was
    assert wheel.advance(60 * MILLISECOND) == []
    assert wheel.advance(SECOND) == [timer]


def test_a_fired_timer_can_be_filed_again():
    wheel: TimerWheel[Timer] = TimerWheel()
    timer = filed(wheel, TICK)
    assert wheel.advance(TICK) == [timer]
    timer.due = 5 * TICK
    wheel.file(timer)
    assert wheel.advance(5 * TICK) == [timer]


# --- many ----------------------------------------------------------------------------------------


def test_timers_of_one_slot_fire_in_the_order_they_were_filed():
    wheel: TimerWheel[Timer] = TimerWheel()
    timers = [filed(wheel, 15 * MILLISECOND - n) for n in range(5)]
    assert wheel.advance(20 * MILLISECOND) == timers


def test_timers_of_several_slots_fire_earliest_slot_first_after_a_jump():
    wheel: TimerWheel[Timer] = TimerWheel()
    late, early, middle = (filed(wheel, n * SECOND) for n in (3, 1, 2))
    assert wheel.advance(10 * SECOND) == [early, middle, late]


def test_a_small_step_looks_only_at_the_slots_it_passes():
    wheel: TimerWheel[Timer] = TimerWheel()
    timers = [filed(wheel, n * TICK) for n in range(1, 9)]
    wheel.advance(0)
    assert wheel.advance(3 * TICK) == timers[:3]
    assert wheel.advance(4 * TICK) == timers[3:4]


def test_time_that_does_not_move_brings_nothing_up():
    wheel: TimerWheel[Timer] = TimerWheel()
    filed(wheel, TICK)
    wheel.advance(5 * TICK)
    filed(wheel, TICK)
    assert wheel.advance(5 * TICK + 1) == []
    assert wheel.advance(4 * TICK) == []


# --- whatever the order --------------------------------------------------------------------------

TIMES = st.integers(1, 200 * TICK)


@settings(max_examples=examples(200))
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("file"), TIMES),
            st.tuples(st.just("move"), TIMES),
            st.tuples(st.just("cancel"), st.integers(0, 50)),
            st.tuples(st.just("advance"), st.integers(0, 40 * TICK)),
        ),
        max_size=40,
    )
)
def test_every_live_timer_fires_exactly_once_on_time_and_no_cancelled_one_does(steps):
    wheel: TimerWheel[Timer] = TimerWheel(TICK)
    now = 0
    waiting: list[Timer] = []
    wheel.advance(0)
    for what, value in [*steps, ("advance", 400 * TICK)]:
        if what == "file":
            waiting.append(filed(wheel, now + value))
        elif what == "move" and waiting:
            timer = waiting[value % len(waiting)]
            timer.due = now + value
            wheel.file(timer)
        elif what == "cancel" and waiting:
            wheel.drop(waiting.pop(value % len(waiting)))
        elif what == "advance":
            now += value
            fired = wheel.advance(now)
            for timer in fired:
                assert timer.due <= now
                waiting.remove(timer)  # raises for one that was cancelled or fired before
            overdue = [timer for timer in waiting if timer.due <= now - TICK]
            assert overdue == []
    assert waiting == []
    assert len(wheel) == 0
