from holdfast.engines.dialect import Continuation, Load
from holdfast.engines.llamacpp import DIALECT

PAGE = """# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
# HELP llamacpp:requests_deferred Number of requests deferred.
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 4
llamacpp:n_busy_slots_per_decode 1.5
"""


def test_slots_and_deferred_requests_are_read_and_the_cache_is_unknown() -> None:
    assert DIALECT.read_load(PAGE) == Load(running=2, waiting=4, kv_used=None)


def test_calls_of_its_model_are_counted_while_it_reads_a_prompt() -> None:
    page = PAGE + "llamacpp:n_decode_total 332\nllamacpp:prompt_tokens_total 4096\n"
    assert DIALECT.read_load(page) == Load(running=2, waiting=4, steps=332)


def test_an_old_build_tells_of_its_cache() -> None:
    assert DIALECT.read_load(PAGE + "llamacpp:kv_cache_usage_ratio 0.63\n").kv_used == 0.63


def test_loading_is_told_from_failing() -> None:
    body = b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}'
    assert DIALECT.says_loading(503, body)
    assert not DIALECT.says_busy(503, body)
    assert not DIALECT.says_loading(503, b"")


def test_a_chat_is_continued_by_its_last_message() -> None:
    assert DIALECT.chat_continuation is Continuation.PREFILL
