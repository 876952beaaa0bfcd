import json
import pickle
import re

import pytest

from holdfast.core.messages import Finish
from holdfast.core.request.admission import refusals
from holdfast.core.request.admission.quota import Quota, QuotaConfig
from holdfast.core.request.admission_desk import ERROR_DEFAULT, ERRORS
from holdfast.gateway.api import errors
from holdfast.gateway.api.errors import ApiError


def headers_of(raw: bytes) -> dict[str, str]:
    assert raw == b"" or raw.endswith(b"\r\n")
    return dict(line.split(": ", 1) for line in raw.decode().splitlines())


SHEDS = [
    refusals.over_quota("requests", 60.0, 2.5),
    refusals.beyond_quota(9000, 100.0),
    refusals.queue_full("64 requests wait", 64, 10.0),
    refusals.displaced(64, 10.0),
    refusals.wait_expired(30.0, 3, None),
    refusals.no_ready_replica(30.0),
    refusals.deadline_passed(),
]


def test_a_body_has_the_shape_of_openai_and_the_request_id():
    error = errors.invalid("n must be from 1 to 16.", "n")
    assert json.loads(errors.error_body(error, "req-7")) == {
        "error": {
            "message": "n must be from 1 to 16.",
            "type": "invalid_request_error",
            "param": "n",
            "code": "invalid_value",
            "request_id": "req-7",
        }
    }


def test_an_event_is_one_line_of_data_with_the_same_content():
    error = errors.unknown_model()
    event = errors.error_event(error, "req-8")
    assert event.startswith(b"data: ")
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 2
    assert json.loads(event[6:]) == json.loads(errors.error_body(error, "req-8"))


@pytest.mark.parametrize(
    ("retry_after_s", "seconds", "millis"),
    [(0.0, 1, 1000), (0.2, 1, 1000), (1.0, 1, 1000), (1.2, 2, 1200), (59.001, 60, 59001)],
)
@pytest.mark.parametrize("status", [429, 503])
def test_who_may_come_back_is_told_when(status, retry_after_s, seconds, millis):
    told = headers_of(errors.error_headers(ApiError(status, "t", "c", "m", None, retry_after_s)))
    assert told == {
        "retry-after": str(seconds),
        "retry-after-ms": str(millis),
        "x-should-retry": "true",
    }


def test_an_endless_wait_is_still_a_number():
    told = headers_of(errors.error_headers(ApiError(429, "t", "c", "m", None, float("inf"))))
    assert told["retry-after"] == "86400"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 415, 422, 431])
def test_a_wrong_request_need_not_be_sent_again(status):
    told = headers_of(errors.error_headers(ApiError(status, "t", "c", "m", None, 3.0)))
    assert told == {"x-should-retry": "false"}


@pytest.mark.parametrize("status", [408, 500, 502, 504])
def test_elsewhere_the_client_decides(status):
    assert errors.error_headers(ApiError(status, "t", "c", "m")) == b""


def test_a_405_names_the_method():
    error = ApiError(405, "t", "c", "m", allow=b"POST")
    assert headers_of(errors.error_headers(error)) == {"allow": "POST", "x-should-retry": "false"}


def test_the_text_of_the_exception_holds_nothing_of_the_request():
    error = ApiError(400, "t", "bad_request", "cannot parse 'my secret'", "secret_param")
    assert str(error) == "400 bad_request"
    assert "secret" not in repr(error)


def test_an_error_survives_pickling():
    error = pickle.loads(pickle.dumps(ApiError(429, "t", "c", "m", "p", 2.0)))
    assert (error.status, error.code, error.param, error.retry_after_s) == (429, "c", "p", 2.0)


@pytest.mark.parametrize("refusal", SHEDS, ids=lambda refusal: refusal.code)
def test_every_refusal_of_admission_has_words_for_clients(refusal):
    assert refusal.code in errors.FINISHES
    finish = Finish(1, refusal.status, refusal.code, refusal.reason)
    finish.retry_after_s = refusal.retry_after_s
    error = errors.from_finish(finish)
    assert (error.status, error.code) == (refusal.status, refusal.code)
    assert error.message
    assert error.retry_after_s == refusal.retry_after_s


@pytest.mark.parametrize(("status", "code"), sorted({*ERRORS.values(), ERROR_DEFAULT}))
def test_every_failure_of_the_desk_has_words_that_keep_its_reasons_inside(status, code):
    assert code in errors.FINISHES
    error = errors.from_finish(Finish(1, status, code, "reset: 10.0.0.7:9501 revision 17"))
    assert error.status == status
    assert "10.0.0.7" not in error.message
    assert "17" not in error.message


def test_a_quota_tells_its_numbers():
    finish = Finish(1, 429, "rate_limit_exceeded", "over the quota of 60 requests per minute")
    error = errors.from_finish(finish)
    assert "60 requests per minute" in error.message
    assert error.type == "rate_limit_error"


def test_an_unknown_code_gets_a_general_text():
    error = errors.from_finish(Finish(1, 599, "new_code", "secret reason"))
    assert (error.status, error.type, error.code) == (599, "server_error", "new_code")
    assert "secret" not in error.message


def test_an_unknown_model_looks_as_at_openai():
    for error in (
        errors.unknown_model(),
        errors.from_finish(Finish(1, 404, "model_not_found", "")),
    ):
        assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
        assert error.type == "invalid_request_error"


def test_a_model_that_nobody_serves_yet_is_worth_another_try():
    finish = Finish(1, 503, "no_ready_replica", "", retry_after_s=5.0)
    told = headers_of(errors.error_headers(errors.from_finish(finish)))
    assert told["x-should-retry"] == "true"
    assert int(told["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            b'{"error":{"message":"too long","type":"x","code":"ctx","param":"messages"}}',
            "too long",
        ),
        (b'{"error":"too long"}', "too long"),
        (b'{"object":"error","message":"too long","code":400}', "too long"),
        (b'{"detail":"too long"}', "too long"),
        (b'{"detail":[{"loc":["body"]}]}', None),
        (b"[1]", None),
        (b"<html>", None),
        (b"", None),
        (b"[" * 100_000, None),
        (b'{"error":{"message":null}}', None),
    ],
)
def test_an_engines_refusal_is_passed_on_in_its_words(body, message):
    finish = Finish(1, 400, "bad_request", "bad_request: not retryable")
    error = errors.from_finish(finish, (422, body))
    assert error.status == 422
    assert error.type == "invalid_request_error"
    assert error.message == (message or errors.FINISHES["bad_request"])


def test_an_engines_refusal_is_bounded():
    body = json.dumps({"error": {"message": "x" * 9000, "code": "y" * 900, "param": "z" * 900}})
    error = errors.from_finish(Finish(1, 400, "bad_request", ""), (400, body.encode()))
    assert len(error.message) == 2000
    assert len(error.code) == 64
    assert error.param is not None
    assert len(error.param) == 64


def test_a_refusal_of_an_earlier_attempt_does_not_hide_what_came_later():
    error = errors.from_finish(Finish(1, 504, "deadline_exceeded", ""), (400, b'{"error":"x"}'))
    assert (error.status, error.code) == (504, "deadline_exceeded")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.012, "12ms"),
        (0.0001, "1ms"),
        (1.0, "1s"),
        (8.64, "8.64s"),
        (59.9999, "1m0s"),
        (60.0, "1m0s"),
        (72.172, "1m12.172s"),
        (360.0, "6m0s"),
        (3600.0, "1h0m0s"),
        (3661.5, "1h1m1.5s"),
        (-1.0, "0s"),
    ],
)
def test_durations_are_written_as_openai_writes_them(seconds, text):
    assert errors.duration(seconds) == text


def test_rate_limits_of_a_quota_become_headers():
    quota = Quota(QuotaConfig(requests_per_minute=60, tokens_per_minute=6000))
    quota.reserve(100, 500, 0)
    told = headers_of(errors.rate_limit_headers(quota.headers(0)))
    assert told == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "5400",
        "x-ratelimit-reset-tokens": "6s",
    }


def test_a_kind_without_a_limit_has_no_headers():
    assert errors.rate_limit_headers({}) == b""
    told = errors.rate_limit_headers(Quota(QuotaConfig(tokens_per_minute=60)).headers(0))
    assert not re.search(rb"requests", told)


# --- requests that end their replicas ------------------------------------------------------------


def test_a_request_that_ends_replicas_is_not_to_be_sent_again():
    lost = errors.from_code(502, "replicas_lost", "its connection died on r1 and r2")
    assert (lost.status, lost.type, lost.code) == (502, "server_error", "replicas_lost")
    assert "r1" not in lost.message
    blocked = errors.blocked()
    assert (blocked.status, blocked.type, blocked.code) == (422, errors.INVALID, "request_blocked")
    for error in (lost, blocked):
        assert errors.error_headers(error) == b"x-should-retry: false\r\n"
