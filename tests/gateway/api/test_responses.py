import pytest

from holdfast.gateway.api.responses import ResponseEvent, read_response_event
from holdfast.gateway.http.sse import MalformedStreamError

NOTHING = ResponseEvent(content=False, finished=False, failed=False, output_tokens=0)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (
            b'{"type":"response.created","response":{"id":"r","status":"in_progress"}}',
            NOTHING._replace(response_ids=("r",)),
        ),
        (
            b'{"type":"response.created","response":{"id":"r","previous_response_id":"q"}}',
            NOTHING._replace(response_ids=("r", "q")),
        ),
        (b'{"type":"response.output_text.delta","delta":"Hello"}', NOTHING._replace(content=True)),
        (b'{"type":"response.output_text.delta","delta":""}', NOTHING),
        (b'{"type":"response.output_text.delta","delta":null}', NOTHING),
        (b'{"type":"response.output_text.delta"}', NOTHING),
        (
            b'{"type":"response.function_call_arguments.delta","delta":"{"}',
            NOTHING._replace(content=True),
        ),
        (b'{"type":"response.reasoning.delta","delta":{"a":1}}', NOTHING._replace(content=True)),
        (b'{"type":"response.output_text.done","text":"Hello"}', NOTHING),
        (
            b'{"type":"response.completed","response":{"usage":{"output_tokens":7}}}',
            NOTHING._replace(finished=True, output_tokens=7),
        ),
        (
            b'{"type":"response.incomplete","response":{"usage":null}}',
            NOTHING._replace(finished=True),
        ),
        (b'{"type":"response.completed"}', NOTHING._replace(finished=True)),
        (
            b'{"type":"response.completed","response":{"usage":{"output_tokens":null}}}',
            NOTHING._replace(finished=True),
        ),
        (b'{"type":"response.failed","response":{}}', NOTHING._replace(failed=True)),
        (b'{"type":"error","message":"out of memory"}', NOTHING._replace(failed=True)),
        (b'{"type":"response.made_up_next_year","more":[1,2]}', NOTHING),
    ],
)
def test_an_event_is_judged_by_its_type(payload, expected):
    assert read_response_event(payload) == expected


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[DONE]",
        b"null",
        b"[]",
        b"{}",
        b'{"type":1}',
        b'{"type":"response.completed"',
        b'{"type":"response.completed","response":{"usage":{"output_tokens":"7"}}}',
        b'{"type":"\xff"}',
        b'{"type":"x","delta":' + b"[" * 100_000,
    ],
)
def test_what_is_no_event_is_malformed_and_not_repeated(payload):
    with pytest.raises(MalformedStreamError) as caught:
        read_response_event(payload)
    assert str(caught.value) == "a payload is not an event of a response"
    assert caught.value.__cause__ is None
