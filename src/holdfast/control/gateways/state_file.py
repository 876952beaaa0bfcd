"""Keeps the last config and view on disk, for a gateway that starts without control.

The file holds two frames, encoded as on the socket, so that the frame reader reads it. It is
replaced by renaming, so that a reader sees the old state or the new one, never a part. It lies in
the run directory and is removed with it; what must survive a restart of everything is kept by the
store.
"""

import os
from pathlib import Path
from typing import Final

from holdfast.frames import ConfigFrame, FrameError, FrameReader, ViewFrame, encode

STATE_FILE: Final = "state.frames"
SOCKET_FILE: Final = "control.sock"  # beside it, where gateways connect


def write_state(path: Path, config: ConfigFrame, view: ViewFrame | None) -> None:
    """Replace the state file with this config and view, atomically by renaming.

    It is not synced: it must survive a process, not the machine. Raises ``OSError``.
    """
    draft = path.with_suffix(".new")
    with draft.open("wb") as stream:
        stream.write(encode(config))
        if view is not None:
            stream.write(encode(view))
    os.replace(draft, path)  # noqa: PTH105 the same call, and its atomicity is what matters


def read_state(path: Path) -> tuple[ConfigFrame | None, ViewFrame | None]:
    """Read config and view from the state file; None for what is missing or unreadable."""
    try:
        frames = FrameReader().feed(path.read_bytes())
    except (OSError, FrameError):
        return None, None
    config = next((frame for frame in frames if isinstance(frame, ConfigFrame)), None)
    view = next((frame for frame in frames if isinstance(frame, ViewFrame)), None)
    return config, view


__all__ = ["SOCKET_FILE", "STATE_FILE", "read_state", "write_state"]
