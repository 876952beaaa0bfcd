"""A scenario file becomes setups, or an error that names file, line, field and fix."""

import json
from pathlib import Path
from textwrap import dedent

import pytest

from holdfast.config.document import ConfigFileError
from holdfast.core.plan.faults import FaultKind
from holdfast.core.types import ConfigError, Priority, nanos
from holdfast.sim.run import run_experiment
from holdfast.sim.scenario import PreparedScenario, prepare, read_scenario

EXAMPLES = Path(__file__).parents[2] / "examples"

GOOD = """\
name: two models
description: a large one and a small one
duration: 2m
models:
  - name: large
    revision: "7"
    replicas: 3
    zones: [east, west]
    region: here
    slots: 16
    engine: {step_ms: 20, batch_max: 16}
    workload:
      rate: 5
      pattern: bursts
      peak: 4
      period_s: 1m
      burst_s: 5s
      prompt: {mean: 300, law: exponential}
      tenants:
        - {name: people, share: 3}
        - {name: nightly, batch: true}
  - name: small
    replicas: 2
loading: {size_gb: 4, parallel_max: 2}
slo: {first_token_s: 500ms}
warm: false
poll: 0
canaries: false
flow:
  lane: {routing: zone_preference, routing_options: {zone: east, inner: weighted}}
  retry: {attempts: 3}
  degrade:
    - {ladder: [large, small]}
fleet:
  health: {canary_s: 2s, canary_suspect_s: 1s}
faults:
  - {kind: slow, target: large-1, at: 10s, until: 1m, factor: 3}
  - {kind: zone_loss, target: west, at: 1m}
variants:
  - name: plain
    canaries: true
    flow: {lane: {routing: round_robin}}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(dedent(text))
    return path


def prepared(folder: Path, text: str, seed: int = 0) -> PreparedScenario:
    return prepare(read_scenario(written(folder, text)), seed)


def refused(folder: Path, text: str) -> str:
    with pytest.raises(ConfigFileError) as caught:
        read_scenario(written(folder, text))
    return str(caught.value).replace(f"{folder}/", "")


# --- what is read ---------------------------------------------------------------------------------


def test_everything_in_the_file_reaches_the_setup(tmp_path: Path) -> None:
    experiment = prepared(tmp_path, GOOD)
    assert (experiment.name, experiment.description[:7]) == ("two models", "a large")
    (name, setup), _ = experiment.variants
    assert name == "holdfast"
    assert setup.duration_s == 120.0
    members = [(r.id, r.model, r.revision, r.zone, r.region, r.slots) for r in setup.replicas]
    assert members[:3] == [
        ("large-0", "large", "7", "east", "here", 16),
        ("large-1", "large", "7", "west", "here", 16),
        ("large-2", "large", "7", "east", "here", 16),
    ]
    assert members[3:] == [
        ("small-0", "small", "1", "zone-a", "region-a", 0),
        ("small-1", "small", "1", "zone-a", "region-a", 0),
    ]
    ((model, workload),) = setup.workloads
    assert (model, workload.rate, workload.period_s, workload.burst_s) == ("large", 5.0, 60.0, 5.0)
    assert workload.prompt.law == "exponential"
    assert [(t.name, t.share, t.priority) for t in workload.tenants] == [
        ("people", 3.0, Priority.INTERACTIVE),
        ("nightly", 1.0, Priority.BATCH),
    ]
    assert dict(setup.engines)["large"].step_ms == 20.0
    assert dict(setup.engines)["small"].step_ms == 13.0
    assert (setup.loading.size_gb, setup.loading.parallel_max) == (4.0, 2)
    assert setup.slo.first_token_s == 0.5
    assert (setup.warm, setup.poll_s, setup.canaries) == (False, 0.0, False)
    assert setup.flow.retry.attempts == 3
    assert setup.flow.lane.routing_options == {"zone": "east", "inner": "weighted"}
    assert setup.fleet.health.canary_s == 2.0


def test_faults_are_read_in_the_units_people_write(tmp_path: Path) -> None:
    setup = prepared(tmp_path, GOOD).variants[0][1]
    slow, loss = setup.faults.faults
    assert (slow.kind, slow.target, slow.factor) == (FaultKind.SLOW, "large-1", 3.0)
    assert (slow.at, slow.until) == (nanos(10.0), nanos(60.0))
    assert (loss.kind, loss.target, loss.at, loss.until) == (
        FaultKind.ZONE_LOSS,
        "west",
        nanos(60.0),
        None,
    )


def test_a_variant_has_other_policies_and_the_same_everything_else(tmp_path: Path) -> None:
    (_, base), (name, variant) = prepared(tmp_path, GOOD).variants
    assert name == "plain"
    assert variant.flow.lane.routing == "round_robin"
    assert variant.canaries
    assert not base.canaries
    for same in ("replicas", "workloads", "engines", "loading", "slo", "warm", "duration_s"):
        assert getattr(variant, same) == getattr(base, same)
    assert variant.faults.faults == base.faults.faults


def test_the_least_that_can_be_written_has_sensible_defaults(tmp_path: Path) -> None:
    setup = prepared(tmp_path, "name: small\nmodels: [{workload: {}}]\n").variants[0][1]
    assert len(setup.replicas) == 8
    assert setup.duration_s == 60.0
    assert setup.warm
    assert setup.canaries
    assert len(setup.faults) == 0


def test_the_setup_of_a_file_runs(tmp_path: Path) -> None:
    text = GOOD.replace("duration: 2m", "duration: 20s").replace("at: 1m", "at: 15s")
    for _, setup in prepared(tmp_path, text).variants:
        account = run_experiment(setup, 1, audit=True)
        assert account["total"]["offered"] > 50


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples_are_good_scenarios(path: Path) -> None:
    scenario = read_scenario(path)
    assert prepare(scenario, 0).variants[0][0] == "holdfast"


def test_there_are_examples() -> None:
    assert (EXAMPLES / "partial-outage.yaml").is_file()


def test_a_trace_is_looked_for_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text(
        '{"timestamp": 0, "input_length": 5, "output_length": 2}\n'
    )
    text = "name: replay\nduration: 2s\nmodels: [{workload: {trace: trace.jsonl}}, {name: b}]\n"
    setup = prepared(tmp_path, text).variants[0][1]
    ((_, workload),) = setup.workloads
    assert workload.trace == str(tmp_path / "trace.jsonl")
    assert run_experiment(setup, 1)["total"]["offered"] == 1


def test_engines_with_a_prefix_cache_tell_what_was_reused(tmp_path: Path) -> None:
    rows = [
        {"timestamp": at, "input_length": 1500, "output_length": 5, "hash_ids": [1, 2, 3 + at]}
        for at in (0, 3000, 6000)
    ]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    (tmp_path / "trace.jsonl").write_text(lines, encoding="utf-8")
    text = (
        "name: replay\nduration: 8s\nmodels:\n"
        "- {replicas: 1, engine: {kv_block_tokens: %d}, workload: {trace: trace.jsonl}}\n"
    )
    cached = run_experiment(prepared(tmp_path, text % 512).variants[0][1], 1)
    assert cached["prefix_reuse"] == pytest.approx(4 / 9)  # two of three blocks, twice
    plain = run_experiment(prepared(tmp_path, text % 0).variants[0][1], 1)
    assert plain["prefix_reuse"] is None
    means = [account["total"]["first_token_s"]["mean"] for account in (cached, plain)]
    assert means[0] < 0.7 * means[1]


def test_a_trace_that_is_not_there_is_named_when_the_run_begins(tmp_path: Path) -> None:
    text = "name: replay\nmodels: [{workload: {trace: lost.csv}}]\n"
    setup = prepared(tmp_path, text).variants[0][1]
    with pytest.raises(ConfigError, match=r"workload\.trace: .*lost\.csv cannot be read"):
        run_experiment(setup, 1)


# --- random faults --------------------------------------------------------------------------------

RANDOM = """\
name: chaos
duration: 10m
models: [{replicas: 6, workload: {}}]
faults: [{kind: hang, target: model-1, at: 1m}]
random_faults: {rate_per_replica_hour: 20, shortest: 5s, longest: 30s, affected_share_max: 0.5}
variants: [{name: other}]
"""


def test_random_faults_are_a_function_of_the_seed(tmp_path: Path) -> None:
    scenario = read_scenario(written(tmp_path, RANDOM))

    def drawn(seed: int) -> list[str]:
        return prepare(scenario, seed).variants[0][1].faults.describe()

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert len(drawn(1)) > 5


def test_random_faults_come_on_top_of_those_written_down_and_for_every_variant(
    tmp_path: Path,
) -> None:
    (_, base), (_, other) = prepared(tmp_path, RANDOM, 3).variants
    assert base.faults.faults == other.faults.faults
    hang = [fault for fault in base.faults.faults if fault.at == nanos(60.0)]
    assert [fault.kind for fault in hang] == [FaultKind.HANG]
    drawn = [fault for fault in base.faults.faults if fault.at != nanos(60.0)]
    assert all(fault.until is not None for fault in drawn)


# --- what is refused ------------------------------------------------------------------------------

MODEL = "name: x\nmodels:\n  - name: m\n    replicas: 2\n    workload: {rate: 3}\n"  # five lines

REFUSED = {
    "an empty file": ("", "scenario.yaml:1: (file): is empty; start from one of the examples"),
    "a list": ("- a\n", "scenario.yaml:1: (top level): must be a mapping (is a list); use "),
    "no name": (MODEL.replace("name: x\n", ""), "scenario.yaml:1: name: is missing; add it"),
    "no models": ("name: x\n", "scenario.yaml:1: models: is missing; add models"),
    "an empty list of models": (
        "name: x\nmodels: []\n",
        "scenario.yaml:2: models: has 0 items; use at least 1",
    ),
    "an unknown key": (
        MODEL + "duraton: 3m\n",
        "scenario.yaml:6: duraton: is not a known key; did you mean 'duration'?",
    ),
    "an unknown key deep down": (
        MODEL.replace("{rate: 3}", "\n      rte: 3"),
        "scenario.yaml:6: models[0].workload.rte: is not a known key; did you mean 'rate'?",
    ),
    "a negative rate": (
        MODEL.replace("rate: 3", "rate: -3"),
        "scenario.yaml:5: models[0].workload.rate: is -3.0; use requests/s above 0",
    ),
    "text for a number": (
        MODEL.replace("replicas: 2", "replicas: two"),
        "scenario.yaml:4: models[0].replicas: must be a whole number (is 'two'); use replicas",
    ),
    "no replicas": (
        MODEL.replace("replicas: 2", "replicas: 0"),
        "scenario.yaml:4: models[0].replicas: must be at least 1 (is 0); use replicas",
    ),
    "a number for text": (
        MODEL.replace("name: m", "name: 5"),
        "scenario.yaml:3: models[0].name: must be text (is 5); use text, in quotes",
    ),
    "a duration without sense": (
        MODEL + "duration: soon\n",
        "scenario.yaml:6: duration: must be a duration (is 'soon'); use a number of seconds",
    ),
    "no duration": (
        MODEL + "duration: 0\n",
        "scenario.yaml:6: duration: must be greater than 0 (is 0); use seconds above 0",
    ),
    "the same name twice": (
        MODEL + "  - name: m\n",
        "scenario.yaml:2: models: repeats a name among m, m; name each once",
    ),
    "nobody asks": (
        "name: x\nmodels:\n  - {name: m}\n",
        "scenario.yaml:2: models: has no workload; give at least one model a workload",
    ),
    "a law that does not exist": (
        MODEL.replace("rate: 3", "prompt: {law: gamma}"),
        "scenario.yaml:5: models[0].workload.prompt.law: is 'gamma'; use constant, exponential",
    ),
    "an engine that stands still": (
        MODEL + "    engine: {step_ms: 0, per_sequence_ms: 0}\n",
        "scenario.yaml:6: models[0].engine.step_ms: is 0.0; a step must take time",
    ),
    "a bad fault kind": (
        MODEL + "faults:\n  - {kind: crush}\n",
        "scenario.yaml:7: faults[0].kind: is 'crush'; use one of crash, hang,",
    ),
    "an unknown replica": (
        MODEL + "faults:\n  - kind: crash\n    target: m-9\n",
        "scenario.yaml:8: faults[0].target: is 'm-9'; use one of m-0, m-1 or '*'",
    ),
    "a replica where a zone belongs": (
        MODEL + "faults:\n  - {kind: zone_loss, target: m-1}\n",
        "scenario.yaml:7: faults[0].target: is 'm-1'; use one of zone-a or '*'",
    ),
    "a fault that ends before it begins": (
        MODEL + "faults:\n  - kind: crash\n    at: 5s\n    until: 3s\n",
        "scenario.yaml:9: faults[0].until: is 3.0 s; use a time after fault.at, 5 s",
    ),
    "a fault before the beginning": (
        MODEL + "faults:\n  - {kind: crash, at: -1}\n",
        "scenario.yaml:7: faults[0].at: must be at least 0 (is -1); use seconds from the start",
    ),
    "a slow fault that is not slow": (
        MODEL + "faults:\n  - {kind: slow}\n",
        "scenario.yaml:7: faults[0].factor: is 1 for a slow fault; use a factor above 1",
    ),
    "a second fault that is wrong": (
        MODEL + "faults:\n  - {kind: crash}\n  - {kind: flaky, probability: 2}\n",
        "scenario.yaml:8: faults[1].probability: is 2.0; use a share in (0, 1]",
    ),
    "a tunable deep in a policy": (
        MODEL + "flow:\n  lane:\n    breaker:\n      window: 0\n",
        "scenario.yaml:9: flow.lane.breaker.window: is 0; use at least 1",
    ),
    "a relation deep in a policy": (
        MODEL + "flow:\n  lane:\n    breaker:\n      window: 5\n",
        "scenario.yaml:8: flow.lane.breaker.minimum: is 10; use 1 to 5, the breaker.window",
    ),
    "a tunable of a variant": (
        MODEL + "variants:\n  - name: v\n    fleet: {ramp_s: 0}\n",
        "scenario.yaml:8: variants[0].fleet.ramp_s: is 0.0; use seconds above 0",
    ),
    "an unknown routing policy": (
        MODEL + "flow:\n  lane:\n    routing: power_of_three\n",
        "scenario.yaml:8: flow.lane.routing: is 'power_of_three'; use one of power_of_two,",
    ),
    "an unknown routing policy of one lane of a variant": (
        MODEL + "variants:\n  - name: v\n    flow:\n      lanes:\n        m: {routing: best}\n",
        "scenario.yaml:10: variants[0].flow.lanes.m.routing: is 'best'; use one of power_of_two,",
    ),
    "an unknown setting of a routing policy": (
        MODEL + "flow:\n  lane:\n    routing_options: {chioces: 3}\n",
        "scenario.yaml:8: flow.lane.routing_options: power_of_two.chioces is no setting of this",
    ),
    "an unknown policy inside another": (
        MODEL + "flow: {lane: {routing: prefix_affinity, routing_options: {inner: best}}}\n",
        "scenario.yaml:6: flow.lane.routing_options: routing.policy is 'best'; use one of",
    ),
    "a setting that no policy can have": (
        MODEL + "flow: {lane: {routing_options: {rng: 1}}}\n",
        "scenario.yaml:6: flow.lane.routing_options: cannot be used (",
    ),
    "a lane of an unknown model": (
        MODEL + "flow:\n  lanes:\n    n: {routing: weighted}\n",
        "scenario.yaml:8: flow.lanes.n: is no model of this file; use one of m",
    ),
    "a ladder of unknown models": (
        MODEL + "flow:\n  degrade: [{ladder: [m, tiny]}]\n",
        "scenario.yaml:7: flow.degrade: names the model 'tiny'; use one of m",
    ),
    "random faults that are longer than long": (
        MODEL + "random_faults:\n  shortest: 2m\n",
        "scenario.yaml:7: random_faults.shortest: is 120 s; use at most random_faults.longest",
    ),
    "far too many random faults": (
        MODEL + "random_faults:\n  rate_per_replica_hour: 1e9\n",
        "scenario.yaml:7: random_faults.rate_per_replica_hour: asks for about",
    ),
    "a promise of no time": (
        MODEL + "slo:\n  latency_s: 0s\n",
        "scenario.yaml:7: slo.latency_s: is 0.0; use seconds above 0, or leave it out",
    ),
    "a store without bandwidth": (
        MODEL + "loading:\n  bandwidth_gb_per_s: 0\n",
        "scenario.yaml:7: loading.bandwidth_gb_per_s: is 0.0; use GB/s above 0",
    ),
    "yes for true": (
        MODEL + "warm: yes\n",
        "scenario.yaml:6: warm: must be true or false (is 'yes'); write true or false",
    ),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_bad_file_is_refused_with_line_field_and_fix(
    tmp_path: Path, text: str, message: str
) -> None:
    assert refused(tmp_path, text).startswith(message)


def test_the_model_of_the_bad_files_is_itself_good(tmp_path: Path) -> None:
    assert len(prepared(tmp_path, MODEL).variants[0][1].replicas) == 2


def test_all_that_is_wrong_is_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = MODEL.replace("rate: 3", "rate: -3") + "warm: yes\nfaults:\n  - {kind: crush}\n"
    lines = refused(tmp_path, text).splitlines()
    assert [line.split(": ")[0] for line in lines] == [f"scenario.yaml:{n}" for n in (5, 6, 8)]


def test_only_a_few_names_are_listed(tmp_path: Path) -> None:
    text = MODEL.replace("replicas: 2", "replicas: 500") + "faults: [{kind: oom, target: q}]\n"
    assert refused(tmp_path, text).endswith("use one of m-0, m-1, m-2, m-3, m-4, m-5, … or '*'")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match="does not exist; check the path"):
        read_scenario(tmp_path / "nothing.yaml")


REGIONS = """
name: two regions
duration: 60s
models:
  - name: m
    replicas: 8
    zones: [a, b]
    regions: [east, west]
    workload: {rate: 2}
faults:
  - {kind: region_loss, target: east, at: 20s, until: 40s}
"""


def test_a_model_may_have_several_regions_and_lose_one(tmp_path: Path) -> None:
    setup = prepared(tmp_path, REGIONS).variants[0][1]
    regions = [replica.region for replica in setup.replicas]
    assert (regions.count("east"), regions.count("west")) == (4, 4)
    assert {replica.zone for replica in setup.replicas} == {"east/a", "east/b", "west/a", "west/b"}
    (loss,) = setup.faults.faults
    hit = [r.id for r in setup.replicas if loss.touches(r.id, r.zone, r.region)]
    assert hit == ["m-0", "m-2", "m-4", "m-6"]


def test_the_rest_answers_while_a_region_is_lost(tmp_path: Path) -> None:
    setup = prepared(tmp_path, REGIONS).variants[0][1]
    during = run_experiment(setup, 1)["phases"]["during"]
    assert during["goodput"] > 0.9


def test_a_region_that_nobody_is_in_cannot_be_lost(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match="use one of east, west"):
        prepared(tmp_path, REGIONS.replace("target: east", "target: north"))
