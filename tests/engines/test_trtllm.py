from holdfast.engines.dialect import Continuation, Load
from holdfast.engines.trtllm import DIALECT

ITERATION = (
    '[{"iter": 60, "kvCacheStats": {"maxNumBlocks": 22955, "usedNumBlocks": 3}, '
    '"numActiveRequests": 1, "numQueuedRequests": 0}]'
)


def test_the_text_page_is_read() -> None:
    page = (
        'trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 3.0\n'
        'trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 1.0\n'
        'trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.62\n'
    )
    assert DIALECT.read_load(page) == Load(running=3, waiting=1, kv_used=0.62)


def test_the_page_of_iterations_is_not_asked_for_and_would_say_nothing() -> None:
    assert DIALECT.metrics_path == "/prometheus/metrics"
    assert DIALECT.read_load(ITERATION) == Load()


def test_no_chat_is_continued_because_the_field_would_be_refused() -> None:
    assert DIALECT.chat_continuation is Continuation.NONE
