import json
import re
from hashlib import sha256

import orjson
import pytest
from click.testing import CliRunner

from holdfast.cli import keys as module
from holdfast.cli.keys import keys
from holdfast.config.fleet_file import FleetFile
from holdfast.config.tenants import KEY_LENGTH_MAX
from holdfast.gateway.api.authentication import TenantDirectory

KEY = "hf-planted-Key_1"
HASH = "sha256:" + sha256(KEY.encode()).hexdigest()


@pytest.fixture
def run():
    def invoke(*arguments, **more):
        return CliRunner().invoke(keys, arguments, prog_name="holdfast keys", **more)

    return invoke


def test_a_new_key_is_printed_with_its_hash(run):
    result = run("new")
    assert result.exit_code == 0
    assert result.stderr == ""
    found = re.fullmatch(r"key   (hf-\S+)\nhash  (sha256:[0-9a-f]{64})\n", result.stdout)
    key, hashed = found.groups()
    assert hashed == "sha256:" + sha256(key.encode()).hexdigest()
    assert run("new").stdout != result.stdout


def test_a_new_key_as_json_opens_the_tenant_whose_hash_it_gives(run):
    told = json.loads(run("new", "--json").stdout)
    document = {
        "models": [{"name": "m", "engine": "vllm", "endpoints": ["http://127.0.0.1:9501"]}],
        "tenants": [{"name": "a", "keys": [told["hash"]]}],
    }
    tenants = TenantDirectory(FleetFile.from_json(orjson.dumps(document)).tenants)
    assert tenants.who({b"authorization": b"Bearer " + told["key"].encode()}).name == "a"


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_key_from_standard_input_is_hashed_without_the_end_of_its_line(run, end):
    result = run("hash", input=KEY + end)
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{HASH}\n", "")


def test_a_person_is_asked_and_what_is_typed_is_not_shown(run, monkeypatch):
    monkeypatch.setattr(module, "_somebody_types", lambda: True)
    result = run("hash", input=f"{KEY}\n")
    assert result.exit_code == 0
    assert result.stdout == f"{HASH}\n"
    assert "not shown" in result.stderr
    assert KEY not in result.output


@pytest.mark.parametrize(
    "given",
    [
        "",
        "\n",
        f"{KEY} secret",
        f" {KEY}",
        f"{KEY},{KEY}",
        f"{KEY}\n{KEY}\n",
        f"{KEY}é",
        "k" * (KEY_LENGTH_MAX + 1),
        "k" * 1_000_000,
        b"\xff\xfe\x00" + KEY.encode(),
    ],
)
def test_what_cannot_be_a_key_is_refused_and_not_repeated(run, given):
    result = run("hash", input=given)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "visible ASCII" in result.stderr
    assert KEY not in result.stderr
    assert "kkkk" not in result.stderr


def test_a_key_of_the_greatest_length_is_taken(run):
    key = "k" * KEY_LENGTH_MAX
    assert run("hash", input=f"{key}\r\n").stdout == f"sha256:{sha256(key.encode()).hexdigest()}\n"


@pytest.mark.parametrize("key", ["a", "1234567"])
def test_a_key_that_is_guessed_at_once_is_not_hashed(run, key):
    result = run("hash", input=f"{key}\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "holdfast keys new" in result.stderr
    assert run("hash", "--insecure", input=key).exit_code == 0


def test_a_key_that_may_be_guessed_is_hashed_with_a_warning(run):
    result = run("hash", input="twelve-chars\n")
    assert result.exit_code == 0
    assert result.stdout.startswith("sha256:")
    assert result.stderr.startswith("warning: the key has 12 characters")


def test_keys_are_listed_without_themselves(run, tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "models: [{name: m, engine: vllm, endpoints: ['http://127.0.0.1:9501']}]\n"
        f"tenants: [{{name: t, keys: ['{HASH}', {{hash: 'sha256:{'ab' * 32}', id: old, "
        "expires: '2020-01-01'}]}]\n"
    )
    told = run("list", "-c", str(path)).stdout
    assert "old" in told
    assert "2020-01-01 (expired)" in told
    assert HASH.removeprefix("sha256:") not in told
    rows = json.loads(run("list", "-c", str(path), "--json").stdout)["keys"]
    assert [(row["id"], row["expired"]) for row in rows] == [(HASH[7:15], False), ("old", True)]
    path.write_text("tenants: 1\n")
    assert run("list", "-c", str(path)).exit_code == 1


def test_a_key_as_an_argument_is_refused(run):
    result = run("hash", KEY)
    assert result.exit_code == 2
    assert result.stdout == ""


@pytest.mark.parametrize("words", [(), ("new",), ("hash",), ("list",)])
def test_every_command_explains_itself(run, words):
    result = run(*words, "--help")
    assert result.exit_code == 0
    assert "\n    holdfast keys " in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
