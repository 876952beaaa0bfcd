from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.request.ladders.degrade import (
    TRANSITIONS,
    DegradeChange,
    DegradeConfig,
    Degrader,
    Dimension,
    LadderError,
    LadderMove,
    Level,
)
from holdfast.core.types import SECOND, ConfigError, Priority, Request
from sampling import examples

LADDER = ("large", "medium", "small")


def make(*models: str, **config: object) -> Degrader:
    return Degrader(DegradeConfig(models or ("large", "small"), **config), Random(1))


def ask(model: str = "large", **values: object) -> Request:
    return Request(1, model, arrived=0, **values)


def watch(
    degrader: Degrader, begin_s: float, end_s: float, saturation: float | None, **more: object
) -> list[DegradeChange]:
    """Feed one reading every half second from begin to just before end; the changes made."""
    readings = {"slo_attainment": None, "error_share": None, "lower_has_room": True} | more
    changes = []
    for tick in range(int(begin_s * 2), int(end_s * 2)):
        change = degrader.observe(tick * SECOND // 2, saturation, **readings)
        if change is not None:
            changes.append(change)
    return changes


def moved_share(degrader: Degrader, now: int, count: int = 4000, **values: object) -> float:
    chosen = Counter(degrader.choose(ask(**values), now)[0] for _ in range(count))
    return chosen["small"] / count


# --- configuration -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "field", "fix"),
    [
        ({"ladder": ("large",)}, "degrade.ladder", "at least two models"),
        ({"ladder": ("large", "large")}, "degrade.ladder", "each once"),
        ({"ladder": ("large", "")}, "degrade.ladder", "at least two models"),
        ({"step_s": 0.0}, "degrade.step_s", "above 0"),
        ({"order": ()}, "degrade.order", "name quality"),
        ({"order": (Dimension.LATENCY,)}, "degrade.order", "name quality"),
        ({"order": (Dimension.QUALITY, Dimension.QUALITY)}, "degrade.order", "each once"),
        ({"patience_s": 0.0}, "degrade.patience_s", "finite"),
        ({"capped_tokens": 0}, "degrade.capped_tokens", "1 token"),
        ({"stale_s": float("inf")}, "degrade.stale_s", "finite"),
        ({"stale_s": 0.0}, "degrade.stale_s", "above 0"),
        ({"hold_s": 1.0}, "degrade.hold_s", "at least step_s"),
        ({"hold_max_s": 5.0}, "degrade.hold_max_s", "at least hold_s"),
        ({"enter_saturation": 0.0}, "degrade.enter_saturation", "above 0"),
        ({"leave_saturation": 0.95}, "degrade.leave_saturation", "leave a gap"),
        ({"enter_attainment": 0.0}, "degrade.enter_attainment", "(0, 1)"),
        ({"enter_attainment": 1.0}, "degrade.enter_attainment", "(0, 1)"),
        ({"leave_attainment": 0.95}, "degrade.leave_attainment", "leave a gap"),
        ({"enter_error_share": 0.0}, "degrade.enter_error_share", "(0, 1]"),
        ({"leave_error_share": 0.1}, "degrade.leave_error_share", "leave a gap"),
        ({"outage_error_share": 1.5}, "degrade.outage_error_share", "(0, 1]"),
        ({"share_step": 0.0}, "degrade.share_step", "(0, 1]"),
    ],
)
def test_a_config_that_cannot_work_is_refused_with_field_and_fix(values, field, fix):
    with pytest.raises(ConfigError) as caught:
        DegradeConfig(**({"ladder": ("large", "small")} | values))
    assert caught.value.field == field
    assert fix in caught.value.fix


def test_the_strictest_thresholds_are_allowed():
    config = DegradeConfig(
        ("large", "small"), leave_saturation=0.0, leave_error_share=0.0, leave_attainment=1.0
    )
    assert (config.leave_saturation, config.leave_attainment) == (0.0, 1.0)


# --- going down ----------------------------------------------------------------------------------


def test_a_well_model_serves_what_was_asked_for():
    degrader = make()
    assert watch(degrader, 0, 60, 0.9) == []
    assert degrader.choose(ask(), 0) == ("large", "as asked")
    assert degrader.level is Level.STEADY


@pytest.mark.parametrize(
    ("readings", "words"),
    [
        ({"saturation": 0.95}, "saturated at 95%"),
        ({"saturation": 0.1, "slo_attainment": 0.9}, "only 90.0% within the objective"),
        ({"saturation": None, "error_share": 0.1}, "10% of attempts fail"),
    ],
)
def test_saturation_a_broken_objective_and_errors_each_degrade(readings, words):
    degrader = make()
    changes = watch(degrader, 0, 3, **readings)
    assert [(c.before, c.after, c.share) for c in changes] == [
        (Level.STEADY, Level.DEGRADING, 0.25)
    ]
    assert changes[0].reason == f"{words}: 25% of the traffic on small"


def test_the_traffic_moves_in_steps_until_it_is_all_on_the_rung_below():
    degrader = make()
    changes = watch(degrader, 0, 20, 1.0)
    assert [(c.at / SECOND, c.share) for c in changes] == [(2, 0.25), (4, 0.5), (6, 0.75), (8, 1.0)]
    assert changes[-1].after is Level.DEGRADED
    assert moved_share(degrader, 20 * SECOND) == 1.0


def test_the_share_asked_for_is_the_share_moved():
    degrader = make()
    watch(degrader, 0, 3, 1.0)
    assert moved_share(degrader, 3 * SECOND) == pytest.approx(0.25, abs=0.04)


def test_a_share_step_that_does_not_divide_one_still_ends_at_all():
    degrader = make(share_step=0.3)
    assert [c.share for c in watch(degrader, 0, 20, 1.0)] == pytest.approx([0.3, 0.6, 0.9, 1.0])


def test_an_outage_moves_everybody_at_once():
    degrader = make()
    changes = watch(degrader, 0, 5, None, error_share=0.9)
    assert [(c.at / SECOND, c.share) for c in changes] == [(2, 1.0)]


def test_an_outage_begins_at_its_limit():
    assert watch(make(), 0, 3, None, error_share=0.5)[0].share == 1.0
    assert watch(make(), 0, 3, None, error_share=0.49)[0].share == 0.25


def test_an_objective_just_met_is_no_breach():
    assert watch(make(), 0, 10, None, slo_attainment=0.95) == []


def test_a_long_ladder_is_climbed_rung_by_rung():
    degrader = make(*LADDER)
    assert (degrader.watched, degrader.below, degrader.above) == ("large", "medium", None)
    changes = watch(degrader, 0, 30, 1.0)
    assert [(c.model, c.share) for c in changes] == [
        *[("medium", share) for share in (0.25, 0.5, 0.75, 1.0)],
        *[("small", share) for share in (0.25, 0.5, 0.75, 1.0)],
    ]
    assert [c.after for c in changes] == [Level.DEGRADING] * 7 + [Level.DEGRADED]
    assert (degrader.watched, degrader.below, degrader.above) == ("small", None, "medium")
    assert degrader.choose(ask(), 30 * SECOND) == ("small", "degraded to small")


def test_on_a_long_ladder_the_next_step_is_about_the_next_rung():
    degrader = make(*LADDER, share_step=0.5)
    watch(degrader, 0, 5, 1.0)
    assert (degrader.watched, degrader.below, degrader.above) == ("medium", "small", "large")
    watch(degrader, 5, 7, 1.0)
    assert (degrader.watched, degrader.below, degrader.above) == ("medium", "small", "medium")


def test_nothing_moves_to_a_rung_without_room():
    degrader = make()
    assert watch(degrader, 0, 60, 1.0, lower_has_room=False) == []
    watch(degrader, 60, 61, 1.0)
    watch(degrader, 61, 75, 1.0, lower_has_room=False)
    assert degrader.level is Level.DEGRADED
    assert degrader._share == 0.25


def test_unknown_room_is_not_no_room():
    assert watch(make(), 0, 3, 1.0, lower_has_room=None)


def test_a_short_breach_moves_nobody():
    degrader = make()
    for second in range(0, 60, 2):
        assert watch(degrader, second, second + 1.5, 1.0) == []
        assert watch(degrader, second + 1.5, second + 2, 0.8) == []


def test_unknown_readings_neither_degrade_nor_recover():
    degrader = make()
    assert watch(degrader, 0, 60, None) == []
    watch(degrader, 60, 63, 1.0)
    assert [c.after for c in watch(degrader, 63, 200, None)] == [Level.DEGRADED]


# --- coming back ---------------------------------------------------------------------------------


def test_recovery_is_gradual_and_each_step_waits_for_the_hold():
    degrader = make()
    watch(degrader, 0, 10, 1.0)
    changes = watch(degrader, 10, 60, 0.3)
    assert [(c.at / SECOND, c.after, c.share) for c in changes] == [
        (20, Level.RECOVERING, 0.75),
        (30, Level.RECOVERING, 0.5),
        (40, Level.RECOVERING, 0.25),
        (50, Level.STEADY, 0.0),
    ]
    assert changes[-1].model == "large"


@pytest.mark.parametrize(
    "readings",
    [{"saturation": 0.7}, {"slo_attainment": 0.99}, {"error_share": 0.02}],
)
def test_each_reading_alone_can_call_back(readings):
    degrader = make()
    watch(degrader, 0, 3, 1.0)
    assert watch(degrader, 3, 14, **({"saturation": None} | readings))[-1].after is Level.STEADY


@pytest.mark.parametrize(
    "readings",
    [
        {"saturation": 0.8},
        {"saturation": 0.5, "slo_attainment": 0.97},
        {"saturation": 0.5, "error_share": 0.05},
    ],
)
def test_inside_the_hysteresis_it_stays_where_it_is(readings):
    degrader = make()
    watch(degrader, 0, 3, 1.0)
    changes = watch(degrader, 3, 200, **readings)
    assert [c.after for c in changes] == [Level.DEGRADED]
    assert changes[0].reason.startswith("neither worse nor well enough")
    assert degrader._share == 0.25


def test_it_does_not_return_to_a_model_that_cannot_serve():
    degrader = make()
    watch(degrader, 0, 10, None, error_share=1.0)
    assert watch(degrader, 10, 100, 0.1, upper_has_room=False) == []
    assert watch(degrader, 100, 101, 0.1, upper_has_room=True)


def until_change(degrader: Degrader, begin_s: int, saturation: float) -> int:
    """Feed one reading every second until something changes; the second of the change."""
    for second in range(begin_s, begin_s + 1000):
        if degrader.observe(second * SECOND, saturation, None, None, lower_has_room=True):
            return second
    raise AssertionError("nothing changed in 1000 s")


def test_a_return_that_fails_at_once_doubles_the_wait_and_a_quiet_time_forgives():
    degrader = make(share_step=1.0)
    waits, down = [], until_change(degrader, 0, 1.0)
    for _ in range(6):
        up = until_change(degrader, down + 1, 0.5)
        waits.append(up - down - 1)
        down = until_change(degrader, up + 1, 1.0)
    assert waits == [10, 20, 40, 80, 120, 120]
    quiet = until_change(degrader, down + 1, 0.5) + 200
    until_change(degrader, quiet, 1.0)
    assert degrader._hold_ns == 10 * SECOND


def test_a_return_that_fails_later_keeps_the_wait():
    degrader = make(share_step=1.0)
    up = until_change(degrader, until_change(degrader, 0, 1.0) + 1, 0.5)
    until_change(degrader, up + 30, 1.0)
    assert degrader._hold_ns == 10 * SECOND


def test_a_settled_recovery_goes_on_when_all_is_well_again():
    degrader = make()
    watch(degrader, 0, 10, 1.0)
    watch(degrader, 10, 21, 0.3)
    assert degrader.level is Level.RECOVERING
    watch(degrader, 21, 60, 0.8)
    assert degrader.level is Level.DEGRADED
    assert watch(degrader, 60, 71, 0.3)[0].after is Level.RECOVERING


# --- choosing ------------------------------------------------------------------------------------


def degraded(*models: str, **config: object) -> Degrader:
    degrader = make(*models, **config)
    watch(degrader, 0, 30, 1.0)
    return degrader


def test_a_request_that_must_not_be_degraded_stays():
    assert degraded().choose(ask(degradable=False), 30 * SECOND) == ("large", "as asked")


def test_batch_waits_for_what_it_asked_for_unless_told_otherwise():
    batch = ask(priority=Priority.BATCH)
    assert degraded().choose(batch, 30 * SECOND) == ("large", "as asked: it can wait")
    assert degraded(interactive_only=False).choose(batch, 30 * SECOND)[0] == "small"


def test_a_model_that_is_not_on_the_ladder_is_left_alone():
    assert degraded().choose(ask("other"), 30 * SECOND) == ("other", "as asked")


def test_nobody_is_moved_up():
    degrader = make(*LADDER, share_step=1.0)
    watch(degrader, 0, 3, 1.0)
    assert degrader.choose(ask("large"), 3 * SECOND)[0] == "medium"
    assert degrader.choose(ask("medium"), 3 * SECOND) == ("medium", "as asked")
    assert degrader.choose(ask("small"), 3 * SECOND) == ("small", "as asked")


def test_a_verdict_that_nobody_renews_binds_nobody():
    degrader = degraded()
    last = 30 * SECOND - SECOND // 2
    assert degrader.choose(ask(), last + 60 * SECOND)[0] == "small"
    assert degrader.choose(ask(), last + 60 * SECOND + 1) == ("large", "as asked")


def test_a_session_stays_together_and_moves_once_while_the_share_grows():
    degrader = make()
    sessions = [f"session-{i}" for i in range(400)] + ["\udc80 odd"]
    moved_before: set[str] = set()
    for step in range(4):
        watch(degrader, step * 2 + (step > 0), step * 2 + 3, 1.0)
        now = (step * 2 + 3) * SECOND
        moved = {s for s in sessions if degrader.choose(ask(session=s), now)[0] == "small"}
        again = {s for s in sessions if degrader.choose(ask(session=s), now)[0] == "small"}
        assert moved == again
        assert moved_before <= moved
        assert len(moved) / len(sessions) == pytest.approx(0.25 * (step + 1), abs=0.08)
        moved_before = moved


# --- never flapping ------------------------------------------------------------------------------


@pytest.mark.parametrize("centre", [0.95, 0.75, 0.85])
def test_noise_around_a_threshold_does_not_flap(centre):
    for seed in range(8):
        rng = Random(seed)
        degrader = make()
        watch(degrader, 0, 5, 1.0)
        depths = []
        for tick in range(10, 1200):
            reading = centre + rng.gauss(0, 0.05)
            degrader.observe(tick * SECOND // 2, reading, None, None, lower_has_room=True)
            depths.append(degrader._depth)
        turns = [b - a for a, b in pairwise(depths) if b != a]
        assert sum(1 for a, b in pairwise(turns) if a * b < 0) <= 1


@pytest.mark.parametrize("load", [1.0, 1.1, 1.3, 1.7, 2.5])
def test_in_a_closed_loop_the_ladder_settles_but_for_rare_trials(load):
    """The moved share decides what is left on the large model, and so what is read there."""
    degrader = make()
    shares = []
    for tick in range(2 * 1800):
        moved = degrader._share if degrader.watched == "large" else 1.0
        degrader.observe(tick * SECOND // 2, load * (1 - moved), None, None, lower_has_room=True)
        shares.append(moved)
    late = shares[2 * 120 :]
    breached = sum(1 for moved in late if load * (1 - moved) >= 0.95)
    assert breached / len(late) < 0.05
    turns = [b - a for a, b in pairwise(late) if b != a]
    assert len(turns) <= 2 * (1800 // 120)  # one trial per longest wait, and its way back


def test_a_step_back_that_would_not_fit_is_tried_only_after_the_longest_wait():
    degrader = make()
    watch(degrader, 0, 5, 1.0)
    assert degrader._share == 0.5
    assert [c.after for c in watch(degrader, 5, 124.5, 0.65)] == [Level.DEGRADED]  # 0.975 after it
    assert watch(degrader, 125, 126, 0.65)[0].share == 0.25


@given(
    readings=st.lists(
        st.tuples(
            st.none() | st.floats(0, 2),
            st.none() | st.floats(0, 1),
            st.none() | st.floats(0, 1),
            st.none() | st.booleans(),
            st.none() | st.booleans(),
            st.integers(0, 30 * SECOND),
        ),
        max_size=80,
    )
)
@settings(max_examples=examples(80))
def test_whatever_the_readings_a_ladder_moves_stepwise_and_only_where_there_is_room(readings):
    degrader = make(*LADDER)
    now, last_move = 0, None
    for saturation, attained, errors, room_below, room_above, step in readings:
        now += step
        below, above, before = degrader.below, degrader.above, degrader._depth
        change = degrader.observe(
            now, saturation, attained, errors, room_below, upper_has_room=room_above
        )
        moved = degrader._depth - before
        if moved:
            assert change is not None
            assert last_move is None or now - last_move >= 2 * SECOND
            last_move = now
        if moved > 0:
            assert below is not None
            assert room_below is not False
        if moved < 0:
            assert moved == -1
            assert above is not None
            assert room_above is not False
        assert 0 <= degrader._depth <= degrader._depth_max
        assert (degrader.level is Level.STEADY) == (degrader._depth == 0)
        assert 0.0 <= degrader._share < 1.0
        model, reason = degrader.choose(ask(), now)
        assert model in LADDER
        assert (model == "large") == (reason == "as asked")
        assert len(degrader.history) <= 32


# --- the table and what is shown -----------------------------------------------------------------


def test_an_impossible_move_is_loud_and_tells_the_history():
    degrader = make()
    watch(degrader, 0, 3, 1.0)
    degrader.level = Level.STEADY
    with pytest.raises(LadderError, match=r"steady cannot take settled; .*saturated"):
        degrader._enter(LadderMove.SETTLED, "no reason", 0)
    with pytest.raises(LadderError, match="history: none"):
        make()._enter(LadderMove.UP, "no reason", 0)


def test_from_the_top_one_can_only_go_down():
    assert {move for (level, move) in TRANSITIONS if level is Level.STEADY} == {
        LadderMove.DOWN,
        LadderMove.BOTTOM,
    }
