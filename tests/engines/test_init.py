import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.canary import Shape
from holdfast.core.types import ConfigError
from holdfast.engines import DIALECTS, Continuation, Load, capabilities_table, dialect

NAMES = ("openai", "vllm", "sglang", "tgi", "triton", "llamacpp", "ollama", "trtllm")

# What each engine prints when it runs 3, holds 2 back and has its cache half full.
PAGES = {
    "vllm": "vllm:num_requests_running 3\nvllm:num_requests_waiting 2\n"
    "vllm:kv_cache_usage_perc 0.5\n",
    "sglang": "sglang:num_running_reqs 3\nsglang:num_queue_reqs 2\nsglang:token_usage 0.5\n",
    "tgi": "tgi_batch_current_size 3\ntgi_queue_size 2\n",
    "triton": "nv_inference_pending_request_count 2\n",
    "llamacpp": "llamacpp:requests_processing 3\nllamacpp:requests_deferred 2\n",
    "trtllm": "trtllm_num_requests_running 3\ntrtllm_num_requests_waiting 2\n"
    "trtllm_kv_cache_utilization 0.5\n",
}


def test_every_engine_is_known_under_its_name() -> None:
    assert tuple(DIALECTS) == NAMES
    for name in NAMES:
        assert dialect(name).name == name


def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ConfigError, match="'vlm' is not known") as refused:
        dialect("vlm")
    for name in NAMES:
        assert name in str(refused.value)


@pytest.mark.parametrize("name", NAMES)
def test_paths_can_be_asked_for_as_they_stand(name: str) -> None:
    one = dialect(name)
    paths = (one.health_path, one.start_path, one.metrics_path)
    assert all(path is None or path.startswith("/") for path in paths)
    # An engine without a question that fits all its models is believed by its page.
    assert one.health_path or one.canary_shape is not Shape.INFER
    assert one.model_health_path is None or "{model}" in one.model_health_path
    assert all(one.busy_bodies)  # an empty mark would be in every body
    assert all(one.loading_bodies)
    assert all(one.draining_bodies)
    assert all(one.missing_bodies)
    assert one.loading_header is None or one.loading_header[0].islower()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["", "\0", "[]", '{"error": "no"}', "<html>", "x" * 10_000])
def test_a_page_that_says_nothing_is_unknown_and_never_zero(name: str, text: str) -> None:
    assert dialect(name).read_load(text) == Load()


@pytest.mark.parametrize("name", PAGES)
def test_each_reads_its_own_page_and_nobody_elses(name: str) -> None:
    assert dialect(name).read_load(PAGES[name]).waiting == 2
    for other in NAMES:
        if other != name:
            assert dialect(other).read_load(PAGES[name]) == Load()


@given(st.sampled_from(sorted(PAGES)), st.data())
def test_a_damaged_page_never_raises_and_never_leaves_the_units(name: str, data) -> None:
    page = PAGES[name] * 2
    at = data.draw(st.integers(0, len(page)))
    length = data.draw(st.integers(0, 8))
    inserted = data.draw(st.text(max_size=8))
    load = dialect(name).read_load(page[:at] + inserted + page[at + length :])
    assert load.running is None or load.running >= 0
    assert load.waiting is None or load.waiting >= 0
    assert load.kv_used is None or 0 <= load.kv_used <= 1


def test_each_table_has_one_full_row_for_each_engine() -> None:
    parts = capabilities_table().split("\n\n")
    assert parts[::2] == ["## Serving", "## Probing", "## Launching"]
    tables = parts[1::2]
    assert len(tables) == 3
    for table in tables:
        lines = table.splitlines()
        assert len(lines) == len(NAMES) + 2
        assert len({line.count("|") for line in lines}) == 1
        assert [line.split("|")[1].strip() for line in lines[2:]] == list(NAMES)
        assert not any("|  |" in line for line in lines)


def test_the_tables_tell_what_is_true_of_engines() -> None:
    serving, probing, launching = capabilities_table().split("\n\n")[1::2]
    assert "`/metrics` with `--enable-metrics`" in serving
    assert "server busy" in serving
    assert "`x-trtllm-server-state: starting`" in serving
    assert "| llamacpp | chat | yes | loading, warm-up, serving |" in probing
    assert "| triton | infer, with a body of the config's | no |" in probing
    assert "| vllm | `vllm serve` | `--tensor-parallel-size` |" in launching
    assert "| llamacpp | `llama-server`, or embedded |" in launching
    assert "| openai | a command of your own | no |" in launching


def test_only_llamacpp_is_compared_bit_by_bit() -> None:
    assert [one.name for one in DIALECTS.values() if one.bit_stable] == ["llamacpp"]


def test_every_way_of_continuing_is_somebodys() -> None:
    assert {one.chat_continuation for one in DIALECTS.values()} == set(Continuation)
