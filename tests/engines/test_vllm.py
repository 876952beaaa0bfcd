from holdfast.engines.dialect import Continuation, Load
from holdfast.engines.vllm import DIALECT

TWO_RANKS = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="org/model"} 5.0
vllm:num_requests_running{engine="1",model_name="org/model"} 7.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="org/model"} 0.0
vllm:num_requests_waiting{engine="1",model_name="org/model"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="org/model",reason="capacity"} 9.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="org/model"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="org/model"} 0.75
"""


def test_ranks_are_summed_and_their_caches_averaged() -> None:
    assert DIALECT.read_load(TWO_RANKS) == Load(running=12, waiting=3, kv_used=0.5)


def test_the_old_name_of_the_cache_gauge_is_read_too_but_not_beside_the_new() -> None:
    old = 'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n'
    assert DIALECT.read_load(old) == Load(kv_used=0.5)
    assert DIALECT.read_load(old + "vllm:kv_cache_usage_perc 0.1\n") == Load(kv_used=0.1)


def test_tokens_found_in_the_prefix_cache_are_read_over_all_ranks() -> None:
    page = (
        'vllm:prefix_cache_queries_total{engine="0"} 900.0\n'
        'vllm:prefix_cache_queries_total{engine="1"} 100.0\n'
        'vllm:prefix_cache_queries_created{engine="0"} 1.7e9\n'
        'vllm:prefix_cache_hits_total{engine="0"} 250.0\n'
        'vllm:external_prefix_cache_hits_total{engine="0"} 7.0\n'
    )
    assert DIALECT.read_load(page) == Load(prefix_asked=1_000, prefix_found=250)
    old = "vllm:gpu_prefix_cache_queries_total 9\nvllm:gpu_prefix_cache_hits_total 3\n"
    assert DIALECT.read_load(old) == Load(prefix_asked=9, prefix_found=3)
    assert DIALECT.read_load("vllm:prefix_cache_hits_total NaN\n") == Load()


def test_a_full_queue_is_busy_and_a_dead_engine_is_not() -> None:
    assert DIALECT.says_busy(503, b'{"error":{"message":"Request queue full.","code":503}}')
    assert not DIALECT.says_busy(503, b"")
    assert not DIALECT.says_busy(500, b"EngineCore encountered an issue.")


def test_it_continues_chats_and_counts_as_it_goes() -> None:
    assert DIALECT.chat_continuation is Continuation.FINAL_MESSAGE
    assert DIALECT.running_usage
    assert not DIALECT.one_token_per_event
