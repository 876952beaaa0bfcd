import pytest

from holdfast.core.intake.web_pages import is_json, is_own_host, is_same_host


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LocalHost:8000", "127.0.0.1", "127.0.0.1:1", "127.8.9.1:65535"),
        *("[::1]", "[::1]:8000", "[0:0::1]:80", "0.0.0.0:8000", "[::]:8000", "localhost:"),
    ],
)
def test_loopback_in_any_spelling_is_this_machine(host):
    assert is_own_host(host)


@pytest.mark.parametrize(
    "host",
    [
        *("rebind.evil.example", "rebind.evil.example:8000", "localhost.evil.example", "10.0.0.7"),
        *("127.0.0.1.evil.example:80", "2130706433", "0x7f.1", "[fe80::1]:80", "", ":8000"),
        *("a@127.0.0.1", "127.0.0.1:80:80", "127.0.0.1/x", "[::1", "192.168.1.4:8000"),
    ],
)
def test_every_other_host_is_not(host):
    assert not is_own_host(host)


def test_a_name_that_was_given_is_this_machine_with_any_port():
    assert is_own_host("Chat.Example.org:8443", ("chat.example.org",))
    assert not is_own_host("x.chat.example.org", ("chat.example.org",))


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000"),
        ("http://localhost", "localhost:80"),
        ("HTTPS://Chat.Example.org", "chat.example.org"),
        ("https://[::1]:8443", "[::1]:8443"),
    ],
)
def test_a_page_of_the_host_that_is_asked_is_known(origin, host):
    assert is_same_host(origin, host)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://evil.example", "127.0.0.1:8000"),
        ("http://127.0.0.1:3000", "127.0.0.1:8000"),
        ("http://localhost:8000", "127.0.0.1:8000"),
        ("null", "127.0.0.1:8000"),
        ("file://", "127.0.0.1"),
        ("ftp://127.0.0.1", "127.0.0.1"),
        ("http://127.0.0.1:8000, http://evil", "127.0.0.1:8000"),
        ("http://u@127.0.0.1:8000", "127.0.0.1:8000"),
        ("", ""),
    ],
)
def test_every_other_page_is_foreign(origin, host):
    assert not is_same_host(origin, host)


def test_json_is_told_from_what_a_page_sends_without_asking():
    assert is_json("application/json")
    assert is_json("Application/JSON; charset=utf-8")
    for kind in ("", "text/plain", "multipart/form-data; boundary=application/json"):
        assert not is_json(kind)
