"""Chooses which of control's environment variables an engine gets: an allow-list, never all.

Control's environment holds secrets of other systems: the admin token, keys of a cloud, tokens of
other engines. An engine runs third-party code and prints its environment when it fails. Rejected:
a list of what is withheld. A secret has any name, and the next one is not on the list.
"""

import re
from collections.abc import Collection, Mapping
from typing import Final

from holdfast.config.launch import names_secret

_NAMES: Final = frozenset(
    {
        *("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR"),
        *("LANG", "TZ"),
        *("PYTHONPATH", "VIRTUAL_ENV"),  # engines that are started by our own interpreter
    }
)
# Weights are fetched through them. They are spelled in small letters, too.
_PROXIES: Final = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"})
_PREFIXES: Final = ("CUDA", "NVIDIA", "NCCL_", "OMP_", "HF_", "VLLM_", "LC_")
_URL_WITH_PASSWORD: Final = re.compile(r"://[^/?#\s]*@")


def engine_environment(own: Mapping[str, str], passed: Collection[str]) -> dict[str, str]:
    """The variables of ``own`` that an engine gets; ``passed`` adds names of the fleet file."""
    return {name: value for name, value in own.items() if name in passed or _harmless(name, value)}


def _harmless(name: str, value: str) -> bool:
    if name.upper() in _PROXIES:
        return "@" not in value  # USER:PASSWORD@HOST, with a scheme or without
    listed = name in _NAMES or name.startswith(_PREFIXES)
    return listed and not names_secret(name) and _URL_WITH_PASSWORD.search(value) is None


__all__ = ["engine_environment"]
