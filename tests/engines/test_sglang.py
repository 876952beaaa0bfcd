from holdfast.engines.dialect import Load
from holdfast.engines.sglang import DIALECT


def test_one_scheduler_is_read_as_it_is() -> None:
    labels = '{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"}'
    page = (
        f"sglang:num_running_reqs{labels} 4.0\n"
        f"sglang:num_queue_reqs{labels} 1.0\n"
        f"sglang:token_usage{labels} 0.42\n"
        f"sglang:num_queue_reqs_total{labels} 999.0\n"
    )
    assert DIALECT.read_load(page) == Load(running=4, waiting=1, kv_used=0.42)


def test_parts_by_priority_are_not_added_to_their_total() -> None:
    page = (
        'sglang:num_queue_reqs{model_name="m",priority=""} 5.0\n'
        'sglang:num_queue_reqs{model_name="m",priority="1"} 2.0\n'
        'sglang:num_queue_reqs{model_name="m",priority="None"} 3.0\n'
    )
    assert DIALECT.read_load(page) == Load(waiting=5)


def test_data_parallel_ranks_are_summed_and_the_members_of_one_are_not() -> None:
    page = (
        'sglang:num_running_reqs{dp_rank="0",tp_rank="0"} 4.0\n'
        'sglang:num_running_reqs{dp_rank="0",tp_rank="1"} 4.0\n'
        'sglang:num_running_reqs{dp_rank="1",tp_rank="2"} 6.0\n'
        'sglang:num_running_reqs{dp_rank="1",tp_rank="3"} 5.0\n'
        'sglang:token_usage{dp_rank="0",tp_rank="0"} 0.2\n'
        'sglang:token_usage{dp_rank="1",tp_rank="2"} 0.4\n'
    )
    load = DIALECT.read_load(page)
    assert load.running == 10
    assert load.kv_used is not None
    assert abs(load.kv_used - 0.3) < 1e-9


def test_tensor_parallel_ranks_alone_repeat_one_figure() -> None:
    page = "".join(f'sglang:num_running_reqs{{tp_rank="{rank}"}} 16.0\n' for rank in range(4))
    assert DIALECT.read_load(page) == Load(running=16)


def test_its_own_share_of_prefix_hits_is_read_and_anything_else_is_unknown() -> None:
    page = 'sglang:cache_hit_rate{dp_rank="0"} 0.5\nsglang:cache_hit_rate{dp_rank="1"} 1.0\n'
    assert DIALECT.read_load(page) == Load(prefix_hits=0.75)
    assert DIALECT.read_load("sglang:cache_hit_rate 43.0\n") == Load()


def test_a_refusal_is_busy_as_status_and_as_event() -> None:
    event = b'{"error": {"message": "The request queue is full.", "code": 503}}'
    assert DIALECT.says_busy(503, event)
    assert DIALECT.says_busy(503, b"The request is aborted by a higher priority request.")
    assert not DIALECT.says_busy(503, b"Health check failed.")
