"""What an answer means for an item, and how estimates follow the rate."""

import pytest

from holdfast.core.batch.limits import BatchLimits
from holdfast.core.batch.progress import ProgressEstimate, drain_estimate
from holdfast.core.batch.verdicts import (
    ItemPolicyConfig,
    ItemVerdict,
    failures_of,
    judge_answer,
    pause_before,
    tells_loss,
)
from holdfast.core.types import SECOND, ConfigError


@pytest.mark.parametrize(
    ("status", "code", "verdict"),
    [
        (200, "", ItemVerdict.DONE),
        (400, "invalid_value", ItemVerdict.FAILED),
        (404, "model_not_found", ItemVerdict.FAILED),
        (404, "path_not_served", ItemVerdict.FAILED),
        (501, "path_not_served", ItemVerdict.FAILED),
        (429, "rate_limit_exceeded", ItemVerdict.WAIT),
        (503, "no_ready_replica", ItemVerdict.WAIT),
        (401, "invalid_api_key", ItemVerdict.WAIT),
        (502, "upstream_failed", ItemVerdict.AGAIN),
        (504, "upstream_timeout", ItemVerdict.AGAIN),
        (408, "", ItemVerdict.AGAIN),
        (502, "replica_lost", ItemVerdict.SUSPECT),
        (502, "replicas_lost", ItemVerdict.POISON),
        (422, "request_blocked", ItemVerdict.POISON),
    ],
)
def test_each_answer_has_its_verdict(status, code, verdict):
    assert judge_answer(status, code) is verdict


def test_the_second_lost_replica_is_the_last_one():
    assert judge_answer(502, "replica_lost", losses=1) is ItemVerdict.POISON
    assert judge_answer(200, "", losses=1) is ItemVerdict.DONE
    assert judge_answer(504, "upstream_timeout", losses=1) is ItemVerdict.AGAIN


@pytest.mark.parametrize(
    ("code", "lost"),
    [("replica_lost", True), ("replicas_lost", True), ("request_blocked", False), ("", False)],
)
def test_only_a_lost_replica_makes_others_wait(code, lost):
    assert tells_loss(code) is lost


def test_lost_replicas_and_what_happened_to_the_holder_are_no_failures_of_the_item():
    story = [
        {"what": "nacked", "note": {"code": "upstream_timeout"}},
        {"what": "reclaimed"},
        {"what": "nacked", "note": {"code": "replica_lost"}},
        {"what": "nacked", "note": {"reason": "runner: KeyError"}},
    ]
    assert failures_of(story) == (2, 1)
    assert failures_of([]) == (0, 0)


def test_pauses_double_up_to_a_bound():
    config = ItemPolicyConfig()
    assert [pause_before(n, config) for n in (1, 2, 3)] == [1.0, 2.0, 4.0]
    assert pause_before(50, config) == config.pause_max_s


@pytest.mark.parametrize(
    "wrong", [{"receives_max": 0}, {"pause_s": 0.0}, {"pause_s": 5.0, "pause_max_s": 1.0}]
)
def test_items_that_cannot_be_tried_are_refused(wrong):
    with pytest.raises(ConfigError, match=r"batch\.items"):
        ItemPolicyConfig(**wrong)


def test_limits_that_contradict_each_other_are_refused():
    with pytest.raises(ConfigError, match="file_bytes_max"):
        BatchLimits(file_bytes_max=100, tenant_bytes_max=50)
    with pytest.raises(ConfigError, match="disk_free_min"):
        BatchLimits(disk_free_min=-1)
    for name in ("check_s", "tenant_batches_per_minute"):
        with pytest.raises(ConfigError, match=f"batch.limits.{name}: is 0; use more than 0"):
            BatchLimits(**{name: 0})


def test_a_drain_estimate_needs_a_rate():
    assert drain_estimate(0, 0, 0) == 0.0
    assert drain_estimate(10, 0, SECOND) is None
    assert drain_estimate(100, 50, 10 * SECOND) == 20.0


def test_after_a_tenth_the_estimate_is_right_within_ten_percent_despite_a_slow_start():
    total, now, done = 100_000, 0, 0
    estimate = ProgressEstimate(total, 0, now)
    while done < total // 10:  # the first minute is ten times slower than the rest
        now += SECOND
        done += 10 if now < 60 * SECOND else 100
        estimate.saw(done, now)
    left_s = estimate.left_s(now)
    assert left_s == pytest.approx((total - done) / 100, rel=0.1)


def test_the_time_before_the_first_items_is_not_part_of_the_rate():
    total, done, now = 10_000, 0, 20 * SECOND  # a file was uploaded and checked
    estimate = ProgressEstimate(total, 0, 0)
    while done < total // 10:
        now += SECOND
        done += 100
        estimate.saw(done, now)
    assert estimate.left_s(now) == pytest.approx(90.0, rel=0.05)


def test_an_estimate_after_a_resume_counts_its_own_rate():
    estimate = ProgressEstimate(1_000, 900, 0)
    assert estimate.left_s(0) is None
    estimate.saw(910, 10 * SECOND)
    assert estimate.left_s(10 * SECOND) == 90.0
    estimate.saw(1_000, 20 * SECOND)
    assert estimate.left_s(20 * SECOND) == 0.0


def test_an_estimate_of_a_long_run_keeps_a_bounded_number_of_points():
    estimate = ProgressEstimate(10**9, 0, 0)
    for step in range(1, 5_000):
        estimate.saw(step * 10, step * SECOND)
    assert len(estimate._marks) < 1_100
    assert estimate.left_s(5_000 * SECOND) == pytest.approx((10**9 - 49_990) / 10, rel=0.02)
