"""A message as a request: a body alone, an envelope, and what is refused with the member's name."""

import base64
import json

import pytest

from holdfast.batch.consumers.request_messages import (
    MessageRefusedError,
    answer_reply,
    error_reply,
    read_request,
)
from holdfast.batch.gateway_client import GatewayAnswer

CHAT, EMBED = "/v1/chat/completions", "/v1/embeddings"


def read(told):
    payload = told if isinstance(told, bytes) else json.dumps(told).encode()
    return read_request(payload, "m", CHAT, (CHAT, EMBED))


def test_a_body_alone_goes_to_the_path_of_its_queue_and_gets_its_model():
    request = read({"messages": [1], "temperature": 0.5})
    assert (request.path, request.id) == (CHAT, "")
    assert json.loads(request.body) == {"messages": [1], "temperature": 0.5, "model": "m"}


def test_an_envelope_names_id_path_and_what_the_reply_repeats():
    request = read({"id": "a/1", "custom_id": "c", "url": EMBED, "body": {"model": "m", "x": 1}})
    assert (request.path, request.id, request.custom_id) == (EMBED, "a/1", "c")
    assert json.loads(request.body) == {"model": "m", "x": 1}


@pytest.mark.parametrize(
    ("told", "code"),
    [
        (b"{", "invalid_json"),
        (b"\xff\xfe", "invalid_json"),
        (b"[" * 100_000, "invalid_request"),
        ([1], "invalid_request"),
        ({"body": 3}, "invalid_request"),
        ({"id": 3, "body": {}}, "invalid_request"),
        ({"id": "a\nb", "body": {}}, "invalid_id"),
        ({"id": "x" * 300, "body": {}}, "invalid_id"),
        ({"method": "GET", "body": {}}, "invalid_method"),
        ({"url": "/admin", "body": {}}, "invalid_url"),
        ({"messages": [], "stream": True}, "invalid_value"),
        ({"model": "other", "messages": []}, "wrong_model"),
    ],
)
def test_what_is_no_request_is_refused_and_repeats_nothing(told, code):
    with pytest.raises(MessageRefusedError) as refused:
        read(told)
    assert refused.value.code == code
    assert "a\nb" not in str(refused.value)


def test_a_refused_envelope_is_still_known_by_its_id():
    with pytest.raises(MessageRefusedError) as refused:
        read({"id": "i", "custom_id": "c", "url": "/x", "body": {}})
    assert (refused.value.known.id, refused.value.known.custom_id) == ("i", "c")


def test_replies():
    told = json.loads(answer_reply("i", None, GatewayAnswer(200, b'{"a": 1}', "req")))
    assert told == {
        "id": "i",
        "custom_id": None,
        "response": {"status_code": 200, "request_id": "req", "body": {"a": 1}},
        "error": None,
    }
    sound = GatewayAnswer(200, b"RIFF\x00", "req", content_type="audio/wav")
    response = json.loads(answer_reply("i", "c", sound))["response"]
    assert base64.b64decode(response["body_base64"]) == b"RIFF\x00"
    assert response["content_type"] == "audio/wav"
    assert json.loads(error_reply("i", "c", "dead_letter", "x"))["error"]["code"] == "dead_letter"
