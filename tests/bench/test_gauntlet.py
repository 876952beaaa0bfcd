"""``bench/gauntlet.py``: what is asked, who counts as harmed, and what is held against Holdfast."""

import json
from random import Random
from types import SimpleNamespace

import pytest


@pytest.fixture
def gauntlet(bench):
    return bench("gauntlet")


@pytest.fixture
def trials(bench):
    return bench("gauntlet_trials")


@pytest.fixture
def report(bench):
    return bench("gauntlet_report")


def row(fault, share=0.0, **more):
    told = {"gateway": "holdfast", "fault": fault, "start": "", "seed": 1, "run": 0, "problem": ""}
    told |= {"share": share, "requests": 100, "harmed": round(100 * share), "kinds": {}}
    told |= {"silently_short": 0, "accused": [], "right": True, "cause": "x", "expected": "x"}
    told |= {"class": "runtime", "last_request_s": 1.0, "named_s": 2.0, "wrong_ended_s": None}
    return told | more


def every(shape, **more):
    return [row(fault, **more) for fault in shape.counted]


# --- the plan -------------------------------------------------------------------------------------


def test_the_mean_is_of_fourteen_faults_and_wrong_answers(trials):
    assert len(trials.COUNTED) == 15
    assert "wrong" in trials.COUNTED
    assert not [name for name in trials.COUNTED if "wrong-10" in name or "only" in name]


def test_twelve_pairs_have_a_reason_each_and_leave_no_fault_out(trials):
    assert len(trials.PAIRS) == 12
    assert {fault for pair in trials.PAIRS for fault in pair} == set(trials.COUNTED)
    assert all(trials.PAIRS.values())
    assert [one.cause for one in trials.trials_of("crash+wrong")] == ["crashed", "wrong_output"]
    assert [one.cause for one in trials.trials_of("drip")] == ["dripping"]


@pytest.mark.parametrize(
    ("argv", "count"),
    [
        (["--faults", "crash,hang"], 2),
        (["--faults", "crash", "--repeat", "3", "--seed", "7"], 3),
        (["--faults", "crash", "--seeds", "1,2", "--repeat", "2"], 4),
        (["--shape", "light", "--faults", "crash"], 2),
        (["--shape", "light", "--faults", "crash", "--fresh"], 1),
        (["--shape", "light", "--faults", "crash", "--warmed", "--gateways", "holdfast,envoy"], 2),
        (["--shape", "pair"], 12),
        (["--faults", "wrong, canaries only;crash", "--gateways", "holdfast,envoy"], 3),
        (["--faults", "crash", "--repeat", "3", "--gateways", "holdfast,envoy"], 4),
    ],
)
def test_what_was_asked_for_becomes_trials(gauntlet, argv, count):
    jobs = gauntlet.jobs_of(gauntlet.arguments(argv))
    assert len(jobs) == len(set(jobs)) == count


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--faults", "nonsense"], "--faults: stream knows: crash"),
        (["--shape", "pair", "--faults", "crash"], "--faults: pair knows: crash+wrong"),
        (["--gateways", "nginx"], "--gateways: known are"),
        (["--seeds", "1,x"], "--seeds: use whole numbers"),
        (["--fresh"], "use them with --shape light"),
        (["--jobs", "0"], "--jobs: use 1 or more"),
        (["--repeat", "0"], "--repeat: use 1 or more"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_name(gauntlet, argv, told, capsys):
    with pytest.raises(SystemExit):
        gauntlet.arguments(argv)
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("start", "before"), [("fresh", 0), ("warmed", 200)])
def test_a_light_trial_begins_fresh_or_after_two_hundred_requests(gauntlet, start, before):
    argv = ["--shape", "light", "--faults", "slow", f"--{start}"]
    (job,) = gauntlet.jobs_of(gauntlet.arguments(argv))
    shots, onset = gauntlet.shots_of(job, Random(3), 1_000.0, job.seconds)
    dues = [shot.due for shot in shots]
    light = [due for due in dues[before:] if due < onset]
    assert 15 <= len(light) <= 45  # thirty, more or less
    assert dues[before] > dues[before - 1] if before else True
    assert 60 <= sum(due >= onset for due in dues) <= 120
    assert max(dues) < onset + job.seconds


def test_every_gateway_is_asked_the_same_at_the_same_times(gauntlet):
    argv = ["--shape", "unary", "--faults", "slow", "--gateways", "holdfast,envoy"]
    own, peer = gauntlet.jobs_of(gauntlet.arguments(argv))
    bodies = [
        [shot.body for shot in gauntlet.shots_of(job, job.rng(), 0.0, 5.0)[0]]
        for job in (own, peer)
    ]
    assert bodies[0] == bodies[1]
    assert all(not json.loads(body)["stream"] for body in bodies[0])


# --- what is counted ------------------------------------------------------------------------------


def shot(due, ended, harm=""):
    """A request that was harmed in this way."""
    told = {"due": due, "ended": ended, "first": ended, "attempts": 1, "continued": False}
    calls = {"harm": lambda *_: harm, "repeated": lambda: False, "silently_short": lambda: False}
    return SimpleNamespace(**told, **calls)


def test_harm_counts_from_the_onset_for_the_counted_time_only(gauntlet):
    shots = [
        shot(8.0, 9.0, "late"),  # over before the onset
        shot(9.9, 10.2, "closed"),  # under way at the onset
        shot(12.0, 12.2),
        shot(31.0, 31.2, "wrong text"),  # after the counted time
    ]
    told = gauntlet.harm(shots, 10.0, 20.0)
    assert (told["requests"], told["harmed"]) == (2, 1)
    assert told["wrong_ended_s"] == pytest.approx(21.2)  # seen whenever it was


def test_nothing_wrong_has_no_end(gauntlet):
    assert gauntlet.harm([shot(11.0, 11.2)], 10.0, 20.0)["wrong_ended_s"] is None


def test_of_a_pair_both_causes_must_be_right_and_the_later_time_counts(gauntlet, trials):
    crash, wrong = trials.trials_of("crash+wrong")
    first = gauntlet.Sick(crash, 0.5, {"cause": "crashed", "class": "runtime"})
    second = gauntlet.Sick(wrong, 4.0, {"cause": "wrong_output", "class": "runtime"})
    told = gauntlet.verdict(gauntlet.Watched({"m-1": first, "m-2": second}))
    assert (told["right"], told["named_s"]) == (True, 4.0)
    second.incident["cause"] = "crashed"
    told = gauntlet.verdict(gauntlet.Watched({"m-1": first, "m-2": second}))
    assert (told["right"], told["cause"]) == (False, "crashed+crashed")
    nobody = gauntlet.Sick(wrong)
    told = gauntlet.verdict(gauntlet.Watched({"m-1": first, "m-2": nobody}))
    assert (told["right"], told["named_s"]) == (False, None)


def test_a_fleet_that_does_not_start_is_a_row_that_says_so(gauntlet, monkeypatch):
    starts = []

    def fleet(job, _rng):
        starts.append(job)
        raise RuntimeError("no port")

    monkeypatch.setattr(gauntlet, "_fleet", fleet)
    monkeypatch.setattr(gauntlet.signal, "signal", lambda *_: None)
    (job,) = gauntlet.jobs_of(gauntlet.arguments(["--faults", "crash"]))
    told = gauntlet.run_one(job)
    assert told["problem"] == "RuntimeError: no port"
    assert len(starts) == 2  # somebody may have taken its port
    assert "not run" in gauntlet.line_of(told)


# --- what is held against it ----------------------------------------------------------------------


def test_the_upper_bound_is_students(report):
    assert report.upper_bound([0.01]) == 0.01
    assert report.upper_bound([0.02, 0.02, 0.02]) == pytest.approx(0.02)
    # mean 3, standard deviation 1.5811, five values: t is 2.132
    assert report.upper_bound([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(4.5076, abs=1e-3)
    assert report.upper_bound([1.0, 2.0] * 20) > 1.5


@pytest.mark.parametrize("name", ["stream", "unary", "light", "pair"])
def test_a_fleet_that_harms_nobody_holds_every_bound(report, trials, name):
    shape = trials.SHAPES[name]
    assert report.missed(every(shape), name) == []
    just = every(shape, share=shape.mean_max - 0.0001)
    assert report.missed(just, name) == []
    (said,) = report.missed(every(shape, share=shape.mean_max + 0.0005), name)
    assert "harmed on average" in said


def test_the_bound_is_that_of_seeds_not_their_mean(report, trials):
    shape = trials.SHAPES["unary"]
    rows = [each for seed in (1, 2) for each in every(shape, share=0.007 * seed - 0.003, seed=seed)]
    sums = report.totals(rows, shape)
    assert sums["mean"] == pytest.approx(0.0075)  # within
    assert sums["runs"] == 2
    (said,) = report.missed(rows, "unary")
    assert "upper 95 % bound" in said


def test_some_faults_alone_have_no_mean_to_judge(report):
    assert report.missed([row("crash", share=0.02)], "unary") == []


def test_in_streams_no_fault_may_harm_many_on_average_over_seeds(report):
    rows = [row("slow", share=0.04, seed=1), row("slow", share=0.02, seed=2)]
    assert report.missed(rows, "stream") == ["slow: 3.00% harmed, more than 2.5%"]
    assert report.missed([row("slow", 0.03, seed=1), row("slow", 0.01, seed=2)], "stream") == []


@pytest.mark.parametrize("fault", ["wrong-10", "wrong, canaries only"])
def test_what_is_reported_apart_is_in_no_mean_and_no_bound(report, trials, fault):
    rows = [*every(trials.SHAPES["stream"]), row(fault, share=0.3)]
    assert report.totals(rows, trials.SHAPES["stream"])["mean"] == 0.0
    assert report.missed(rows, "stream") == []


@pytest.mark.parametrize(
    ("name", "more", "told"),
    [
        ("light", {"silently_short": 1}, "1 answers were short and did not say so"),
        ("pair", {"accused": ["m-3"]}, "accused m-3"),
        ("stream", {"right": False, "cause": "hung"}, "named hung, not x"),
        ("light", {"wrong_ended_s": 12.4}, "wrong answers until 12.4 s, later than 12 s"),
        ("unary", {"problem": "RuntimeError: no"}, "not run: RuntimeError: no"),
    ],
)
def test_each_miss_is_told_with_its_fault_and_seed(report, trials, name, more, told):
    fault = trials.SHAPES[name].counted[8]
    assert report.missed([row(fault, **more)], name) == [f"{fault} (seed 1, run 0): {told}"]


@pytest.mark.parametrize(
    ("name", "more"),
    [("unary", {"right": False}), ("light", {"wrong_ended_s": 12.0}), ("unary", {"named_s": None})],
)
def test_what_a_shape_does_not_judge_is_no_miss(report, name, more):
    assert report.missed([row("wrong", **more)], name) == []


def test_peers_are_judged_by_nobody_and_stand_beside(report, trials, capsys):
    shape = trials.SHAPES["unary"]
    peers = [each | {"gateway": "envoy"} for each in every(shape, share=0.2)]
    own = every(shape, share=0.001)
    assert report.missed([*own, *peers], "unary") == []
    report.show_own(own, "unary", 40.0, 20.0)
    absent = row("crash") | {"gateway": "sglang-router", "problem": "not installed"}
    report.show_peers([*own, *peers, absent], "unary")
    shown = capsys.readouterr().out
    assert "one run, so no bound" in shown
    assert "envoy" in shown
    assert "20.0%" in shown
    assert "sglang-router, crash (seed 1, run 0): not run: not installed" in shown


def test_the_closing_line_says_what_was_not_judged(report, trials):
    whole = every(trials.SHAPES["unary"])
    assert report.closing_line(whole, "unary", []) == "every bound that was judged held"
    assert report.closing_line(whole, "unary", ["a", "b"]) == "2 bounds missed"
    assert "the mean was not judged" in report.closing_line(whole[:3], "unary", [])
    assert report.closing_line([], "unary", []) == "nothing is judged without Holdfast"
