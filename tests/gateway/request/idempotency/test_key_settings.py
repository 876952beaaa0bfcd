"""How a gateway process follows the settings of idempotency keys."""

import asyncio
from types import SimpleNamespace

import orjson
import pytest
import structlog

from holdfast.config.fleet_file import FleetFile
from holdfast.core.types import ConfigError
from holdfast.gateway.request.idempotency.key_settings import KeySettings
from holdfast.gateway.telemetry.counters import Counters
from holdfast.ports import KeyStoreError
from holdfast.testing.key_store import MemoryKeys


def fleet(**idempotency):
    models = [{"name": "m", "engine": "vllm", "endpoints": ["http://127.0.0.1:9"]}]
    given = {"models": models, "gateway": {"idempotency": idempotency}}
    return FleetFile.from_json(orjson.dumps(given))


class Driver:
    """Notes how keys are served."""

    def __init__(self):
        self.observer = SimpleNamespace(counters=Counters())
        self.used = []

    def use_keys(self, keyed):
        self.used.append(keyed)

    def close(self):
        for keyed in filter(None, self.used):
            assert keyed.close()


def follow(keys, file, driver, *, starting=True):
    keys.follow(file.gateway.idempotency, driver, starting=starting)


def missing(section):
    raise ConfigError("gateway.idempotency.store.url_env", "names X, which is not set", "set X")


def test_keys_follow_the_config_and_an_unchanged_one_keeps_them():
    async def main():
        driver = Driver()
        keys = KeySettings(lambda _: MemoryKeys())
        follow(keys, fleet(), driver)
        follow(keys, fleet(enabled=True), driver)
        follow(keys, fleet(enabled=True), driver, starting=False)
        follow(keys, fleet(enabled=True, policy={"ttl_s": 60}), driver, starting=False)
        follow(keys, fleet(), driver, starting=False)
        off, on, changed, last = driver.used
        assert (off, last) == (None, None)
        assert (on.config.ttl_s, changed.config.ttl_s) == (86_400.0, 60.0)
        driver.close()

    asyncio.run(main())


def test_a_store_that_cannot_be_made_refuses_a_reload_and_not_a_start():
    async def main():
        driver = Driver()
        keys = KeySettings(missing)
        with pytest.raises(ConfigError, match="not set"):
            follow(keys, fleet(enabled=True), driver, starting=False)
        assert driver.used == []
        with structlog.testing.capture_logs() as logs:
            follow(keys, fleet(enabled=True), driver)
            (keyed,) = driver.used
            with pytest.raises(KeyStoreError, match="names X"):
                keyed.thread._store.usage()
            driver.close()
        assert any("get 503" in line["event"] for line in logs)

    asyncio.run(main())
