"""Reads tokens of the admin port and of agents from files of their own, as a secret store has them.

    admin: {token_file: /run/secrets/admin-token}

The file holds the token or its hash, on one line. It is read when the fleet file is, and again when
it changes; only the hash goes further. So a token is rotated by writing its file anew.
"""

from pathlib import Path
from typing import Any

from pydantic import ValidationInfo

from holdfast.config.tenants import hash_in
from holdfast.core.types import ConfigError


def with_token_of_file(data: Any, info: ValidationInfo) -> Any:
    """The members of a section, with the hash of the token in ``token_file`` as its ``token``.

    A section that control sends on has both: its hash was read there, and the file is not opened
    again.
    """
    if not isinstance(data, dict) or data.get("token_file") is None:
        return data
    if data.get("token") is not None:
        if info.context:  # of control: see PLACED in ``models``
            return data
        raise ConfigError("token_file", "is set beside token", "keep one of them")
    path = data["token_file"]
    if not isinstance(path, str | Path):
        return data  # the check of its type says what is wrong
    try:
        return {**data, "token": hash_in(Path(path))}
    except ConfigError as error:
        raise ConfigError("token_file", error.problem, error.fix) from None


__all__ = ["with_token_of_file"]
