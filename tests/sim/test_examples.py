"""Every example loads and runs, and shows what its header says it shows."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.sim.experiment import Experiment
from holdfast.sim.run import run_experiment
from holdfast.sim.scenario import Scenario, prepare, read_scenario

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FILES = sorted(path.name for path in EXAMPLES.glob("*.yaml"))
SHORT_S = 15.0


def scenario(name: str) -> Scenario:
    return read_scenario(EXAMPLES / name)


def variants(of: Scenario) -> dict[str, Experiment]:
    return dict(prepare(of, 1).variants)


def until(of: Scenario, duration_s: float) -> Scenario:
    return of.model_copy(update={"duration": duration_s})


def shortened(of: Scenario) -> Scenario:
    """The same story told faster: the faults keep their place in it."""
    pace = SHORT_S / of.duration
    faults = [
        fault.model_copy(
            update={
                "at": fault.at * pace,
                "until": None if fault.until is None else fault.until * pace,
            }
        )
        for fault in of.faults
    ]
    return of.model_copy(update={"duration": SHORT_S, "faults": faults})


def run_all(spread: Any, of: Scenario, *, audit: bool = False) -> dict[str, dict[str, Any]]:
    setups = variants(of)
    runs = spread(partial(run_experiment, audit=audit), [(setup, 1) for setup in setups.values()])
    return dict(zip(setups, runs, strict=True))


def test_there_are_examples():
    assert {"first.yaml", "partial-outage.yaml"} <= set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_an_example_begins_with_what_it_shows(name):
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert scenario(name).description


@pytest.mark.parametrize("name", FILES)
def test_an_example_runs_under_audit(spread, name):
    for account in run_all(spread, shortened(scenario(name)), audit=True).values():
        total = account["total"]
        ended = total["wrong"] + total["refused"] + total["failed"]
        assert total["offered"] > 0
        assert round(total["goodput"] * total["offered"]) + ended == total["offered"]


def test_a_replica_that_hangs_is_noticed_and_nobody_fails(spread):
    account = run_all(spread, scenario("first.yaml"))["holdfast"]
    assert account["total"]["goodput"] == 1.0
    (seen,) = account["detections"]
    assert seen["time_to_detect_s"] < 5.0


def test_a_naive_client_burns_far_more_in_a_partial_outage(spread):
    runs = run_all(spread, until(scenario("partial-outage.yaml"), 200.0))
    wasted = {name: run["phases"]["during"]["wasted_calls"] for name, run in runs.items()}
    assert wasted["naive retry"] > 10 * wasted["holdfast"]


def test_streams_of_a_lost_zone_go_on_elsewhere(spread):
    runs = run_all(spread, until(scenario("zone-loss.yaml"), 90.0))
    failed = {name: run["total"]["failed"] for name, run in runs.items()}
    assert failed["holdfast"] <= 3
    assert failed["no continuation"] >= 20


def test_a_slow_fleet_ejects_nobody_and_retries_nothing(spread):
    account = run_all(spread, scenario("slow-fleet.yaml"))["holdfast"]
    assert account["ejected"] == 0
    assert account["total"]["goodput"] == 1.0
    assert account["total"]["amplification"] < 1.01


def test_hedging_helps_where_routing_is_blind_and_hardly_elsewhere(spread):
    runs = run_all(spread, until(scenario("hedging.yaml"), 120.0))
    p99 = {name: run["phases"]["during"]["first_token_s"]["p99"] for name, run in runs.items()}
    assert p99["blind, hedged"] < p99["blind routing"] / 2
    assert p99["hedged"] > p99["holdfast"] * 0.8
    assert runs["hedged"]["total"]["amplification"] < 1.06


def test_a_ladder_keeps_first_tokens_within_their_promise(spread):
    runs = run_all(spread, scenario("degrade.yaml"))
    attained = {name: run["total"]["slo_attainment"] for name, run in runs.items()}
    assert attained["holdfast"] > 0.95
    assert attained["no ladder"] < 0.8
    assert runs["holdfast"]["total"]["degraded"] > 0 == runs["no ladder"]["total"]["degraded"]


def test_loading_one_by_one_refuses_nobody_where_loading_at_once_does(spread):
    (setup,) = variants(scenario("cold-start.yaml")).values()
    at_once = replace(setup, loading=replace(setup.loading, parallel_max=0))
    one_by_one, together = spread(run_experiment, [(setup, 1), (at_once, 1)])
    assert one_by_one["total"]["refused"] == 0
    assert together["total"]["refused"] > 100
