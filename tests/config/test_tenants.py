"""Tenants of the fleet file and their keys: what is refused, what is hashed."""

import json
from hashlib import sha256

import pytest
from fleet_file_stage import MODELS, ONE, PLAIN, TWO, read, refused

from holdfast.config.document import ConfigFileError
from holdfast.config.fleet_file import FleetFile
from holdfast.config.tenants import TenantSection, hash_key, new_key

TENANT = f"tenants:\n  - name: t\n    keys:\n      - {ONE}\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            TENANT.replace(ONE, PLAIN),
            (
                "fleet.yaml:4: tenants[0].keys[0]: key is not a hash (keys are never written "
                "down); run 'holdfast keys hash'"
            ),
        ),
        (TENANT.replace(ONE, "12345"), "fleet.yaml:4: tenants[0].keys[0]: key is not a hash"),
        (
            TENANT.replace(ONE, f"sha256:{sha256(b'').hexdigest()}"),
            "fleet.yaml:4: tenants[0].keys[0]: key is the hash of an empty key; run 'holdfast",
        ),
        (TENANT.replace(ONE, ONE[:-1]), "fleet.yaml:4: tenants[0].keys[0]: key is not a hash"),
        (
            f"tenants:\n  - name: t\n    keys: {PLAIN}\n",
            "fleet.yaml:3: tenants[0].keys: keys is not a list; use lines of '- sha256:…'",
        ),
        (
            "tenants:\n  - name: t\n    keys: []\n",
            "fleet.yaml:3: tenants[0].keys: has 0 items; use at least 1",
        ),
        (
            f"tenants:\n  - name: t\n    key: {PLAIN}\n",
            (
                "fleet.yaml:2: tenants[0].keys: is missing; add hashes of its API keys\n"
                "fleet.yaml:3: tenants[0].key: is not a known key; did you mean 'keys'?"
            ),
        ),
        (
            f"{TENANT}      - {ONE}\n",
            "fleet.yaml:5: tenants[0].keys[1]: is the same as tenants[0].keys[0]; give each key",
        ),
        (
            f"{TENANT}  - name: u\n    keys: ['{ONE}']\n",
            "fleet.yaml:6: tenants[1].keys[0]: is the same as tenants[0].keys[0]; give each key",
        ),
        (
            f"{TENANT}  - name: t\n    keys: ['{TWO}']\n",
            "fleet.yaml:5: tenants[1].name: is 't', as that of tenants[0]; list the keys",
        ),
        (
            f"{TENANT}    models: [big, huge]\n",
            (
                "fleet.yaml:5: tenants[0].models[1]: is 'huge', which is in no part of this file; "
                "use one of big, small"
            ),
        ),
        (
            f"{TENANT}    regions: [mars]\n",
            (
                "fleet.yaml:5: tenants[0].regions[0]: is 'mars', which is in no part of this file; "
                "use one of region-a"
            ),
        ),
        (
            f"{TENANT}    quota: {{requests_per_minute: -1}}\n",
            "fleet.yaml:5: tenants[0].quota.requests_per_minute: is -1.0; use a positive number",
        ),
        (
            f"{TENANT}    priority: urgent\n",
            "fleet.yaml:5: tenants[0].priority: must be one of 'interactive' or 'batch'",
        ),
        (
            f"{TENANT}    weight: 0\n",
            "fleet.yaml:5: tenants[0].weight: must be at least 0.001 (is 0); use a share",
        ),
    ],
)
def test_a_bad_tenant_is_refused_where_it_stands(tmp_path, text, told):
    said = refused(tmp_path, text + MODELS)
    assert said.startswith(told)
    assert PLAIN not in said


@pytest.mark.parametrize("key", ["a", "~", "zz", "changeme", "EMPTY"])
def test_the_hash_of_a_key_that_is_guessed_at_once_is_refused_by_name(tmp_path, key):
    text = TENANT.replace(ONE, hash_key(key))
    with pytest.raises(ConfigFileError) as caught:
        read(tmp_path, text + MODELS)
    told = str(caught.value)
    assert "tenants[0].keys[0]" in told
    assert "guessed at once" in told
    assert "holdfast keys new" in told
    assert read(tmp_path, f"{text}    insecure: true\n{MODELS}").tenants[0].insecure


def test_a_key_has_an_id_an_end_and_a_file_of_its_own(tmp_path):
    secret = tmp_path / "key"
    secret.write_text("hf-kept-in-a-file-of-its-own\r\n")
    keys = f"[{{file: {secret}, id: ci, expires: 2027-01-31}}, '{ONE}']"
    file = read(tmp_path, f"tenants: [{{name: t, keys: {keys}}}]\n{MODELS}")
    ours, bare = file.tenants[0].keys
    assert (ours.hash, ours.name) == (hash_key("hf-kept-in-a-file-of-its-own"), "ci")
    assert (bare.name, bare.expires_at, ours.expires_at > 0) == (ONE[7:15], 0.0, True)
    assert file.secret_files == (secret,)
    travelled = FleetFile.from_json(file.to_json())
    secret.unlink()
    assert FleetFile.from_json(file.to_json()) == travelled == file  # read once, by control
    assert json.loads(file.to_json())["tenants"][0]["keys"][1] == ONE


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("{id: x}", "has neither hash nor file"),
        ("{file: key}", "is a relative path"),
        ("{file: /nowhere/at/all}", "cannot be read"),
        ("{file: /dev/zero}", "is larger than 4 KiB"),
        ("{file: /dev/null}", "does not hold one key"),
        (f"{{hash: '{ONE}', expires: soon}}", "write a day such as 2027-01-31"),
        (f"{{hash: '{ONE}', id: 'a b'}}", "id"),
        (f"{{hash: '{ONE}', what: 1}}", "what"),
        ("{hash: my-secret-key}", "is not a hash"),
    ],
)
def test_a_bad_key_is_refused_where_it_stands(tmp_path, key, told):
    with pytest.raises(ConfigFileError) as caught:
        read(tmp_path, f"tenants:\n  - name: t\n    keys:\n      - {key}\n{MODELS}")
    assert "tenants[0].keys[0]" in str(caught.value)
    assert told in str(caught.value)
    assert "my-secret" not in str(caught.value)


def test_a_new_key_can_be_hashed_and_used():
    key = new_key()
    assert key.startswith("hf-")
    assert len(key) == 46
    assert key != new_key()
    hashed = hash_key(key)
    assert key not in hashed
    assert [key.hash for key in TenantSection(name="t", keys=[hashed]).keys] == [hashed]


def test_the_hash_is_plain_sha256():
    told = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert hash_key("abc") == told


@pytest.mark.parametrize("key", ["", "a b", "a,b", "é", "a\n", "x" * 513])
def test_a_key_that_no_header_can_carry_has_no_hash(key):
    with pytest.raises(ValueError, match="visible ASCII") as caught:
        hash_key(key)
    assert not key or key not in str(caught.value)
