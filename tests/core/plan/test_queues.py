import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.plan.queues import (
    erlang_c,
    erlang_wait,
    erlang_wait_exceeds,
    random_choice_wait,
    servers_for,
    shared_sojourn,
    sojourn_quantile,
    two_choices_sojourn,
    two_choices_tail,
)
from holdfast.core.types import ConfigError


def test_one_server_waits_as_often_as_it_is_busy():
    assert erlang_c(1, 0.8) == pytest.approx(0.8)
    assert erlang_wait(10, 8.0) == pytest.approx(0.20459008, rel=1e-6)
    assert erlang_wait(64, 60.8) == pytest.approx(0.18375342, rel=1e-6)
    assert erlang_c(5, 5.0) == 1.0
    assert erlang_wait_exceeds(5, 6.0, 1.0) == 1.0


def test_equal_service_times_wait_half_as_long_as_exponential_ones():
    assert random_choice_wait(0.8, 0.0) == pytest.approx(2.0)
    assert random_choice_wait(0.8, 1.0) == pytest.approx(4.0)


@given(st.floats(0.1, 300.0), st.floats(0.01, 5.0), st.floats(0.001, 0.5), st.floats(0.5, 1.0))
def test_the_fewest_servers_are_enough_and_one_less_is_not(offered, wait, share, busy):
    count = servers_for(offered, wait, share, busy)
    assert erlang_wait_exceeds(count, offered, wait) <= share
    assert offered <= count * busy
    fewer = count - 1
    if fewer >= 1:
        late = erlang_wait_exceeds(fewer, offered, wait) > share
        assert late or offered > fewer * busy or offered >= fewer


@given(st.floats(0.05, 0.99))
def test_a_choice_of_two_is_never_worse_than_none_and_pooling_is_best(load):
    two = two_choices_sojourn(load) - 1.0
    assert two <= random_choice_wait(load) + 1e-9
    assert erlang_wait(1000, 1000 * load) <= two + 1e-9
    assert two_choices_tail(load, 1) == pytest.approx(load)


@pytest.mark.parametrize(
    "call",
    [
        lambda: erlang_c(0, 1.0),
        lambda: erlang_c(1, -1.0),
        lambda: erlang_wait(2, 2.0),
        lambda: random_choice_wait(1.0),
        lambda: random_choice_wait(0.5, -1.0),
        lambda: shared_sojourn(1.2),
        lambda: sojourn_quantile(0.5, 1.0),
        lambda: two_choices_sojourn(-0.1),
        lambda: two_choices_tail(0.5, -1),
        lambda: servers_for(1.0, 1.0, 0.0),
        lambda: servers_for(1.0, 1.0, 0.1, 1.2),
    ],
)
def test_what_cannot_be_is_refused(call):
    with pytest.raises(ConfigError, match="queueing"):
        call()
