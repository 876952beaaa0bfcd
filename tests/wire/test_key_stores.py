"""Which store of idempotency keys a fleet file names, and what is wrong with one that cannot be."""

import orjson
import pytest
from pydantic import ValidationError

from holdfast.config.fleet_file import FleetFile
from holdfast.config.gateway import KeyStoreSection
from holdfast.core.types import ConfigError
from holdfast.storage.key_stores.sqlite_keys import SqliteKeys
from holdfast.wire import key_stores
from holdfast.wire.key_stores import open_key_store


def section(**given):
    return KeyStoreSection.model_validate_json(orjson.dumps(given))


def test_sqlite_is_the_default_and_its_file_is_in_the_state_directory(tmp_path):
    store = open_key_store(tmp_path, section())
    assert isinstance(store, SqliteKeys)
    assert store.usage() == {}
    assert (tmp_path / "idempotency.db").exists()
    store.close()
    elsewhere = open_key_store(tmp_path, section(path=str(tmp_path / "below" / "keys.db")))
    assert elsewhere.usage() == {}
    elsewhere.close()
    assert (tmp_path / "below" / "keys.db").exists()


@pytest.mark.parametrize(
    ("given", "field", "fix"),
    [
        ({"kind": "redis"}, "store.url_env", "name the environment variable or the file"),
        ({"kind": "redis", "url_env": "A", "url_file": "/b"}, "store.url_env", "one of them"),
        ({"kind": "redis", "url_env": "A", "path": "/b"}, "store.path", "remove it"),
        ({"url_env": "A"}, "store.url_env", "set kind to postgresql or redis"),
        ({"url_file": "/a"}, "store.url_file", "set kind to postgresql or redis"),
    ],
)
def test_a_store_that_makes_no_sense_is_refused_with_the_fix(given, field, fix):
    with pytest.raises((ValidationError, ConfigError)) as caught:
        section(**given)
    assert field in str(caught.value)
    assert fix in str(caught.value)


def test_a_client_that_is_not_installed_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(key_stores, "find_spec", lambda _: None)
    for kind, extra in (("postgresql", "postgres"), ("redis", "redis")):
        with pytest.raises(ConfigError, match=rf"holdfast\[{extra}\]"):
            open_key_store(tmp_path, section(kind=kind, url_env="URL"), {"URL": "x"})


def test_a_url_that_is_missing_is_told_without_it(tmp_path, monkeypatch):
    monkeypatch.setattr(key_stores, "find_spec", lambda _: object())
    with pytest.raises(ConfigError, match="KEYS_URL, which is not set"):
        open_key_store(tmp_path, section(kind="redis", url_env="KEYS_URL"), {})
    missing = section(kind="redis", url_file=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"gateway\.idempotency\.store\.url_file"):
        open_key_store(tmp_path, missing, {})


def test_it_is_off_by_default_and_its_policy_is_checked():
    models = [{"name": "m", "engine": "vllm", "endpoints": ["http://127.0.0.1:9"]}]

    def fleet(**idempotency):
        given = {"models": models, "gateway": {"idempotency": idempotency}}
        return FleetFile.from_json(orjson.dumps(given))

    assert not fleet().gateway.idempotency.enabled
    made = fleet(enabled=True, policy={"ttl_s": "2h", "answers": "store"}).gateway.idempotency
    assert (made.enabled, made.policy.ttl_s, made.policy.answers) == (True, 7_200.0, "store")
    for policy in ({"ttl_s": 0}, {"answers": "disk"}, {"lease_s": 1.0}, {"unknown": 1}):
        with pytest.raises(ValidationError):
            fleet(policy=policy)
