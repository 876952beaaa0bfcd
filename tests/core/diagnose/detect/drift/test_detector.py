"""Output drift: what must be told, what must not, and that a baseline stays what it was."""

import json
import random
from itertools import pairwise

import pytest

from holdfast.core.diagnose.detect.detector import REPEAT
from holdfast.core.diagnose.detect.drift import detector as module
from holdfast.core.diagnose.detect.drift.detector import DriftConfig, OutputDriftDetector
from holdfast.core.diagnose.evidence import About, Sign
from holdfast.core.diagnose.facts import Declared, OutputSeen, RolloutSeen
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import SECOND, ConfigError

DAY = 86_400 * SECOND
GAP = 60 * SECOND


def census(*replicas, model="m", revision="1"):
    made = ReplicaRegistry()
    for name in replicas or ("a",):
        made.take(Declared(name, model, revision, host="h"))
    return made


def learned(rng, people, draw, statistic="score", samples=1_000):
    """A detector with a baseline, and the time at which it was frozen."""
    detector = OutputDriftDetector(DriftConfig(), people)
    names = list(people.replicas)
    for at in range(samples + 1):
        fact = OutputSeen(names[at % len(names)], statistic, (draw(rng),))
        assert detector.take(fact, at * DAY // samples) == ()
    assert len(detector.baselines()["baselines"]) == 1
    return detector, DAY


def feed(detector, replica, values, start, statistic="score", gap=GAP, sign=Sign.OUTPUT_DRIFTED):
    """What it says of these values with one sign."""
    said = []
    for at, value in enumerate(values):
        said += detector.take(OutputSeen(replica, statistic, (value,)), start + at * gap)
    assert {one.sign for one in said} <= {Sign.OUTPUT_DRIFTED, Sign.OUTPUT_SUSPECTED}
    return [one for one in said if one.sign is sign]


def normal(shift):
    return lambda rng: rng.gauss(10 + 2 * shift, 2)


# --- must fire ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shift", "direction"), [(1.0, "up"), (-1.0, "down"), (3.0, "up")])
def test_a_lasting_shift_is_told_with_its_size_and_the_two_sigma_line(shift, direction):
    rng = random.Random(1)
    detector, now = learned(rng, census("a"), normal(0))
    values = [normal(shift)(rng) for _ in range(150)]
    told = feed(detector, "a", values, now)
    assert told
    first = told[0]
    assert (first.sign, first.source) == (Sign.OUTPUT_DRIFTED, "drift")
    assert first.about == About("a", "m", "1", "h")
    assert f"score of answers of a moved {direction}" in first.text
    assert first.numbers["psi"] > 0.2
    assert first.numbers["cusum"] > first.numbers["cusum_limit"]
    assert first.numbers["shift_sigma"] == pytest.approx(shift, abs=0.8)
    assert first.numbers["two_sigma_low"] == pytest.approx(6, abs=0.5)
    assert first.numbers["two_sigma_high"] == pytest.approx(14, abs=0.5)
    crossed = "outside" if abs(shift) > 2 else "within"
    assert f"{crossed} the two-sigma line" in first.text


@pytest.mark.measured
@pytest.mark.parametrize(
    ("sign", "most"), [(Sign.OUTPUT_SUSPECTED, 90), (Sign.OUTPUT_DRIFTED, 130)]
)
def test_half_a_sigma_is_found_and_told_within_a_few_dozen_samples_at_the_median(sign, most):
    delays = []
    for seed in range(15):
        rng = random.Random(seed)
        detector, now = learned(rng, census("a"), normal(0))
        values = [normal(0.5)(rng) for _ in range(600)]
        delays.append(feed(detector, "a", values, now, sign=sign)[0].numbers["samples"])
    assert sorted(delays)[7] < most


def test_what_may_be_a_shift_is_found_once_and_before_it_is_told():
    rng = random.Random(27)
    detector, now = learned(rng, census("a"), normal(0))
    values = [normal(1)(rng) for _ in range(150)]
    (found,) = feed(detector, "a", values, now, sign=Sign.OUTPUT_SUSPECTED)
    assert found.about == About("a", "m", "1", "h")
    assert "score of answers of a may have moved: mean 9.995 before, 11.74 over" in found.text
    assert 18 < found.numbers["cusum"] < 25
    again = OutputDriftDetector(DriftConfig(), census("a"))
    again.restore(detector.baselines())
    assert feed(again, "a", values, now)[0].at > found.at


def test_a_shift_that_went_away_is_found_again_when_it_comes_back():
    rng = random.Random(28)
    detector, now = learned(rng, census("a"), normal(0))
    lives = [normal(shift)(rng) for shift in (1, 0, 1) for _ in range(150)]
    assert len(feed(detector, "a", lives, now, sign=Sign.OUTPUT_SUSPECTED)) == 2


def test_lengths_with_a_heavy_tail_are_judged_by_rank():
    rng = random.Random(2)
    lengths = lambda shift: lambda rng: float(int(rng.lognormvariate(5 + shift, 1.5)))  # noqa: E731
    detector, now = learned(rng, census("a"), lengths(0), "length")
    healthy = [lengths(0)(rng) for _ in range(3_000)]
    assert not feed(detector, "a", healthy, now, "length")
    doubled = [lengths(1.5)(rng) for _ in range(200)]
    assert feed(detector, "a", doubled, now + 4_000 * GAP, "length")


def test_a_collapse_of_entropy_shows_in_the_log_probabilities_of_its_answers():
    """A model that has become sure of everything: each token has nearly all of the probability."""
    rng = random.Random(7)
    sampled = lambda rng: -abs(rng.gauss(0.9, 0.3))  # noqa: E731 nats a token, of ordinary answers
    collapsed = lambda rng: -abs(rng.gauss(0.01, 0.005))  # noqa: E731
    detector, now = learned(rng, census("a"), sampled, "logprob")
    assert not feed(detector, "a", [sampled(rng) for _ in range(1_000)], now, "logprob")
    told = feed(detector, "a", [collapsed(rng) for _ in range(40)], now + 2_000 * GAP, "logprob")
    assert told[0].numbers["samples"] <= 40
    assert "logprob of answers of a moved up" in told[0].text


def test_values_that_never_moved_and_now_do_are_told():
    detector, now = learned(random.Random(3), census("a"), lambda rng: 1.0, "norm")
    assert not feed(detector, "a", [1.0] * 200, now, "norm")
    assert feed(detector, "a", [0.97] * 60, now + 300 * GAP, "norm")


def test_it_is_told_again_at_its_pace_while_it_holds_and_ends_when_it_is_over():
    rng = random.Random(4)
    detector, now = learned(rng, census("a"), normal(0))
    told = feed(detector, "a", [normal(2)(rng) for _ in range(200)], now, gap=SECOND)
    assert len(told) >= 3
    assert all(b.at - a.at >= REPEAT for a, b in pairwise(told))
    later = now + 1_000 * SECOND
    feed(detector, "a", [normal(0)(rng) for _ in range(400)], later, gap=SECOND)
    assert not feed(detector, "a", [normal(0)(rng) for _ in range(200)], later + DAY)


def test_a_shift_of_every_replica_is_about_the_model_and_only_after_it_lasted():
    rng = random.Random(5)
    detector, now = learned(rng, census("a", "b", "c"), normal(0))
    told = []
    for at in range(240):
        for name in ("a", "b", "c"):
            fact = OutputSeen(name, "score", (normal(1)(rng),))
            said = detector.take(fact, now + at * 20 * SECOND)
            told += [one for one in said if one.sign is Sign.OUTPUT_DRIFTED]
    assert told
    assert {one.about for one in told} == {About(model="m", revision="1")}
    assert told[0].at - now >= 1_500 * SECOND
    assert told[0].numbers["replicas"] == 3
    assert "3 of 3 replicas of m" in told[0].text


def test_one_replica_among_steady_peers_is_named():
    rng = random.Random(6)
    detector, now = learned(rng, census("a", "b", "c"), normal(0))
    told = []
    for at in range(200):
        for name in ("a", "b", "c"):
            fact = OutputSeen(name, "score", (normal(1 if name == "b" else 0)(rng),))
            told += detector.take(fact, now + at * 20 * SECOND)
    assert {one.about.replica for one in told} == {"b"}


def test_a_drift_of_days_is_measured_by_its_last_hours():
    rng = random.Random(7)
    detector, now = learned(rng, census("a"), normal(0))
    told = feed(detector, "a", [normal(1)(rng) for _ in range(400)], now)
    assert told[-1].numbers["since_s"] > 7_200


# --- must not fire --------------------------------------------------------------------------------


@pytest.mark.measured
@pytest.mark.parametrize("seed", [11, 12])
def test_health_is_not_drift_even_on_a_small_baseline(seed):
    rng = random.Random(seed)
    detector, now = learned(rng, census("a"), normal(0), samples=500)
    values = [normal(0)(rng) for _ in range(10_000)]
    assert not feed(detector, "a", values, now, gap=2 * SECOND)


@pytest.mark.measured
def test_a_shift_that_is_real_and_too_small_to_matter_is_not_told():
    rng = random.Random(13)
    detector, now = learned(rng, census("a"), normal(0), samples=5_000)
    values = [normal(0.3)(rng) for _ in range(6_000)]
    assert not feed(detector, "a", values, now, gap=SECOND)


def test_one_absurd_value_is_no_drift():
    rng = random.Random(14)
    detector, now = learned(rng, census("a"), normal(0))
    assert not feed(detector, "a", [1e12, -1e12, 1e12], now)


def test_strangers_unknown_statistics_and_what_is_no_number_are_refused():
    detector = OutputDriftDetector(DriftConfig(), census("a"))
    assert detector.take(OutputSeen("stranger", "score", (1.0,)), 0) == ()
    assert detector.refused == 0
    assert detector.take(OutputSeen("a", "mood", (1.0,)), 0) == ()
    assert detector.take(OutputSeen("a", "score", (float("nan"), float("inf"), 1.0)), 0) == ()
    assert detector.refused == 3


# --- baselines ------------------------------------------------------------------------------------


def test_a_baseline_needs_its_window_and_its_samples_and_then_never_moves():
    rng = random.Random(21)
    detector = OutputDriftDetector(DriftConfig(), census("a"))
    detector.take(OutputSeen("a", "score", (1.0,)), 0)
    detector.take(OutputSeen("a", "score", (1.0,) * 1_000), DAY - 1)
    assert detector.baselines() == {"baselines": []}
    detector, now = learned(rng, census("a"), normal(0))
    before = json.dumps(detector.baselines())
    feed(detector, "a", [normal(2)(rng) for _ in range(300)], now)
    assert json.dumps(detector.baselines()) == before


def test_baselines_survive_a_restart_and_judge_alike():
    rng = random.Random(22)
    people = census("a")
    detector, now = learned(rng, people, normal(0))
    again = OutputDriftDetector(DriftConfig(), people)
    again.take(OutputSeen("a", "score", (5.0,)), now)
    again.restore(json.loads(json.dumps(detector.baselines())))
    assert again.baselines() == detector.baselines()
    values = [normal(1)(rng) for _ in range(100)]
    assert feed(detector, "a", values, now) == feed(again, "a", values, now)


def test_a_long_window_is_thinned_and_keeps_its_quantiles():
    rng = random.Random(24)
    detector, _ = learned(rng, census("a"), normal(0), samples=10_000)
    plain = detector.baselines()["baselines"][0]
    assert plain["samples"] == 10_001
    assert len(plain["grid"]) == 512
    assert plain["p95"] == pytest.approx(13.3, abs=0.3)
    assert plain["grid"][256] == pytest.approx(10, abs=0.2)


def test_a_busy_replica_gets_a_higher_threshold_so_that_alarms_are_bounded_in_time():
    limits = []
    for samples in (600, 20_000):
        rng = random.Random(25)
        detector, now = learned(rng, census("a"), normal(0), samples=samples)
        told = feed(detector, "a", [normal(3)(rng) for _ in range(60)], now)
        limits.append(told[0].numbers["cusum_limit"])
    assert 25 <= limits[0] < limits[1] < 48


@pytest.mark.parametrize(
    "broken",
    [
        {"mean": 1.0},
        {"nothing": 1},
        {"grid": [2.0, 1.0]},
        {"grid": [1.0, float("nan")]},
        {"samples": 0},
        {"mean": float("inf")},
    ],
)
def test_what_is_no_baseline_is_refused(broken):
    detector, _ = learned(random.Random(26), census("a"), normal(0))
    plain = detector.baselines()["baselines"][0]
    data = {**plain, **broken}
    if broken == {"mean": 1.0}:
        del data["grid"]
    with pytest.raises(ValueError):
        detector.restore({"baselines": [data]})
    detector.restore({})


def test_baselines_are_bounded_and_those_of_nobody_make_room(monkeypatch):
    monkeypatch.setattr(module, "BASELINES_MAX", 1)
    rng = random.Random(27)
    people = census("a")
    detector, now = learned(rng, people, normal(0))
    plain = detector.baselines()["baselines"][0]
    detector.take(OutputSeen("a", "norm", (1.0, 2.0)), now)
    detector.restore({"baselines": [{**plain, "model": "n"}]})
    assert detector.refused == 3
    people.take(Declared("a", "m", "2"))
    detector.take(OutputSeen("a", "score", (1.0,)), now)
    assert detector.refused == 3
    assert detector.baselines() == {"baselines": []}


def test_a_new_revision_starts_its_own_books_and_the_gone_are_forgotten():
    rng = random.Random(28)
    people = census("a")
    detector, now = learned(rng, people, normal(0))
    assert feed(detector, "a", [normal(2)(rng) for _ in range(100)], now)
    detector.forget("a")
    detector.forget("a")
    assert not feed(detector, "a", [normal(2)(rng)], now + DAY)
    people.take(Declared("a", "m", "2"))
    assert not feed(detector, "a", [normal(9)(rng) for _ in range(100)], now + DAY)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("window_s", 0),
        ("found_at", -1),
        ("told_at", 10),
        ("told_at", 50),
        ("samples_min", 10),
        ("slack", 1.5),
        ("told_samples", 0),
        ("together_share", 0.2),
        ("psi_min", float("nan")),
    ],
)
def test_config_that_cannot_work_is_refused(field, value):
    with pytest.raises(ConfigError, match=f"drift.{field}"):
        DriftConfig(**{field: value})


# --- for charts -----------------------------------------------------------------------------------


def test_figures_show_the_statistic_that_moved_furthest():
    rng = random.Random(5)
    detector, now = learned(rng, census("a", "b"), normal(0))
    assert detector.figures() == {}
    feed(detector, "a", [normal(0)(rng) for _ in range(100)], now)
    calm = detector.figures()["m"]
    assert calm.statistic == "score"
    assert calm.now == pytest.approx(calm.before, abs=1.0)
    assert calm.cusum < 0.9
    feed(detector, "b", [normal(2)(rng) for _ in range(300)], now)
    moved = detector.figures()["m"]
    assert moved.cusum >= 1
    assert moved.now == pytest.approx(moved.before + 2, abs=1.0)
    lengths = [{**detector.baselines()["baselines"][0], "statistic": "length"}]
    detector.restore({"baselines": lengths})
    feed(detector, "a", [10.0], now, "length")
    assert detector.figures()["m"].statistic == "score"


# --- tensors, spreads and orders of people --------------------------------------------------------


@pytest.mark.parametrize(("sd", "how"), [(4.0, "wider"), (1.0, "narrower")])
def test_a_distribution_that_keeps_its_mean_and_changes_its_spread_is_told(sd, how):
    rng = random.Random(31)
    detector, now = learned(rng, census("a"), normal(0), "probabilities.max")
    values = [rng.gauss(10, sd) for _ in range(300)]
    told = feed(detector, "a", values, now, "probabilities.max")
    assert told
    assert f"probabilities.max of answers of a spread {how}" in told[0].text
    assert told[0].numbers["now"] == pytest.approx(10, abs=1.5)
    assert told[0].numbers["psi"] > 0.2
    wider = told[0].numbers["now_p95"] > told[0].numbers["before_p95"]
    assert wider is (how == "wider")


def test_the_statistic_of_a_tensor_is_learned_and_other_names_are_refused():
    rng = random.Random(32)
    detector, now = learned(rng, census("a"), normal(0), "y.mean")
    assert feed(detector, "a", [normal(2)(rng) for _ in range(100)], now, "y.mean")
    for name in ("y.mode", "anything", "x" * 80 + ".mean"):
        before = detector.refused
        assert detector.take(OutputSeen("a", name, (1.0,)), now) == ()
        assert detector.refused == before + 1


def test_one_model_has_no_more_than_a_few_statistics():
    detector = OutputDriftDetector(DriftConfig(), census("a"))
    for number in range(40):
        detector.take(OutputSeen("a", f"y{number}.mean", (1.0,)), 0)
    assert len(detector.describe("m")) == module.STATISTICS_MAX


def test_an_accepted_baseline_is_the_latest_answers_and_ends_the_drift():
    rng = random.Random(33)
    detector, now = learned(rng, census("a"), normal(0))
    moved = [normal(2)(rng) for _ in range(300)]
    assert feed(detector, "a", moved, now)
    (row,) = detector.describe("m")
    assert (row["state"], row["version"], row["moved"]) == ("frozen", 1, "up")
    assert row["mean"] == pytest.approx(10, abs=0.3)
    assert row["latest_mean"] == pytest.approx(14, abs=0.4)
    assert row["latest_p95"] > row["p95"]
    assert row["level"] >= 1
    count, told = detector.accept("m")
    assert (count, told) == (1, "accepted score (version 2)")
    (row,) = detector.describe("m")
    assert (row["version"], row["moved"], row["level"]) == (2, "", 0.0)
    assert row["mean"] == pytest.approx(14, abs=0.4)
    later = now + 400 * GAP
    assert not feed(detector, "a", [normal(2)(rng) for _ in range(2_000)], later)
    assert feed(detector, "a", [normal(0)(rng) for _ in range(200)], later + 2_100 * GAP)


def test_a_baseline_with_few_answers_since_stays_as_it_is():
    rng = random.Random(34)
    detector, now = learned(rng, census("a"), normal(0))
    feed(detector, "a", [1.0] * 99, now)
    count, told = detector.accept("m")
    assert count == 0
    assert "100 answers" in told
    assert "score of revision 1 has 99" in told
    assert detector.describe("m")[0]["version"] == 1
    count, told = detector.accept("other")
    assert count == 0
    assert told.endswith("other has no frozen baseline")


def test_a_reset_baseline_is_learned_anew_and_counts_on_also_after_a_restart():
    rng = random.Random(35)
    detector, now = learned(rng, census("a"), normal(0))
    assert detector.reset("other") == (0, "other has no baseline")
    assert detector.reset("m") == (1, "1 dropped; new ones are learned in 24 h of healthy answers")
    assert detector.describe("m") == []
    kept = json.loads(json.dumps(detector.baselines()))
    again = OutputDriftDetector(DriftConfig(), census("a"))
    again.restore(kept)
    for at in range(1_001):
        fact = OutputSeen("a", "score", (normal(2)(rng),))
        assert again.take(fact, now + at * DAY // 1_000) == ()
    (row,) = again.describe("m")
    assert (row["version"], row["state"]) == (2, "frozen")
    assert row["mean"] == pytest.approx(14, abs=0.3)
    with pytest.raises(ValueError, match="no version"):
        again.restore({"versions": [["m", "1", "score"]]})


@pytest.mark.parametrize(
    ("steps", "stays"),
    [
        (["1 began", "1 finished"], False),  # started otherwise, under the same revision
        (["1 began", "1 halted"], True),
        (["1 began", "1 halted", "1 finished"], True),
        (["2 began", "2 finished"], True),  # another revision has a baseline of its own
        (["1 finished"], True),  # when it began, control was not there
    ],
)
def test_a_rollout_starts_a_new_baseline_where_the_revision_stays(steps, stays):
    rng = random.Random(36)
    detector, now = learned(rng, census("a", "b"), normal(0))
    for step in steps:
        revision, what = step.split()
        assert detector.take(RolloutSeen("m", revision, what), now) == ()
    assert bool(detector.describe("m")) is stays


def test_another_revision_learns_its_own_and_the_first_finds_its_own_again():
    rng = random.Random(37)
    people = census("a")
    detector, now = learned(rng, people, normal(0))
    people.take(Declared("a", "m", "2", host="h"))
    assert not feed(detector, "a", [normal(3)(rng) for _ in range(300)], now)
    rows = {row["revision"]: row["state"] for row in detector.describe("m")}
    assert rows == {"1": "frozen", "2": "learning"}
    people.take(Declared("a", "m", "1", host="h"))
    assert feed(detector, "a", [normal(3)(rng) for _ in range(100)], now + 400 * GAP)
