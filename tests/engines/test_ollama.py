from holdfast.engines.dialect import Continuation
from holdfast.engines.ollama import DIALECT

BUSY = b'{"error":"server busy, please try again.  maximum pending requests exceeded"}'


def test_a_full_queue_is_busy_although_no_header_says_so() -> None:
    assert DIALECT.says_busy(503, BUSY)
    assert not DIALECT.says_busy(500, BUSY)
    assert not DIALECT.says_busy(503, b'{"error":"model runner has unexpectedly stopped"}')


def test_nothing_is_continued_because_templates_decide() -> None:
    assert DIALECT.chat_continuation is Continuation.NONE
    assert not DIALECT.prompt_continuation


def test_it_publishes_no_metrics() -> None:
    assert DIALECT.metrics_path is None
