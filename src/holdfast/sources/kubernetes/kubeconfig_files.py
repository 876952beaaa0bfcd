"""Reads kubeconfig files as kubectl does: several of them are one, and the first to name it wins.

``KUBECONFIG`` may name several files. Files that are missing are passed over; where a context, a
cluster, a user or the current context is in more than one, the first file's counts. Paths in a file
are relative to that file, so they are made absolute before the files become one.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

USUAL: Final = "~/.kube/config"
_KINDS: Final = {"clusters": "cluster", "contexts": "context", "users": "user"}
_PATHS: Final = {
    "cluster": ("certificate-authority",),
    "user": ("client-certificate", "client-key", "tokenFile"),
}


def kubeconfig_paths(given: str = "") -> list[Path]:
    """The files to read: those given, else those of ``KUBECONFIG``, else the usual one."""
    named = given or os.environ.get("KUBECONFIG") or USUAL
    return [Path(one).expanduser() for one in named.split(os.pathsep) if one]


def merged_kubeconfig(paths: Sequence[Path]) -> dict[str, Any]:
    """The content of all files as one; raises FileNotFoundError where there is none of them."""
    merged: dict[str, dict[str, Any]] = {kind: {} for kind in _KINDS}
    current = ""
    found = [path for path in paths if path.is_file()]
    if not found:
        raise FileNotFoundError(f"kubeconfig not found: {', '.join(map(str, paths))}")
    for path in found:
        told = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(told, dict):
            raise ValueError(f"{path} is no kubeconfig")  # noqa: TRY004 - bad data, no bug
        current = current or str(told.get("current-context") or "")
        for kind, member in _KINDS.items():
            for entry in told.get(kind) or ():
                merged[kind].setdefault(entry["name"], _absolute(entry, member, path.parent))
    return {
        "current-context": current or None,
        **{kind: list(entries.values()) for kind, entries in merged.items()},
    }


def _absolute(entry: dict[str, Any], member: str, folder: Path) -> dict[str, Any]:
    told = dict(entry[member] or {})
    for name in _PATHS.get(member, ()):
        if told.get(name):
            told[name] = str(folder / told[name])
    plugin = told.get("exec") if member == "user" else None
    if isinstance(plugin, dict) and "/" in str(plugin.get("command") or ""):
        told["exec"] = {**plugin, "command": str(folder / plugin["command"])}
    return {**entry, member: told}


__all__ = ["USUAL", "kubeconfig_paths", "merged_kubeconfig"]
