import json

import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.loadtest.records import BenchFile, BenchOutcome, BenchRecord, BenchStep, save
from holdfast.twin.twin_file import TwinModel, new_twin_file, read_twin
from twin_data import FLEET, LAW, measured


@pytest.fixture
def run(monkeypatch, tmp_path):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "fleet.yaml").write_text(FLEET)

    def invoke(*arguments):
        return CliRunner().invoke(main, ["twin", *arguments], prog_name="holdfast")

    return invoke


def bench(path, count=60, **changes):
    records = [
        BenchRecord(
            step=0,
            arrived_s=one.arrived_s,
            first_s=one.first_s,
            last_s=one.last_s,
            ended_s=one.last_s,
            prompt_tokens=one.prompt,
            output_tokens=one.output,
            replica=one.replica,
            status=200,
        )
        for one in measured(LAW, 5.0, count)
    ]
    records.append(BenchRecord(step=0, arrived_s=1.0, outcome=BenchOutcome.FAILURE, status=500))
    step = BenchStep(name="5 requests/s", mode="open", rate=5.0)
    made = {"model": "llama", "steps": (step,), "requests": tuple(records), **changes}
    save(BenchFile(**made), path)


@pytest.fixture
def twin(tmp_path):
    (tmp_path / "twin.json").write_text(
        new_twin_file({"llama": TwinModel(engine=LAW, limits=["seen little"])}, "test").to_json()
    )
    return ("-c", "fleet.yaml", "--twin", "twin.json", "--jobs", "1", "--seeds", "2")


CALM = ("--rate", "3", "--prompt", "100", "--output-tokens", "20", "--duration", "20s")


def test_calibrate_writes_what_it_fitted_and_says_how_well(run, tmp_path):
    bench(tmp_path / "bench.json")
    told = run("calibrate", "bench.json", "-c", "fleet.yaml", "--cold-start", "12")
    assert told.exit_code == 0, told.output
    assert "error on held-out requests" in told.stdout
    model = read_twin(tmp_path / "twin.json").models["llama"]
    assert model.engine.step_ms == pytest.approx(12.0, rel=0.2)
    assert model.engine.batch_max == 8  # slots of the fleet file
    assert (model.cold_start_s, model.source.left_out, model.per_host) == (12.0, 1, 3)
    again = run("calibrate", "bench.json", "--model", "other", "--json")
    assert json.loads(again.stdout)["model"] == "other"
    assert set(read_twin(tmp_path / "twin.json").models) == {"llama", "other"}  # none is lost


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"requests": ()}, "has no answered request"),
        ({"model": ""}, "model: is not named in the benchmark; give --model"),
    ],
)
def test_a_benchmark_that_cannot_be_fitted_is_refused(run, tmp_path, change, told):
    bench(tmp_path / "bench.json", **change)
    refused = run("calibrate", "bench.json")
    assert refused.exit_code == 2
    assert told in refused.stderr
    assert not (tmp_path / "twin.json").exists()


def test_negative_lengths_and_other_files_get_a_plain_answer(run, tmp_path):
    bench(tmp_path / "bench.json")
    text = (tmp_path / "bench.json").read_text()
    damaged = json.loads(text)
    damaged["requests"][3]["prompt_tokens"] = -7
    (tmp_path / "bench.json").write_text(json.dumps(damaged))
    refused = run("calibrate", "bench.json")
    assert (refused.exit_code, "requests[3].prompt: is -7 tokens" in refused.stderr) == (2, True)
    assert "is no file of a benchmark" in run("calibrate", "fleet.yaml").stderr
    assert "few" not in run("calibrate", "none.json").stderr
    bench(tmp_path / "bench.json", count=20)
    assert "has 20 answered requests" in run("calibrate", "bench.json").stderr
    bench(tmp_path / "bench.json")
    refused = run("calibrate", "bench.json", "-c", "fleet.yaml", "--model", "mistral")
    assert "'mistral' is not in the fleet file; use one of llama" in refused.stderr


def test_what_if_tells_differences_intervals_and_the_diff(run, twin):
    told = run("what-if", *twin, *CALM, "--replicas", "3", "--no-diagnosis")
    assert told.exit_code == 0, told.output
    assert "95 % interval" in told.stdout
    assert "+      replicas: 3" in told.stdout
    assert "seen little" in told.stdout
    long = (*CALM, "--duration", "60s", "--seeds", "1")
    told = run("what-if", *twin, *long, "--fault", "hang:llama-1@10s+30s", "--json")
    answer = json.loads(told.stdout)
    assert {one["cause"] for one in answer["incidents"]["after"]} == {"hung"}
    assert answer["incidents"]["before"] == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "change: is missing: nothing would differ"),
        (("--replicas", "0"), "--replicas: is 0: nobody would answer; use 1 or more"),
        (("--routing", "nope"), "models[0].routing: is 'nope'; use one of"),
        (("--traffic", "-2"), "traffic: is -2; use 0.01 to 100 times"),
        (("--set", "replicas"), "--set: is 'replicas'; write KEY=VALUE"),
        (("--set", "models.x.routing=a"), "models.x: is not in the file; use one of llama"),
        (("--fault", "hang@x"), "--fault: is 'x'; use seconds"),
        (("--fault", "!"), "--fault: is '!'; write KIND:REPLICA@START+LENGTH"),
        (("--fault", "sing:llama-1"), "fault.kind: is 'sing'; use one of crash"),
        (("--fault", "hang:nobody"), "fault.target: is 'nobody', which the fleet does not have"),
        (("--lose-zone", "mars"), "fault.target: is 'mars'"),
        (("--ladder", "llama"), "virtual"),
        (("--give-up", "quality"), "--give-up: is set without --ladder"),
        (("--replicas", "3", "--model", "x"), "model: 'x' is not in the fleet file"),
        (("--replicas", "3", "--slo-ttft", "soon"), "--slo-ttft: is 'soon'; use seconds"),
    ],
)
def test_a_bad_question_is_answered_with_field_and_fix(run, twin, arguments, told):
    refused = run("what-if", *twin, *CALM, *arguments)
    assert refused.exit_code == 2, refused.output
    assert told in refused.stderr


def test_without_a_fleet_or_traffic_the_answer_is_plain(run, twin, tmp_path):
    assert "name a fleet file with -c" in run("what-if", "--replicas", "3").stderr
    refused = run("what-if", "-c", "fleet.yaml", "--replicas", "3")
    assert "traffic" in refused.stderr
    refused = run("what-if", "-c", "fleet.yaml", "--replicas", "3", "--rate", "2")
    assert "models.llama: has no fitted engine" in refused.stderr
    bad = tmp_path / "trace.jsonl"
    bad.write_text('{"timestamp": 0, "input_length": -5, "output_length": 3}\n')
    refused = run(
        "what-if", *twin, "--trace", "trace.jsonl", "--duration", "10s", "--replicas", "3"
    )
    assert (refused.exit_code, "line 1 of trace.jsonl" in refused.stderr) == (2, True)


def test_a_sweep_lists_versions_and_draws_them(run, twin, tmp_path):
    told = run(
        *("sweep", *twin, *CALM, "--no-diagnosis", "--vary", "replicas=1..2"),
        *("--vary", "hedge=true,false", "--plot", "sweep.svg"),
    )
    assert told.exit_code == 0, told.output
    assert "4 versions" in told.stdout
    picture = (tmp_path / "sweep.svg").read_text()
    assert "cost, USD an hour" in picture
    assert "first token, 99 %, s" in picture
    assert "replicas=1" in picture


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--vary", "replicas"), "--vary: is 'replicas'; write replicas=2..6"),
        (("--vary", "replicas=0..2"), "--vary replicas: has 0; use 1 or more"),
        (("--vary", "replicas=5..2"), "write the lower number first"),
        (("--vary", "replicas=2", "--plot", "x.gif"), "another ending than .svg or .png"),
        (("--vary", "traffic=much"), "traffic: is 'much'; use numbers"),
    ],
)
def test_a_bad_sweep_is_refused(run, twin, arguments, told):
    refused = run("sweep", *twin, *CALM, *arguments)
    assert refused.exit_code == 2, refused.output
    assert told in refused.stderr


def test_an_autoscaler_is_tried_and_its_keys_are_in_the_diff(run, twin):
    told = run("what-if", *twin, *CALM, "--autoscale", "1..3", "--no-diagnosis")
    assert told.exit_code == 0, told.output
    assert "+    scaling: {min: 1, max: 3}" in told.output
    assert "replicas, mean" in told.output
    assert "its autoscaler decides as in the fleet, 1 to 3 replicas" in " ".join(
        told.output.split()
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("2-6", "--autoscale: is '2-6'; write MIN..MAX, such as 2..6; or off"),
        ("5..6", "outside of what scaling allows"),
        ("6..2", "scaling.max"),
    ],
)
def test_bad_bounds_of_an_autoscaler_are_told(run, twin, given, said):
    told = run("what-if", *twin, *CALM, "--autoscale", given)
    assert told.exit_code != 0
    assert said in told.output
