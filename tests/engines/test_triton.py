from dataclasses import replace

from holdfast.engines import capabilities_table
from holdfast.engines.dialect import InferenceCounts, Load
from holdfast.engines.triton import DIALECT, read_counts, read_statistics

# As a real server (2.51.0) wrote them, after five inferences and two that failed; GPUs added.
METRICS = """\
nv_inference_request_success{model="affine",version="1"} 5
nv_inference_request_success{model="other",version="1"} 700
nv_inference_request_failure{model="affine",reason="OTHER",version="1"} 0
nv_inference_request_failure{model="affine",reason="BACKEND",version="1"} 2
nv_inference_request_failure{model="affine",reason="CANCELED",version="1"} 11
nv_inference_request_failure{model="affine",reason="REJECTED",version="1"} 13
nv_inference_count{model="affine",version="1"} 5
nv_inference_exec_count{model="affine",version="1"} 7
nv_inference_request_duration_us{model="affine",version="1"} 52479
nv_inference_queue_duration_us{model="affine",version="1"} 271
nv_inference_compute_input_duration_us{model="affine",version="1"} 260
nv_inference_compute_infer_duration_us{model="affine",version="1"} 50038
nv_inference_compute_output_duration_us{model="affine",version="1"} 1885
nv_inference_pending_request_count{model="affine",version="1"} 3
nv_inference_pending_request_count{model="other",version="1"} 90
nv_gpu_utilization{gpu_uuid="GPU-a"} 0.5
nv_gpu_utilization{gpu_uuid="GPU-b"} 0.1
nv_gpu_memory_total_bytes{gpu_uuid="GPU-a"} 150754820096.000000
nv_gpu_memory_total_bytes{gpu_uuid="GPU-b"} 150754820096.000000
nv_gpu_memory_used_bytes{gpu_uuid="GPU-a"} 20000000000
nv_gpu_memory_used_bytes{gpu_uuid="GPU-b"} 10000000000
nv_cpu_utilization 0.9950248756218906
"""
STATISTICS = b"""{"model_stats":[{"name":"affine","version":"1","last_inference":1794943006710,
"inference_count":5,"execution_count":7,"inference_stats":{"success":{"count":5,"ns":52482125},
"fail":{"count":2,"ns":11421033},"queue":{"count":5,"ns":272752},"compute_input":{"count":5,
"ns":263027},"compute_infer":{"count":5,"ns":50039930},"compute_output":{"count":5,"ns":1886797},
"cache_hit":{"count":0,"ns":0},"cache_miss":{"count":0,"ns":0}},"response_stats":{},
"batch_stats":[{"batch_size":1,"compute_input":{"count":7,"ns":340672},"compute_infer":{"count":7,
"ns":59215527},"compute_output":{"count":7,"ns":1907918}},{"batch_size":4,"compute_input":
{"count":1,"ns":1},"compute_infer":{"count":1,"ns":1},"compute_output":{"count":1,"ns":1}}],
"memory_usage":[{"type":"GPU","id":0,"byte_size":4096},{"type":"CPU","id":0,"byte_size":7}]}]}"""


def test_counts_are_of_one_model_and_refusals_are_no_failures() -> None:
    assert read_counts(METRICS, "affine") == InferenceCounts(
        successes=5,
        failures=2,
        inferences=5,
        executions=7,
        queue_s=271e-6,
        compute_s=52183e-6,
        pending=3,
        gpu_used_bytes=30_000_000_000,
        gpu_total_bytes=301_509_640_192,
        gpu_busy=0.3,
    )


def test_a_model_that_only_refused_has_not_failed() -> None:
    page = 'nv_inference_request_failure{model="m",reason="REJECTED",version="1"} 13\n'
    assert read_counts(page, "m") == InferenceCounts(failures=0)


def test_an_older_release_has_one_number_of_failures() -> None:
    page = 'nv_inference_request_failure{model="m",version="1"} 4\n'
    assert read_counts(page, "m") == InferenceCounts(failures=4)


def test_a_model_that_is_not_on_the_page_has_no_counts() -> None:
    assert read_counts(METRICS, "absent").successes is None


def test_statistics_add_what_a_metrics_page_does_not_tell() -> None:
    told = read_statistics(STATISTICS, "affine")
    assert told == InferenceCounts(
        successes=5,
        failures=2,
        inferences=5,
        executions=7,
        queue_s=272752e-9,
        compute_s=52189754e-9,
        batch_max=4,
        model_gpu_bytes=4096,
    )
    both = read_counts(METRICS, "affine").filled_from(told)
    assert both == replace(read_counts(METRICS, "affine"), batch_max=4, model_gpu_bytes=4096)


def test_statistics_that_cannot_be_read_are_unknown() -> None:
    refused = b'{"error":"This API is restricted, expecting header \'triton-access-token\'"}'
    for body in (refused, b"", b"[]", b'{"model_stats":[{"name":"affine"}]}', b"[" * 10_000):
        assert read_statistics(body, "affine") == InferenceCounts()
    assert read_statistics(STATISTICS, "other") == InferenceCounts()
    assert read_statistics(STATISTICS + b" " * (1 << 20), "affine") == InferenceCounts()


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


def test_the_table_of_engines_tells_where_its_metrics_are():
    (row, *_) = [line for line in capabilities_table().splitlines() if line.startswith("| triton ")]
    assert "`/metrics` at port 8002 beside 8000, else by `metrics_url`" in row
