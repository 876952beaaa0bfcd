from pathlib import Path

import pytest

from holdfast.config.document import ConfigFileError
from holdfast.config.files import load
from holdfast.config.fleet_file import FleetFile
from holdfast.config.tenants import hash_key

FLEET = """
admin:
  listen: 127.0.0.1:8001
  tls: {%s}
models: [{name: m, engine: vllm, endpoints: ["http://127.0.0.1:9501"]}]
"""


def read(folder, tls):
    path = folder / "fleet.yaml"
    path.write_text(FLEET % tls)
    return load(path, FleetFile)


def test_the_operators_port_can_have_a_certificate(tmp_path):
    file = read(tmp_path, "certificate: /etc/c.pem, key: /etc/c.key")
    assert (file.admin.tls.certificate, file.admin.tls.key) == (
        Path("/etc/c.pem"),
        Path("/etc/c.key"),
    )
    assert FleetFile.from_json(file.to_json()).admin.tls == file.admin.tls


@pytest.mark.parametrize("tls", ["certificate: /etc/c.pem", "key: /etc/c.key", "cert: x"])
def test_half_a_certificate_is_refused(tmp_path, tls):
    with pytest.raises(ConfigFileError, match="tls"):
        read(tmp_path, tls)


def test_without_one_it_speaks_plain_http():
    assert FleetFile.model_fields["admin"].default.tls is None


# --- tokens and roles -----------------------------------------------------------------------------

ONE, TWO = "sha256:" + "1" * 64, "sha256:" + "2" * 64
R = "replicas: [r]"
HEAD = 'models: [{name: m, engine: vllm, endpoints: ["http://127.0.0.1:9501"]}]\n'


def fleet(folder, text):
    path = folder / "fleet.yaml"
    path.write_text(HEAD + text)
    return load(path, FleetFile)


def test_tokens_have_names_and_roles_and_travel_whole(tmp_path):
    text = (
        "admin:\n  listen: 0.0.0.0:8001\n  insecure: true\n"
        "  trusted_proxies: [10.0.0.7, 10.1.0.0/16]\n"
        f"  tokens: [{{name: oncall, roles: [operate, chaos], token: '{ONE}'}}]\n"
    )
    admin = fleet(tmp_path, text).admin
    assert [(one.name, one.roles, one.token) for one in admin.tokens] == [
        ("oncall", ["operate", "chaos"], ONE)
    ]
    assert not admin.reads_openly
    assert ONE not in repr(admin)
    again = FleetFile.from_json(fleet(tmp_path, text).to_json()).admin
    assert again == admin


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"tokens: [{{name: a, roles: [], token: '{ONE}'}}]", "admin.tokens[0].roles"),
        (f"tokens: [{{name: a, roles: [root], token: '{ONE}'}}]", "admin.tokens[0].roles"),
        ("tokens: [{name: a, roles: [read], token: plain}]", "is not a hash"),
        (f"tokens: [{{name: a b, roles: [read], token: '{ONE}'}}]", "admin.tokens[0].name"),
        (f"tokens: [{{name: local, roles: [read], token: '{ONE}'}}]", "a word of the audit trail"),
        (
            (
                f"tokens: [{{name: a, roles: [read], token: '{ONE}'}}, "
                f"{{name: a, roles: [read], token: '{TWO}'}}]"
            ),
            "give each token its own name",
        ),
        (
            (
                f"tokens: [{{name: a, roles: [read], token: '{ONE}'}}, "
                f"{{name: b, roles: [read], token: '{ONE}'}}]"
            ),
            "is the same as admin.tokens[0].token",
        ),
        (f"token: '{ONE}', tokens: [{{name: b, roles: [read], token: '{ONE}'}}]", "admin.token"),
        ("trusted_proxies: [proxy]", "write an address or a network"),
        (f"token: '{ONE}', token_file: /run/token", "is set beside token; keep one of them"),
        ("token_file: run/token", "is a relative path; write the whole path"),
        ("token_file: /no/such/token", "admin.token_file: /no/such/token cannot be read"),
        ("token_file: 7", "admin.token_file"),
        (
            "tokens: [{name: a, roles: [read], token_file: /no/such/token}]",
            "admin.tokens[0].token_file: /no/such/token cannot be read",
        ),
        (
            f"tokens: [{{name: a, roles: [read], token: '{hash_key('changeme')}'}}]",
            "admin.tokens[0].token: is the hash of a token that is guessed at once",
        ),
        (f"listen: 0.0.0.0:8001, token: '{ONE}', open_read: true", "roles: [read]"),
        ("listen: 0.0.0.0:8001", "without a token anybody could use it"),
    ],
)
def test_a_wrong_token_or_role_is_refused_where_it_stands(tmp_path, text, told):
    with pytest.raises(ConfigFileError) as caught:
        fleet(tmp_path, f"admin: {{{text}}}\n")
    assert told in str(caught.value)
    assert "fleet.yaml:" in str(caught.value)


def test_a_token_of_a_file_travels_as_its_hash_and_is_not_read_again(tmp_path):
    secret = tmp_path / "token"
    secret.write_text("hf-planted-token-of-a-file\n")
    read = fleet(tmp_path, f"admin: {{token_file: {secret}}}\n")
    assert read.admin.token == hash_key("hf-planted-token-of-a-file")
    assert read.secret_files == (secret,)
    assert not read.admin.reads_openly
    secret.unlink()
    assert FleetFile.from_json(read.to_json()).admin == read.admin
    assert read.with_endpoints({}).admin == read.admin


@pytest.mark.parametrize(
    ("text", "open_"),
    [
        ("{}", True),
        ("{open_read: false}", False),
        (f"{{token: '{ONE}'}}", False),
        (f"{{token: '{ONE}', open_read: true}}", True),
        (f"{{tokens: [{{name: a, roles: [read], token: '{ONE}'}}]}}", False),
    ],
)
def test_reading_is_open_on_loopback_unless_said_otherwise(tmp_path, text, open_):
    assert fleet(tmp_path, f"admin: {text}\n").admin.reads_openly is open_


@pytest.mark.parametrize(
    ("agents", "told"),
    [
        (f"{{name: a b, token: '{ONE}'}}", "agents[0].name"),
        ("{name: a}", "agents[0].token"),
        (f"{{name: a, token: '{ONE}'}}, {{name: a, token: '{TWO}'}}", "its own name"),
        (f"{{name: a, token: '{ONE}'}}, {{name: b, token: '{ONE}'}}", "is that of a, too"),
        (f"{{name: a, token: '{ONE}', {R}}}, {{name: b, token: '{TWO}', {R}}}", "a has already"),
    ],
)
def test_a_wrong_agent_is_refused_where_it_stands(tmp_path, agents, told):
    with pytest.raises(ConfigFileError) as caught:
        fleet(tmp_path, f"sources: [{{type: agents, agents: [{agents}]}}]\n")
    assert told in str(caught.value)
