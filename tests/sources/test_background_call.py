import threading

from holdfast.sources.background_call import BackgroundCall

LONG_S = 30.0


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_a_call_is_made_once_in_its_time():
    clock, calls = Clock(), []

    def call():
        calls.append(clock.now)
        return len(calls)

    aside = BackgroundCall(call, 10.0, clock)
    assert aside.poll(LONG_S) == 1
    assert aside.poll(LONG_S) == 1
    clock.now += 10
    assert aside.poll(LONG_S) == 2
    assert aside.hangs_s is None


def test_while_a_call_hangs_there_is_no_second_and_the_last_value_stays():
    clock, go, started = Clock(), threading.Event(), []

    def call():
        started.append(1)
        if len(started) > 1:
            assert go.wait(LONG_S)
        return len(started)

    aside = BackgroundCall(call, 1.0, clock)
    assert aside.poll(LONG_S) == 1
    clock.now += 2
    assert aside.poll(0.0) == 1
    clock.now += 7
    assert aside.poll(0.0) == 1
    assert aside.hangs_s == 7
    assert len(started) == 2
    go.set()
    aside._thread.join(LONG_S)
    assert aside.hangs_s is None
    assert aside.poll(0.0) == 2


def test_a_call_that_fails_leaves_the_last_value_and_says_why():
    clock, answers = Clock(), [7]
    aside = BackgroundCall(answers.pop, 1.0, clock)
    assert aside.poll(LONG_S) == 7
    clock.now += 2
    assert aside.poll(LONG_S) == 7
    assert aside.problem.startswith("IndexError")
    answers.append(8)
    clock.now += 2
    assert aside.poll(LONG_S) == 8
    assert not aside.problem
