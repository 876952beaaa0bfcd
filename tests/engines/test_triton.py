from holdfast.engines.dialect import Load
from holdfast.engines.triton import DIALECT


def test_each_model_has_its_own_page_of_health() -> None:
    assert DIALECT.model_health_path is not None
    assert DIALECT.model_health_path.format(model="m") == "/v2/models/m/ready"


def test_its_metrics_stand_on_another_port() -> None:
    assert DIALECT.metrics_path is None


def test_pending_requests_are_summed_over_models() -> None:
    page = (
        'nv_inference_pending_request_count{model="a",version="1"} 2\n'
        'nv_inference_pending_request_count{model="b",version="1"} 1\n'
        'nv_inference_request_success{model="a",version="1"} 400\n'
    )
    assert DIALECT.read_load(page) == Load(waiting=3)


def test_the_tensorrt_backends_own_figures_come_first() -> None:
    page = (
        'nv_inference_pending_request_count{model="m"} 9\n'
        'nv_trt_llm_request_metrics{model="m",request_type="waiting"} 2\n'
        'nv_trt_llm_request_metrics{model="m",request_type="scheduled"} 5\n'
        'nv_trt_llm_request_metrics{model="m",request_type="max"} 64\n'
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="m"} 0.25\n'
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="m"} 4096\n'
    )
    assert DIALECT.read_load(page) == Load(running=5, waiting=2, kv_used=0.25)


def test_a_full_queue_is_busy() -> None:
    assert DIALECT.says_busy(503, b'{"error":"Exceeds maximum queue size"}')
    assert not DIALECT.says_draining(503, b'{"error":"Exceeds maximum queue size"}')


def test_one_that_is_being_stopped_says_that_it_takes_no_more() -> None:
    stopping = b"Server is stopping, scheduler for model has stopped accepting new inference"
    assert DIALECT.says_draining(503, b'{"error":"[request id: 7] %b requests"}' % stopping)
    assert not DIALECT.says_draining(400, stopping)
