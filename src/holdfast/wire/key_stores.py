"""Opens the store of idempotency keys that a fleet file names.

The clients of servers are extras: they are imported here, and only for the kind that is named.
"""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from holdfast.config.files import read_secret
from holdfast.config.gateway import KeyStoreSection
from holdfast.core.types import ConfigError
from holdfast.ports import KeyStore
from holdfast.storage.key_stores.sqlite_keys import SqliteKeys

KEYS_FILE: Final = "idempotency.db"  # in the state directory
_EXTRAS: Final = {"postgresql": ("psycopg", "postgres"), "redis": ("redis", "redis")}
_WHERE: Final = "gateway.idempotency.store"


def open_key_store(
    state_dir: Path, section: KeyStoreSection, environ: Mapping[str, str] = os.environ
) -> KeyStore:
    """Make the store of a config; ``ConfigError`` where its client or its URL is missing.

    Nothing is opened or connected before the first call.
    """
    if section.kind == "sqlite":
        return SqliteKeys(section.path or state_dir / KEYS_FILE)
    package, extra = _EXTRAS[section.kind]
    if find_spec(package) is None:
        problem = f"is {section.kind}, and its client {package} is not installed"
        raise ConfigError(f"{_WHERE}.kind", problem, f"pip install 'holdfast[{extra}]'")
    url = _url(section, environ)
    try:
        if section.kind == "postgresql":
            from holdfast.storage.key_stores.postgres_keys import (  # noqa: PLC0415 an extra
                PostgresKeys,
            )

            return PostgresKeys(url)
        from holdfast.storage.key_stores.redis_keys import RedisKeys  # noqa: PLC0415 an extra

        return RedisKeys(url)
    except ValueError:  # of the URL, which is not repeated: it may hold a password
        fix = "write redis://host:port/0, rediss:// for TLS, or postgresql://user@host/database"
        raise ConfigError(_WHERE, "its URL cannot be read", fix) from None


def _url(section: KeyStoreSection, environ: Mapping[str, str]) -> str:
    if section.url_file is not None:
        try:
            return read_secret(section.url_file).strip()
        except ConfigError as error:
            raise ConfigError(f"{_WHERE}.url_file", error.problem, error.fix) from None
    name = section.url_env or ""
    url = environ.get(name, "").strip()
    if not url:
        fix = f"set {name}, or use url_file"
        raise ConfigError(f"{_WHERE}.url_env", f"names {name}, which is not set", fix)
    return url


__all__ = ["KEYS_FILE", "open_key_store"]
