from holdfast.engines.dialect import Continuation, Load
from holdfast.engines.openai import DIALECT


def test_only_what_the_api_promises_is_relied_on() -> None:
    assert DIALECT.metrics_path is None
    assert DIALECT.chat_continuation is Continuation.NONE
    assert DIALECT.prompt_continuation
    assert DIALECT.final_usage
    assert not DIALECT.running_usage


def test_whatever_it_is_given_its_load_is_unknown() -> None:
    assert DIALECT.read_load("vllm:num_requests_running 3\n") == Load()
