"""``holdfast bench`` of a model of the fleet that runs: by replica, and with fewer in service."""

import json

import pytest
from click.testing import CliRunner

from holdfast.cli import main

LOAD = ("--users", "2", "--shape", "fixed", "--prompt", "20", "--output", "8", "--warmup", "0.1")
SHORT = (*LOAD, "--duration", "0.8", "--late-max", "10000", "--no-files", "--json")


@pytest.fixture(scope="module")
def stage(ops, tmp_path_factory):
    """Two stand-ins behind one gateway."""
    made = ops.Stage(tmp_path_factory.mktemp("bench"), workers=1)
    try:
        made.open()
        yield made
    finally:
        made.close()


def bench(stage, *arguments):
    words = ("bench", "m", "-c", str(stage.config), *SHORT, *arguments)
    return CliRunner().invoke(main, words, prog_name="holdfast")


def states(stage):
    return [row["state"] for row in stage.status()["replicas"]]


def test_answers_are_told_by_replica_and_gpus_are_unknown(stage):
    result = bench(stage)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    (load,) = told["loads"]
    assert {own["replica"] for own in load["by_replica"]} <= {"m-1", "m-2"}
    assert load["by_replica"]
    assert "GPU" in told["gpus_why"]
    assert all(own["gpu_busy"] is None for own in load["by_replica"])


def test_the_others_are_drained_meanwhile_and_back_at_the_end(stage):
    result = bench(stage, "--scale", "1,2")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    by_count = {load["replicas"]: load for load in told["loads"]}
    assert len(by_count[1]["by_replica"]) == 1
    assert [row["replicas"] for row in told["scaling"]] == [1, 2]
    assert set(states(stage)) == {"ready"}


def test_more_replicas_than_there_are_get_a_plain_answer(stage):
    result = bench(stage, "--scale", "3")
    assert result.exit_code == 1
    assert "3 replicas of m are wanted, and 2 are in service" in result.output
    assert set(states(stage)) == {"ready"}
