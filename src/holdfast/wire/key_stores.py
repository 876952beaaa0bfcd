"""Opens the store of idempotency keys that a fleet file names.

A server's library is imported only where it is used: it comes with an extra of its own.
"""

from pathlib import Path
from typing import Final

from holdfast.config.gateway import KeyStoreSection
from holdfast.ports import KeyStore
from holdfast.storage.key_stores.sqlite_keys import SqliteKeys

KEYS_FILE: Final = "idempotency.db"


def open_key_store(state_dir: Path, section: KeyStoreSection) -> KeyStore:
    """Make the store of a config; it connects at its first use, and again after a failure."""
    return SqliteKeys(section.path or state_dir / KEYS_FILE)


__all__ = ["KEYS_FILE", "open_key_store"]
