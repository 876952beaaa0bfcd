from holdfast.engines.dialect import Load
from holdfast.engines.tgi import DIALECT


def test_queue_and_batch_are_read_and_the_cache_is_unknown() -> None:
    page = (
        "# TYPE tgi_queue_size gauge\ntgi_queue_size 2\n\n"
        "# TYPE tgi_batch_current_size gauge\ntgi_batch_current_size 8\n\n"
        "tgi_batch_current_max_tokens 16000\n"
    )
    assert DIALECT.read_load(page) == Load(running=8, waiting=2, kv_used=None)


def test_before_the_first_batch_only_the_queue_is_known() -> None:
    assert DIALECT.read_load("tgi_queue_size 0\n") == Load(waiting=0)
