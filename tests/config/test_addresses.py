"""Where a fleet listens: loopback, clashes, and what needs TLS."""

import pytest
from fleet_file_stage import MODELS, ONE, read

from holdfast.config.document import ConfigFileError
from holdfast.config.fleet_file import parse_listen
from holdfast.config.tenants import hash_key
from holdfast.core.types import ConfigError


@pytest.mark.parametrize(
    ("text", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.8.9.1:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("gateway.example.org:1", False),
        ("localhost.example.org:1", False),
    ],
)
def test_loopback_is_known_for_what_it_is(text, loopback):
    assert parse_listen(text).loopback is loopback


@pytest.mark.parametrize(
    ("text", "reached"),
    [
        ("0.0.0.0:8001", "127.0.0.1:8001"),
        ("[::]:8001", "[::1]:8001"),
        ("[::1]:8001", "[::1]:8001"),
        ("10.0.0.7:8001", "10.0.0.7:8001"),
        ("example.org:8001", "example.org:8001"),
    ],
)
def test_every_address_is_reached_at_one(text, reached):
    assert parse_listen(text).reached == reached


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        ("127.0.0.1:1", "127.0.0.1:1", True),
        ("127.0.0.1:1", "127.0.0.1:2", False),
        ("127.0.0.1:1", "127.0.0.2:1", False),
        ("0.0.0.0:1", "127.0.0.1:1", True),
        ("127.0.0.1:1", "[::]:1", True),
        ("127.0.0.1:0", "127.0.0.1:0", False),  # any free port: there is one for each
    ],
)
def test_ports_clash_when_both_cannot_be_bound(one, other, clash):
    assert parse_listen(one).overlaps(parse_listen(other)) is clash


@pytest.mark.parametrize(
    "text", ["", ":", "a:", "::1:80", "[::1]", "[x]:1", "a b:1", "*:1", "a:-1"]
)
def test_what_is_no_place_to_listen_is_refused(text):
    with pytest.raises(ConfigError):
        parse_listen(text)


def test_operators_beyond_this_machine_need_tls_or_a_word_that_says_who_has_it(tmp_path):
    admin = f"admin: {{listen: '0.0.0.0:8001', token: '{ONE}'"
    with pytest.raises(ConfigFileError) as caught:
        read(tmp_path, f"{admin}}}\n{MODELS}")
    assert "admin.listen: is 0.0.0.0:8001 without TLS" in str(caught.value)
    assert "admin.insecure: true" in str(caught.value)
    for more in ("insecure: true", "tls: {certificate: /c.pem, key: /c.key}"):
        assert read(tmp_path, f"{admin}, {more}}}\n{MODELS}").admin.token == ONE
    weak = f"admin: {{token: '{hash_key('x')}'}}\n{MODELS}"
    with pytest.raises(ConfigFileError, match="guessed at once"):
        read(tmp_path, weak)
