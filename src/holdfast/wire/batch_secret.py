"""The secret by which gateways know the batch runner of this run."""

import os
from pathlib import Path
from secrets import token_hex

from holdfast.frames.batch_load import RUNNER_SECRET_FILE


def write_secret(run_dir: Path) -> None:
    """Write a new secret into the folder of this run, readable by its owner alone."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(run_dir / RUNNER_SECRET_FILE, flags, 0o600), "w") as file:
        file.write(token_hex(32))


__all__ = ["write_secret"]
