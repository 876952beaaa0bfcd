import pytest

from holdfast.core.types import ConfigError
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.request_record import OUTSIDE, EngineRun


def test_a_run_begins_outside_with_everything_before_it() -> None:
    run = EngineRun("whose", "where", 3, 100, 20)
    assert (run.owner, run.replica_id, run.attempt, run.prompt, run.output) == (
        "whose",
        "where",
        3,
        100,
        20,
    )
    assert run.place == OUTSIDE
    assert (run.first_at, run.silence_max, run.ends_as, run.mute) == (0, 0, None, False)


def test_a_law_may_have_no_floor_where_each_request_takes_time() -> None:
    assert EngineParameters(step_ms=0.0, per_sequence_ms=0.1).step_ms == 0.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("per_sequence_ms", -1.0),
        ("per_kv_token_ms", -1.0),
        ("per_prompt_token_ms", -0.1),
        ("step_ms", -1.0),
        ("batch_max", 0),
        ("kv_tokens_max", 0),
        ("prefill_tokens_max", 0),
    ],
)
def test_a_law_that_cannot_be_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"engine\.{field}: is {value}; use "):
        EngineParameters(**{field: value})


def test_a_step_that_takes_no_time_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine\.step_ms: is 0; a step must take time"):
        EngineParameters(step_ms=0, per_sequence_ms=0)
