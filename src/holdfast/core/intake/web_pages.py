"""Tells requests that a foreign web page may have sent from those of programs and own pages.

A port that listens on loopback alone is reached by every browser of its machine, and so by every
page that somebody visits there. Browsers give such requests away:

    Host          a page whose own name resolves to 127.0.0.1 sends that name
    Origin        a page of another host is named in every request that may change something
    content type  a page sends plain text and forms without asking; JSON only after it has asked

Programs send the address that they were given as Host, and no Origin.
"""

import ipaddress
import re
from collections.abc import Collection
from typing import Final

_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
_PLACE: Final = r"(\[[0-9a-f:.%]+\]|[^:/?#@\[\]\s]+)(?::([0-9]*))?"
_origin: Final = re.compile(rf"(https?)://{_PLACE}", re.IGNORECASE).fullmatch
_host: Final = re.compile(_PLACE, re.IGNORECASE).fullmatch


def is_own_host(host: str, names: Collection[str] = ()) -> bool:
    """Whether a Host header names this machine: loopback with any port, or one of ``names``.

    ``0.0.0.0`` and ``[::]`` count, too: no name resolves to what is already an address.
    """
    match = _host(host)
    if match is None:
        return False
    name = match[1].strip("[]").lower()
    if name == "localhost" or name in names:
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def is_same_host(origin: str, host: str) -> bool:
    """Whether an Origin header names the host and port that the request is sent to."""
    page, asked = _origin(origin), _host(host)
    if page is None or asked is None:  # "null", other schemes, ports that are none
        return False
    default = _DEFAULT_PORTS[page[1].lower()]
    same_port = (page[3] or default) == (asked[2] or default)
    return same_port and page[2].lower() == asked[1].lower()


def is_json(content_type: str) -> bool:
    """Whether a Content-Type header says JSON, with or without parameters."""
    return content_type.partition(";")[0].strip().lower() == "application/json"


__all__ = ["is_json", "is_own_host", "is_same_host"]
