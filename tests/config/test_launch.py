"""Launched models: what is read, and what is refused with line, field and fix."""

from pathlib import Path

import pytest
from fleet_file_stage import PLAIN, read, refused

from holdfast.config.files import load
from holdfast.config.fleet_file import FleetFile
from holdfast.config.launch import REPLICAS_MAX, LaunchSection

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "serving" / "launch.yaml"


def model(engine: str = "vllm", *launch: str, more: str = "") -> str:
    """A file of one launched model; the first key below launch stands on line 5."""
    keys = "".join(f"      {line}\n" for line in launch)
    return f"models:\n  - name: m\n    engine: {engine}\n    launch:\n{keys}{more}"


def launch_of(file: FleetFile) -> LaunchSection:
    launch = file.models[0].launch
    assert launch is not None
    return launch


def test_weights_are_enough(tmp_path):
    file = read(tmp_path, model("vllm", "weights: /models/llama"))
    launch = launch_of(file)
    assert launch == LaunchSection(weights="/models/llama")
    assert (launch.replicas, launch.zones, launch.region) == (1, ["zone-a"], "region-a")
    assert file.replicas() == []


def test_everything_said_is_there(tmp_path):
    text = model(
        "sglang",
        "weights: org/big",
        "replicas: 4",
        "zones: [a, b]",
        "region: r",
        "arguments: [--trust-remote-code, '']",
        "environment: {WHERE: 'at {device}', NCCL_DEBUG: INFO}",
        "tensor_parallel: 2",
        "pipeline_parallel: 3",
        "gpus: 8",
        "gpu_share: 0.5",
        "context: 8192",
        "quantisation: fp8",
        "memory_fraction: 0.85",
        "slots: 64",
        "threads: 8",
    )
    assert launch_of(read(tmp_path, text)) == LaunchSection(
        weights="org/big",
        replicas=4,
        zones=["a", "b"],
        region="r",
        arguments=["--trust-remote-code", ""],
        environment={"WHERE": "at {device}", "NCCL_DEBUG": "INFO"},
        tensor_parallel=2,
        pipeline_parallel=3,
        gpus=8,
        gpu_share=0.5,
        context=8192,
        quantisation="fp8",
        memory_fraction=0.85,
        slots=64,
        threads=8,
    )


def test_a_command_needs_no_weights_and_may_serve_any_protocol(tmp_path):
    command = "command: [serve, --port, '{port}']"
    for engine in ("openai", "triton"):
        launch = launch_of(read(tmp_path, model(engine, command)))
        assert launch.command == ["serve", "--port", "{port}"]


def test_devices_may_be_told_under_any_name_where_gpus_are_chosen(tmp_path):
    names = "environment: {CUDA_VISIBLE_DEVICES: '{device}', NVIDIA_VISIBLE_DEVICES: '{device}'}"
    launch = launch_of(read(tmp_path, model("vllm", "weights: w", "gpus: 1", names)))
    assert launch.environment["NVIDIA_VISIBLE_DEVICES"] == "{device}"


def test_the_example_starts_three_replicas_in_two_zones():
    file = load(EXAMPLE, FleetFile)
    (section,) = file.models
    launch = launch_of(file)
    assert (section.name, section.engine, launch.embedded) == ("smollm2", "llamacpp", True)
    assert (launch.replicas, len(launch.zones), launch.slots, launch.threads) == (3, 2, 2, 1)
    assert file.replicas() == []
    assert FleetFile.from_json(file.to_json()) == file


def test_what_replicas_are_started_with_is_not_in_a_print(tmp_path):
    file = read(tmp_path, model("vllm", "weights: w", "environment: {HTTPS_PROXY: planted}"))
    assert "planted" not in repr(file)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            model("vllm", "replicas: 2"),
            (
                "fleet.yaml:4: models[0].launch.weights: is missing; name a file, a directory or "
                "a model that the engine can load"
            ),
        ),
        (
            model("openai", "weights: w"),
            (
                "fleet.yaml:4: models[0].launch.command: is missing: openai is a protocol, no "
                "program; give the command that starts one, or name the engine it is"
            ),
        ),
        (
            model("openai", "command: ['', x]"),
            "fleet.yaml:5: models[0].launch.command[0]: is empty; begin with the program to run",
        ),
        (
            model("vllm", "weights: w", "embedded: true"),
            (
                "fleet.yaml:6: models[0].launch.embedded: is set for vllm, which has none; "
                "remove it, or use engine: llamacpp"
            ),
        ),
        (
            model("llamacpp", "embedded: true", "command: [llama-server]"),
            "fleet.yaml:6: models[0].launch.command: is set beside embedded; remove one of the two",
        ),
        (
            model("vllm", "weights: w", "zones: [a, b, a]"),
            "fleet.yaml:6: models[0].launch.zones[2]: is 'a', as that of zones[0]; list each zone",
        ),
        (
            model("vllm", "weights: w", "zones: []"),
            "fleet.yaml:6: models[0].launch.zones: has 0 items; use at least 1",
        ),
        (
            model("vllm", "weights: w", f"replicas: {REPLICAS_MAX + 1}"),
            "fleet.yaml:6: models[0].launch.replicas: must be at most 256 (is 257); use a number",
        ),
        (
            model("vllm", "weights: w", "memory_fraction: 1.5"),
            "fleet.yaml:6: models[0].launch.memory_fraction: must be at most 1 (is 1.5); use a",
        ),
        (
            model("vllm", "weights: w", "tensor_parallel: 0"),
            "fleet.yaml:6: models[0].launch.tensor_parallel: must be at least 1 (is 0); use",
        ),
        (
            model("vllm", "weights: w", "gpus: 65"),
            "fleet.yaml:6: models[0].launch.gpus: must be at most 64 (is 65); use",
        ),
        (
            model("vllm", "weights: w", "tensor_parallel: 4", "gpus: 2"),
            (
                "fleet.yaml:7: models[0].launch.gpus: is 2, and tensor_parallel times "
                "pipeline_parallel is 4; use 4 or more, or lower those two"
            ),
        ),
        (
            model("vllm", "weights: w", "gpu_share: 0"),
            "fleet.yaml:6: models[0].launch.gpu_share: must be greater than 0 (is 0)",
        ),
        (
            model("vllm", "weights: w", "gpus: 0", "gpu_share: 0.5"),
            (
                "fleet.yaml:7: models[0].launch.gpu_share: is set, and gpus is 0; remove it, or "
                "give gpus the number of devices of one replica"
            ),
        ),
        (
            model("vllm", "weights: w", "gpus: 1", "environment: {CUDA_VISIBLE_DEVICES: '0'}"),
            (
                "fleet.yaml:7: models[0].launch.environment.CUDA_VISIBLE_DEVICES: is set beside "
                "gpus; remove one of the two: gpus chooses by itself"
            ),
        ),
        (
            model("openai", "command: [docker, run, '--gpus=device={device}']"),
            (
                "fleet.yaml:5: models[0].launch.command[2]: has {device}, and gpus is not set; "
                "set gpus to the number of devices of one replica, or remove the place"
            ),
        ),
        (
            model("vllm", "weights: w", "environment: {NVIDIA_VISIBLE_DEVICES: '{device}'}"),
            (
                "fleet.yaml:6: models[0].launch.environment.NVIDIA_VISIBLE_DEVICES: has {device}, "
                "and gpus is not set"
            ),
        ),
        (
            model("vllm", "weights: w", "arguments: --all"),
            "fleet.yaml:6: models[0].launch.arguments: must be a list (is '--all'); use lines",
        ),
        (
            model("vllm", "weights: w", 'arguments: ["a\\0b"]'),
            "fleet.yaml:6: models[0].launch.arguments[0]: does not fit",
        ),
        (
            model("vllm", "weights: w", "environment: {A B: x}"),
            "fleet.yaml:6: models[0].launch.environment.'A B': does not fit",
        ),
        (
            model("vllm", "weights: w", "environment: {DEPTH: 3}"),
            "fleet.yaml:6: models[0].launch.environment.DEPTH: must be text (is 3); use text, in",
        ),
        (
            model("vllm", "weights: w", "environment: 3"),
            "fleet.yaml:6: models[0].launch.environment: must be a mapping (is 3); indent",
        ),
        (
            model("vllm", "weights: w", "replica: 2"),
            "fleet.yaml:6: models[0].launch.replica: is not a known key; did you mean 'replicas'?",
        ),
        (
            model("vllm", "weights: w", more="    endpoints: [http://a:1]\n"),
            (
                "fleet.yaml:6: models[0].endpoints: is set beside launch; keep one: 'endpoints' "
                "for replicas that run already, 'launch' to start them"
            ),
        ),
        (
            model("vllm", "weights: w", more="    scaling: {min: 2, max: 4}\n"),
            (
                "fleet.yaml:4: models[0].launch.replicas: is 1, outside of what scaling allows; "
                "begin with 2 to 4"
            ),
        ),
        (
            model("vllm", "weights: w", "replicas: 5", more="    scaling: {min: 2, max: 4}\n"),
            "fleet.yaml:6: models[0].launch.replicas: is 5, outside of what scaling allows; begin",
        ),
    ],
)
def test_a_bad_launch_is_refused_where_it_stands(tmp_path, text, told):
    assert refused(tmp_path, text).startswith(told)


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "VLLM_API_KEY", "AWS_SECRET_ACCESS_KEY", "PASSWORD", "aws_credentials", "APIKEY"],
)
def test_a_secret_is_refused_and_not_repeated(tmp_path, name):
    said = refused(tmp_path, model("vllm", "weights: w", f"environment: {{{name}: {PLAIN}}}"))
    told = f"models[0].launch.environment: variable {name} is, by its name, a secret; set it where"
    assert said.startswith(f"fleet.yaml:6: {told}")
    assert PLAIN not in said


def test_a_secret_is_passed_on_by_its_name_alone(tmp_path):
    text = model("vllm", "weights: w", "pass_env: [HF_TOKEN, MY_KEY]")
    assert launch_of(read(tmp_path, text)).pass_env == ["HF_TOKEN", "MY_KEY"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("pass_env: [HF_TOKEN=x]", "models[0].launch.pass_env[0]: does not fit"),
        ("pass_env: [A]\n      environment: {A: b}", "models[0].launch.pass_env[0]: is 'A', as in"),
    ],
)
def test_a_variable_to_pass_on_is_a_name_with_one_value(tmp_path, text, told):
    assert refused(tmp_path, model("vllm", "weights: w", text)).startswith(f"fleet.yaml:6: {told}")


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "KEYBOARD", "OMP_NUM_THREADS", "MONKEY"]
)
def test_what_is_only_spelt_like_a_secret_passes(tmp_path, name):
    text = model("vllm", "weights: w", f"environment: {{{name}: x}}")
    assert launch_of(read(tmp_path, text)).environment == {name: "x"}
