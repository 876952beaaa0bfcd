"""The secret by which controls and gateways of one machine know each other."""

import contextlib
import os
from pathlib import Path
from secrets import token_hex

from holdfast.config.processes.control import ControlSection
from holdfast.core.types import ConfigError
from holdfast.frames.authentication import LinkSecret


def keep_link_secret(section: ControlSection) -> None:
    """Make the secret where it is missing, readable by its owner alone; check that it can be used.

    The controls of a machine may start at once: whoever is first makes it. One that cannot be used
    is not replaced, as the other controls may have it. Raises ``ConfigError``.
    """
    path = section.shared_secret
    if path is None:
        return
    try:
        if not path.exists():
            _make(path)
        LinkSecret(path).read()
    except OSError as error:
        field = "control.secret_file" if section.secret_file is not None else "control.lease.path"
        problem = f"has a secret that cannot be used: {path} {error.strerror or error}"
        fix = "let all controls run as one user that owns the file (0600); remove it for a new one"
        raise ConfigError(field, problem, fix) from error


def _make(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(draft, flags, 0o600), "w", encoding="ascii") as file:
            file.write(f"{token_hex(32)}\n")
        with contextlib.suppress(FileExistsError):  # another control was first
            os.link(draft, path)  # never replaces it, and never shows half of it
    finally:
        draft.unlink(missing_ok=True)


__all__ = ["keep_link_secret"]
