"""Opens the store of durable queues that a fleet file names.

The clients of servers are extras: they are imported here, and only for the kind that is named.
"""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from holdfast.config.batch.queue_store import QueueStoreSection
from holdfast.config.files import read_secret
from holdfast.core.types import ConfigError
from holdfast.queue_port import RecordStore
from holdfast.wire.state_dir import default_state_dir

FILE_NAME: Final = "queue.sqlite"
FOLDER_NAME: Final = "batch"  # in the state directory
_EXTRAS: Final = {"postgresql": ("psycopg", "postgres"), "redis": ("redis", "redis")}


def batch_folder(config: Path | None, state_dir: Path | None, environ: Mapping[str, str]) -> Path:
    """The folder in which the batch process of a fleet keeps its files."""
    return (state_dir or default_state_dir(config, environ)) / FOLDER_NAME


def open_queue_store(
    section: QueueStoreSection, folder: Path, environ: Mapping[str, str] = os.environ
) -> RecordStore:
    """Open the store; raises ``ConfigError`` where its client or its URL is missing.

    Nothing is connected or opened before the first call: a server that is away at start is an
    error of that call.
    """
    more: dict[str, Any] = {} if section.items_max is None else {"items_max": section.items_max}
    if section.kind == "sqlite":
        from holdfast.storage.queues.sqlite import SqliteQueue  # noqa: PLC0415 as below

        return SqliteQueue(section.path or folder / FILE_NAME, **more)
    package, extra = _EXTRAS[section.kind]
    if find_spec(package) is None:
        problem = f"is {section.kind}, and its client {package} is not installed"
        raise ConfigError("batch.store.kind", problem, f"pip install 'holdfast[{extra}]'")
    url = _url(section, environ)
    try:
        if section.kind == "postgresql":
            from holdfast.storage.queues.postgres import PostgresQueue  # noqa: PLC0415 an extra

            return PostgresQueue(url, **more)
        from holdfast.storage.queues.redis import RedisQueue  # noqa: PLC0415 an extra

        return RedisQueue(url, **more)
    except ValueError:  # of the URL, which is not repeated: it may hold a password
        fix = "write redis://host:port/0, rediss:// for TLS, or postgresql://user@host/database"
        raise ConfigError("batch.store", "its URL cannot be read", fix) from None


def _url(section: QueueStoreSection, environ: Mapping[str, str]) -> str:
    if section.url_file is not None:
        try:
            return read_secret(section.url_file).strip()
        except ConfigError as error:
            raise ConfigError("batch.store.url_file", error.problem, error.fix) from None
    name = section.url_env or ""
    url = environ.get(name, "").strip()
    if not url:
        fix = f"set {name}, or use url_file"
        raise ConfigError("batch.store.url_env", f"names {name}, which is not set", fix)
    return url


__all__ = ["FILE_NAME", "FOLDER_NAME", "batch_folder", "open_queue_store"]
