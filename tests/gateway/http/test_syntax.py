import json

import pytest

from holdfast.gateway.http import syntax


def test_a_status_line_has_the_registered_phrase():
    assert syntax.status_line(200) == b"HTTP/1.1 200 OK\r\n"
    assert syntax.status_line(429) == b"HTTP/1.1 429 Too Many Requests\r\n"


def test_an_unregistered_status_has_an_empty_phrase():
    assert syntax.status_line(299) == b"HTTP/1.1 299 \r\n"


def test_an_error_has_the_shape_that_sdks_read():
    error = json.loads(syntax.error_json("No.", "invalid_request_error", "nope"))
    assert error == {
        "error": {"message": "No.", "type": "invalid_request_error", "param": None, "code": "nope"}
    }


@pytest.mark.parametrize("refusal", syntax.REFUSALS, ids=lambda refusal: refusal.code)
def test_each_refusal_is_a_whole_response_that_closes(refusal):
    head, _, rest = (refusal.head + b"\r\n" + refusal.body).partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == syntax.status_line(refusal.status).strip()
    assert b"connection: close" in lines
    assert b"content-length: %d" % len(rest) in lines
    error = json.loads(rest)["error"]
    assert error["code"] == refusal.code
    kind = "server_error" if refusal.status >= 500 else "invalid_request_error"
    assert error["type"] == ("rate_limit_error" if refusal.status == 429 else kind)


def test_no_two_refusals_share_a_code():
    codes = [refusal.code for refusal in syntax.REFUSALS]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize(
    "host", [b"a", b"a.b-c:80", b"127.0.0.1:8000", b"[::1]:80", b"my_service:1", b"a:"]
)
def test_ordinary_hosts_are_valid(host):
    assert syntax.host_is_valid(host)


@pytest.mark.parametrize(
    "host",
    [b"", b"a b", b"a/b", b"a@b", b"a,b", b"a:b", b"a:1:2", b"[::1", b"a\xff", b"a:123456", b":80"],
)
def test_odd_hosts_are_not(host):
    assert not syntax.host_is_valid(host)


@pytest.mark.parametrize(
    ("target", "split"),
    [
        (b"/", (b"/", b"")),
        (b"/a?b=c?d", (b"/a", b"b=c?d")),
        (b"//a", (b"//a", b"")),
        (b"http://h:80/a?b", (b"/a", b"b")),
        (b"https://h", (b"/", b"")),
        (b"*", None),
        (b"/a#b", None),
        (b"ftp://h/a", None),
        (b"http://", None),
        (b"http:///a", None),
        (b"http://u:p@h/a", None),
        (b"http://h?a", None),
        (b"h:80", None),
    ],
)
def test_a_target_is_split_or_refused(target, split):
    assert syntax.split_target(target) == split


def test_only_two_versions_of_http_are_spoken():
    assert syntax.check_version("1.1", b"GET /", b"GET / HTTP/1.1") is None
    assert syntax.check_version("1.0", b"GET /", b"GET / HTTP/1.0") is None
    assert syntax.check_version("2.0", b"GET /", b"GET / HTTP/2.0") is syntax.BAD_VERSION
    assert syntax.check_version("1.1", b"GET /", b"GET / RTSP/1.1") is syntax.BAD_VERSION


def test_only_chunked_is_a_known_coding_and_only_from_http_1_1():
    assert syntax.check_coding(b"Chunked", old=False) is None
    assert syntax.check_coding(b"gzip, chunked", old=False) is syntax.TRANSFER_CODING
    assert syntax.check_coding(b"chunked", old=True) is syntax.MALFORMED


def test_an_offer_of_http_2_is_ignored_and_other_upgrades_are_refused():
    assert syntax.check_upgrade(b"POST", b"h2c") is None
    assert syntax.check_upgrade(b"GET", b"websocket") is syntax.NO_TUNNELS
    assert syntax.check_upgrade(b"CONNECT", None) is syntax.NO_TUNNELS
    assert syntax.check_upgrade(b"CONNECT", b"h2c") is syntax.NO_TUNNELS


def test_without_origins_there_is_no_cors():
    cors = syntax.Cors(())
    assert not cors
    assert cors.lines(b"https://a") == b""


def test_a_listed_origin_is_named_and_others_are_not():
    cors = syntax.Cors(("https://a",))
    lines = cors.lines(b"https://a")
    assert b"access-control-allow-origin: https://a\r\n" in lines
    assert b"vary: origin\r\n" in lines
    assert b"x-holdfast-replica" in lines
    assert cors.lines(b"https://b") == b""
    assert cors.lines(None) == b""


def test_a_star_allows_every_origin_without_repeating_it():
    assert b"access-control-allow-origin: *\r\n" in syntax.Cors(("*",)).lines(b"https://evil")


def test_a_preflight_is_one_only_with_its_three_marks():
    cors = syntax.Cors(("https://a",))
    asked = {b"origin": b"https://a", b"access-control-request-method": b"POST"}
    assert b"authorization" in cors.preflight(b"OPTIONS", asked)
    assert cors.preflight(b"POST", asked) == b""
    assert cors.preflight(b"OPTIONS", {b"origin": b"https://a"}) == b""
    assert cors.preflight(b"OPTIONS", asked | {b"origin": b"https://b"}) == b""


def test_the_date_of_an_answer_is_written_as_http_has_it():
    assert syntax.date_line(784_111_777) == b"date: Sun, 06 Nov 1994 08:49:37 GMT\r\n"


def test_where_tenants_have_keys_every_host_and_page_is_answered():
    headers = {b"host": b"rebind.evil.example", b"origin": b"https://evil.example"}
    assert syntax.Cors(()).refusal(b"POST", headers) is None
    assert not syntax.Cors(())


@pytest.mark.parametrize(
    ("method", "host", "origin", "refusal"),
    [
        (b"GET", b"127.0.0.1:8000", None, None),
        (b"POST", b"localhost:8000", None, None),
        (b"POST", b"[::1]:8000", None, None),
        (b"POST", None, None, None),  # HTTP/1.0: no browser
        (b"POST", b"gateway", None, None),  # the batch runner
        (b"POST", b"chat.example.org", b"https://chat.example.org", None),
        (b"POST", b"127.0.0.1:8000", b"http://127.0.0.1:8000", None),
        (b"POST", b"127.0.0.1:8000", b"https://listed.example", None),
        (b"OPTIONS", b"127.0.0.1:8000", b"https://evil.example", None),
        (b"GET", b"127.0.0.1:8000", b"https://evil.example", None),  # the page cannot read it
        (b"POST", b"127.0.0.1:8000", b"https://evil.example", syntax.FOREIGN_PAGE),
        (b"DELETE", b"127.0.0.1:8000", b"null", syntax.FOREIGN_PAGE),
        (b"GET", b"rebind.evil.example:8000", None, syntax.FOREIGN_HOST),
        (b"OPTIONS", b"rebind.evil.example", None, syntax.FOREIGN_HOST),
        (b"POST", b"gateway:8000", None, syntax.FOREIGN_HOST),
    ],
)
def test_without_keys_foreign_hosts_and_pages_are_refused(method, host, origin, refusal):
    cors = syntax.Cors(("https://listed.example",), ("chat.example.org",))
    headers = {name: value for name, value in ((b"host", host), (b"origin", origin)) if value}
    assert cors.refusal(method, headers) is refusal
    assert cors.refusal(method, headers) is refusal  # also when asked again


def test_cors_for_all_pages_still_asks_for_a_host_of_this_machine():
    cors = syntax.Cors(("*",), ())
    evil = b"https://evil.example"
    assert cors.refusal(b"POST", {b"host": b"localhost", b"origin": evil}) is None
    assert cors.refusal(b"GET", {b"host": b"evil.example"}) is syntax.FOREIGN_HOST
