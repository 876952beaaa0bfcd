from dataclasses import replace

import pytest

from holdfast.core.types import ConfigError
from holdfast.engines import DIALECTS, dialect
from holdfast.engines.launch_command import (
    LaunchSpec,
    command_line,
    environment,
    fill_device,
    substitute,
)

PLAIN = LaunchSpec(weights="/weights/m", served_as="m", host="127.0.0.1", port=9001)
FULL = replace(
    PLAIN,
    tensor_parallel=4,
    pipeline_parallel=2,
    context=8192,
    quantisation="fp8",
    memory_fraction=0.85,
    slots=16,
)
LAUNCHED = [name for name, one in DIALECTS.items() if one.launches]
SETTINGS = {
    "tensor_parallel": 2,
    "pipeline_parallel": 2,
    "context": 4096,
    "quantisation": "fp8",
    "memory_fraction": 0.5,
    "threads": 3,
}


def told(words: tuple[str, ...], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_vllm_is_told_everything() -> None:
    words = command_line(dialect("vllm"), FULL)
    assert words[:3] == ("vllm", "serve", "/weights/m")
    assert told(words, "--served-model-name") == "m"
    assert told(words, "--host") == "127.0.0.1"
    assert told(words, "--port") == "9001"
    assert told(words, "--tensor-parallel-size") == "4"
    assert told(words, "--pipeline-parallel-size") == "2"
    assert told(words, "--max-model-len") == "8192"
    assert told(words, "--quantization") == "fp8"
    assert told(words, "--gpu-memory-utilization") == "0.85"
    assert told(words, "--max-num-seqs") == "16"


def test_sglang_is_told_everything() -> None:
    words = command_line(dialect("sglang"), FULL)
    assert words[:3] == ("python3", "-m", "sglang.launch_server")
    assert "--enable-metrics" in words
    assert told(words, "--tp-size") == "4"
    assert told(words, "--pp-size") == "2"
    assert told(words, "--mem-fraction-static") == "0.85"


def test_trtllm_takes_its_model_by_place() -> None:
    words = command_line(dialect("trtllm"), replace(FULL, quantisation=None))
    assert words[:2] == ("trtllm-serve", "/weights/m")
    assert told(words, "--tp_size") == "4"
    assert told(words, "--kv_cache_free_gpu_memory_fraction") == "0.85"


def test_tgi_does_not_take_every_gpu_and_keeps_apart_from_its_neighbour() -> None:
    words = command_line(dialect("tgi"), PLAIN)
    assert told(words, "--num-shard") == "1"
    other = command_line(dialect("tgi"), replace(PLAIN, port=9002))
    for flag in ("--port", "--master-port", "--shard-uds-path"):
        assert told(words, flag) != told(other, flag)
    assert environment(dialect("tgi"), PLAIN)["PROMETHEUS_PORT"] == "29001"


@pytest.mark.parametrize("port", [1, 9001, 45_535, 45_536, 65_535])
def test_side_ports_are_ports(port: int) -> None:
    words = substitute("{side_port} {second_side_port}", replace(PLAIN, port=port), "x").split()
    numbers = [int(word) for word in words]
    assert len({port, *numbers}) == 3
    assert all(1 <= number <= 65_535 for number in numbers)


def test_triton_loads_the_one_model_that_is_served() -> None:
    words = command_line(dialect("triton"), PLAIN)
    assert "--model-repository=/weights/m" in words
    assert "--load-model=m" in words
    assert "--http-port=9001" in words


def test_ollama_is_told_by_its_environment() -> None:
    spec = replace(PLAIN, context=4096, slots=2)
    assert command_line(dialect("ollama"), spec) == ("ollama", "serve")
    variables = environment(dialect("ollama"), spec)
    assert variables["OLLAMA_HOST"] == "127.0.0.1:9001"
    assert variables["OLLAMA_MODELS"] == "/weights/m"
    assert variables["OLLAMA_CONTEXT_LENGTH"] == "4096"
    assert variables["OLLAMA_NUM_PARALLEL"] == "2"
    assert variables["OLLAMA_KEEP_ALIVE"] == "-1"


def test_an_address_with_colons_is_put_into_brackets() -> None:
    variables = environment(dialect("ollama"), replace(PLAIN, host="::1"))
    assert variables["OLLAMA_HOST"] == "[::1]:9001"


def test_llamacpp_has_room_for_the_context_in_every_slot() -> None:
    spec = replace(PLAIN, context=2048, slots=2, threads=1)
    words = command_line(dialect("llamacpp"), spec)
    assert words[0] == "llama-server"
    assert told(words, "--ctx-size") == "4096"
    assert told(words, "--parallel") == "2"
    assert told(words, "--threads") == "1"
    assert told(command_line(dialect("llamacpp"), replace(spec, slots=0)), "--ctx-size") == "2048"


def test_embedded_llamacpp_runs_our_own_module_with_an_interpreter_to_be_filled_in() -> None:
    spec = replace(PLAIN, embedded=True, context=2048, slots=2, threads=1)
    words = command_line(dialect("llamacpp"), spec)
    assert words[:3] == ("{python}", "-m", "holdfast.launchers.llamacpp")
    expected = {
        "--model": "/weights/m",
        "--alias": "m",
        "--host": "127.0.0.1",
        "--port": "9001",
        "--slots": "2",
        "--threads": "1",
        "--context": "2048",
    }
    assert {flag: told(words, flag) for flag in expected} == expected


@pytest.mark.parametrize("name", [name for name in LAUNCHED if name != "llamacpp"])
def test_other_engines_cannot_be_embedded(name: str) -> None:
    with pytest.raises(ConfigError, match="embedded"):
        command_line(dialect(name), replace(PLAIN, embedded=True))


@pytest.mark.parametrize("name", LAUNCHED)
def test_defaults_are_left_to_the_engine(name: str) -> None:
    words = command_line(dialect(name), PLAIN)
    assert all(words)
    assert not any("{" in word for word in words)
    recipe = dialect(name).recipe
    assert recipe is not None
    flags = {flag for option, flag in recipe.options if option not in recipe.told_always}
    assert not flags & {*words, *environment(dialect(name), PLAIN)}


@pytest.mark.parametrize("name", LAUNCHED)
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_is_passed_on_or_refused_but_never_dropped(name: str, setting: str) -> None:
    known = dialect(name)
    spec = replace(PLAIN, **{setting: SETTINGS[setting]})
    recipe = known.recipe
    assert recipe is not None
    if setting in dict(recipe.options):
        words = (*command_line(known, spec), *environment(known, spec).values())
        assert str(SETTINGS[setting]) in words
    else:
        with pytest.raises(ConfigError, match=f"launch.{setting}") as refused:
            command_line(known, spec)
        assert "arguments" in refused.value.fix


def test_slots_without_a_flag_are_held_by_gateways() -> None:
    assert command_line(dialect("triton"), replace(PLAIN, slots=4))


@pytest.mark.parametrize("name", LAUNCHED)
def test_options_name_fields_of_the_spec(name: str) -> None:
    recipe = dialect(name).recipe
    assert recipe is not None
    for option, flag in (*recipe.options, *recipe.embedded_options):
        assert hasattr(PLAIN, option)
        assert flag
    assert set(recipe.told_always) <= set(dict(recipe.options))


@pytest.mark.parametrize("name", DIALECTS)
def test_a_command_of_the_users_own_is_filled_in(name: str) -> None:
    spec = replace(
        PLAIN,
        command=("{python}", "serve.py", "--at={host}:{port}", "{weights}", "{served_as}"),
        arguments=("--rev", "{revision}", "--tp", "{tensor_parallel}"),
        revision="7",
        tensor_parallel=2,
    )
    assert command_line(dialect(name), spec) == (
        *("{python}", "serve.py", "--at=127.0.0.1:9001", "/weights/m", "m"),
        *("--rev", "7", "--tp", "2"),
    )
    assert environment(dialect(name), spec) == {"PYTHONUNBUFFERED": "1"}


def test_the_chosen_devices_are_filled_in_and_in_variables_nothing_else_is() -> None:
    spec = replace(PLAIN, device="GPU-a,GPU-b", command=("run", "--gpus=device={device}"))
    assert command_line(dialect("openai"), spec) == ("run", "--gpus=device=GPU-a,GPU-b")
    assert fill_device("{device} of {port} {}", spec) == "GPU-a,GPU-b of {port} {}"


@pytest.mark.parametrize("word", ['{"a": 1}', "{{port}}", "{}", "{ x }", "{{ messages }}", "a{B}"])
def test_braces_that_hold_no_place_are_left_alone(word: str) -> None:
    assert substitute(word, PLAIN, "launch.command") == word


def test_an_unknown_place_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"launch\.command: \{prot\} is not known") as refused:
        command_line(dialect("vllm"), replace(PLAIN, command=("x", "{prot}")))
    assert "{port}" in refused.value.fix
    with pytest.raises(ConfigError, match=r"launch\.arguments"):
        command_line(dialect("vllm"), replace(PLAIN, arguments=("{prot}",)))


def test_values_are_not_filled_in_twice() -> None:
    spec = replace(PLAIN, weights="{port}", command=("{weights}",))
    assert command_line(dialect("openai"), spec) == ("{port}",)


@pytest.mark.parametrize("build", [command_line, environment])
def test_an_engine_nobody_knows_needs_a_command(build) -> None:
    assert not dialect("openai").launches
    with pytest.raises(ConfigError, match=r"launch\.command: is missing") as refused:
        build(dialect("openai"), PLAIN)
    assert "{port}" in refused.value.fix


@pytest.mark.parametrize("name", LAUNCHED)
def test_there_must_be_something_to_load_and_a_name_for_it(name: str) -> None:
    assert dialect(name).launches
    with pytest.raises(ConfigError, match="weights"):
        command_line(dialect(name), replace(PLAIN, weights=""))
    with pytest.raises(ConfigError, match="served_as"):
        command_line(dialect(name), replace(PLAIN, served_as=""))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("port", 0), ("port", 65_536), ("host", ""), ("tensor_parallel", 0)),
        *(("pipeline_parallel", -1), ("context", -1), ("slots", -1), ("threads", -1)),
        *(("memory_fraction", 0.0), ("memory_fraction", 1.5)),
    ],
)
def test_a_spec_that_cannot_work_cannot_be_built(field: str, value) -> None:
    with pytest.raises(ConfigError, match=f"launch.{field}"):
        replace(PLAIN, **{field: value})
