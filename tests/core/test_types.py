import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.types import (
    MILLISECOND,
    SECOND,
    ConfigError,
    Decision,
    Priority,
    Replica,
    Request,
    State,
    nanos,
    require,
    seconds,
)
from sampling import examples


@pytest.mark.parametrize(
    ("given_s", "expected"),
    [(0, 0), (1, SECOND), (0.05, 50 * MILLISECOND), (1e-9, 1), (0.1 + 0.2, 300 * MILLISECOND)],
)
def test_seconds_become_integer_nanoseconds(given_s, expected):
    assert nanos(given_s) == expected
    assert isinstance(nanos(given_s), int)


@given(st.integers(0, 10**15))
@settings(max_examples=examples(200))
def test_times_up_to_eleven_days_survive_the_way_to_seconds_and_back(duration):
    assert nanos(seconds(duration)) == duration


def test_require_lets_a_good_value_pass():
    require(True, "policy.field", "is 1", "use 1")


def test_require_refuses_with_the_field_the_problem_and_the_fix():
    with pytest.raises(ConfigError) as caught:
        require(False, "policy.field", "is -1", "use 0 or more")
    assert str(caught.value) == "policy.field: is -1; use 0 or more"
    assert caught.value.field == "policy.field"
    assert caught.value.problem == "is -1"
    assert caught.value.fix == "use 0 or more"


def test_a_config_error_survives_the_way_from_another_process():
    error = ConfigError("policy.field", "is -1", "use 0 or more")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is ConfigError
    assert str(copy) == str(error)
    assert (copy.field, copy.problem, copy.fix) == ("policy.field", "is -1", "use 0 or more")


def test_a_config_error_is_a_value_error_so_that_parsers_report_it():
    assert issubclass(ConfigError, ValueError)


def test_interactive_goes_before_batch():
    assert sorted([Priority.BATCH, Priority.INTERACTIVE]) == [Priority.INTERACTIVE, Priority.BATCH]


def test_states_are_written_as_their_lower_case_names():
    assert [str(state) for state in State] == [state.name.lower() for state in State]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"id": ""}, "replica.id"),
        ({"model": ""}, "replica.model"),
        ({"slots": -1}, "replica.slots"),
        ({"weight": 0.0}, "replica.weight"),
        ({"weight": -1.0}, "replica.weight"),
        ({"weight": float("nan")}, "replica.weight"),
    ],
)
def test_a_replica_that_cannot_be_is_refused(change, field):
    with pytest.raises(ConfigError) as caught:
        Replica(**({"id": "r1", "model": "m"} | change))
    assert caught.value.field == field
    assert caught.value.fix


def test_a_replica_cannot_be_changed_once_declared():
    replica = Replica("r1", "m")
    with pytest.raises(AttributeError):
        replica.zone = "zone-b"


def test_a_request_holds_what_the_client_said_and_nothing_else():
    request = Request(7, "m", arrived=5, tenant="acme", max_tokens=32, prefix=(1, 2))
    assert (request.id, request.model, request.arrived) == (7, "m", 5)
    assert (request.tenant, request.max_tokens, request.prefix) == ("acme", 32, (1, 2))
    with pytest.raises(AttributeError):
        request.colour = "red"


def test_a_plain_request_is_interactive_hedgeable_and_continuable():
    request = Request("a", "m", arrived=0)
    assert request.priority is Priority.INTERACTIVE
    assert request.hedgeable
    assert request.continuable
    assert request.deadline == 0


def test_a_request_shows_who_it_is():
    assert repr(Request("a", "m", arrived=0)) == "Request('a', 'm', tenant='default')"


def test_a_decision_is_as_true_as_its_answer():
    assert Decision(True, "closed")
    assert not Decision(False, "open")
