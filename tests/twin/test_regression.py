from dataclasses import replace

import pytest

from holdfast.twin.regression import step_coefficients
from twin_data import LAW, measured

TRUE = (0.012, 0.0015, 2e-6, 0.0002)
HOSTS = {f"llama-{number}": "host" for number in (1, 2, 3)}


def test_coefficients_follow_from_first_and_last_tokens_alone():
    found, miss = step_coefficients(measured(LAW, 12.0, 400))
    assert found == pytest.approx(TRUE, rel=0.12)
    assert miss < 0.02


def test_neighbours_that_slow_each_other_down_leave_a_smaller_residual_when_they_are_known():
    shared = replace(LAW, neighbour_share=0.4, host_room=1)
    requests = measured(shared, 6.0, 400, hosts=HOSTS)
    _, ignored = step_coefficients(requests, HOSTS)
    known, seen = step_coefficients(requests, HOSTS, room=1, share=0.4)
    assert seen < 0.9 * ignored
    assert known[0] == pytest.approx(TRUE[0], rel=0.1)


def test_answers_that_came_in_one_burst_after_a_pause_change_little():
    requests = measured(LAW, 12.0, 400)
    for number in range(0, 400, 20):
        one = requests[number]
        requests[number] = replace(one, first_s=one.last_s - 1e-5)
    found, _ = step_coefficients(requests)
    assert found[0] == pytest.approx(TRUE[0], rel=0.15)
    assert found[3] == pytest.approx(TRUE[3], rel=0.3)


def test_answers_of_one_token_say_nothing_of_a_step():
    requests = [replace(one, output=1, last_s=one.first_s) for one in measured(LAW, 12.0, 60)]
    assert step_coefficients(requests) == ((0.0, 0.0, 0.0, 0.0), 0.0)
