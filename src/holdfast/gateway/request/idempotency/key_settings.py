"""Serves idempotency keys as the config says: opens their store, and replaces the service."""

import asyncio
from collections.abc import Callable
from time import monotonic_ns

import structlog

from holdfast.config.gateway import IdempotencySection, KeyStoreSection
from holdfast.core.types import ConfigError
from holdfast.gateway.request.idempotency.key_thread import NoKeys
from holdfast.gateway.request.idempotency.keyed_requests import KeyedRequests
from holdfast.gateway.request.request_driver import RequestDriver
from holdfast.ports import KeyStore

OpenKeyStore = Callable[[KeyStoreSection], KeyStore]  # makes the store of idempotency keys

_log = structlog.get_logger("holdfast.gateway")


class KeySettings:
    """The config that idempotency keys are served by, and what opens their store.

    Without anything that opens stores keys are not served.
    """

    def __init__(self, open_store: OpenKeyStore | None) -> None:
        self._open_store = open_store
        self._served_by: IdempotencySection | None = None

    def follow(self, section: IdempotencySection, driver: RequestDriver, *, starting: bool) -> None:
        """Serve idempotency keys as the config says; unchanged, what is held stays.

        A store that cannot be made is a reason to refuse a new config, and none not to start:
        requests without a key need none.
        """
        if section == self._served_by:
            return
        if not section.enabled or self._open_store is None:
            self._served_by = section
            driver.use_keys(None)
            return
        store: KeyStore
        try:
            store = self._open_store(section.store)
        except ConfigError as error:
            if not starting:
                raise
            _log.error("no store: requests with an idempotency key get 503", reason=str(error))
            store = NoKeys(str(error))
        self._served_by = section
        loop = asyncio.get_running_loop()
        counters = driver.observer.counters
        driver.use_keys(
            KeyedRequests(section.policy, store, counters, loop=loop, now_ns=monotonic_ns)
        )


__all__ = ["KeySettings", "OpenKeyStore"]
