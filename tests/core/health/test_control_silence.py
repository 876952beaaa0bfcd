"""A gateway that hears nothing of control says so, and not while it was late itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.health.control_silence import ControlSilence, ControlSilenceConfig
from holdfast.core.types import SECOND, ConfigError, nanos

LOOK_S = 0.1


class Ear:
    """A gateway's ear, in virtual time."""

    def __init__(self) -> None:
        self.now = 5 * SECOND
        self.silence = ControlSilence(ControlSilenceConfig(), self.now)

    def listen(
        self, span_s: float, *, every_s: float | None = None, look_s: float = LOOK_S
    ) -> bool:
        """Whether control is silent after this span, in which it speaks so often."""
        silent, spoke_at, end = False, self.now, self.now + nanos(span_s)
        while self.now < end:
            self.now += nanos(look_s)
            if every_s is not None and self.now - spoke_at >= nanos(every_s):
                spoke_at = self.now
                self.silence.heard(self.now)
            silent = self.silence.look(self.now)
        return silent


def test_a_control_that_does_not_speak_is_silent_until_it_does() -> None:
    ear = Ear()
    assert not ear.listen(4.8)
    assert ear.silence.silent_s(ear.now) is None
    assert ear.listen(5.2)
    assert ear.silence.silent_s(ear.now) == pytest.approx(10.0)
    assert ear.silence.total == pytest.approx(nanos(5.0), abs=nanos(0.2))
    ear.silence.heard(ear.now)
    assert not ear.silence.look(ear.now)
    assert ear.silence.silences == 1
    assert ear.listen(7.0)
    assert ear.silence.silences == 2


def test_a_control_that_speaks_as_often_as_it_should_is_not_silent() -> None:
    ear = Ear()
    assert not ear.listen(600.0, every_s=2.0)
    ear.silence.expect(60.0)
    assert not ear.listen(600.0, every_s=60.0)
    ear.silence.expect(0.1)  # however often it should, some seconds are nothing
    assert not ear.listen(60.0, every_s=4.5)
    assert ear.silence.silences == 0


def test_a_gateway_that_was_late_itself_blames_nobody() -> None:
    ear = Ear()
    assert not ear.listen(300.0, look_s=7.0)
    assert not ear.listen(4.0)
    assert ear.listen(2.0)


@pytest.mark.parametrize("field", ["heartbeats", "silent_s", "own_late_s"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), 4_000.0])
def test_settings_that_make_no_sense_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"control_silence\.{field}"):
        ControlSilenceConfig(**{field: value})


STEPS = st.lists(
    st.tuples(st.sampled_from([0.05, 0.1, 0.9, 1.5, 30.0]), st.booleans(), st.integers(1, 80)),
    max_size=10,
)


@given(STEPS)
def test_silence_needs_five_seconds_of_listening_and_hearing_ends_it(
    steps: list[tuple[float, bool, int]],
) -> None:
    ear = Ear()
    listened_s, was_silent = 0.0, False
    for after_s, speaks, times in steps:
        for _ in range(times):
            ear.now += nanos(after_s)
            if speaks:
                ear.silence.heard(ear.now)
            silent = ear.silence.look(ear.now)
            late = after_s > 1.0
            listened_s = 0.0 if speaks or (late and not was_silent) else listened_s + after_s
            if speaks:
                assert not silent
            if silent and not was_silent:
                assert listened_s >= 5.0 - 1e-6
            if was_silent and not speaks:
                assert silent
            was_silent = silent
