"""Decides which URLs of pictures, sounds and files an engine may be sent for.

An engine fetches what a request names, from inside the operator's network: without a look at the
URL its caller reads there, through the engine, what was never meant for callers. Here it is read as
the laxest of all clients would read it, and refused where two of them could disagree.

    data: ─► passes            nothing is fetched
    http, https ─► the host ─► listed ─► passes
                           └─► "*" is listed, and it is a public address or name ─► passes
    anything else ─► refused   files of the engine's host, and what no engine needs

What a name resolves to is seen by the engine alone, as are redirects. Rejected: to resolve names
here. The engine would resolve them again, and be told something else.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final
from unicodedata import category, normalize

ANY_PUBLIC: Final = "*"
BASE64_LEAST: Final = 256  # characters: no path of a file is so long without a dot
HOST_CHARACTERS_MAX: Final = 253  # of a name in DNS

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network

_scheme: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):").match
_authority: Final = re.compile(r"//([^/?#\\]+)(?:[/?#]|\Z)").match
_place: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:@%\s]+))(?::[0-9]{0,5})?").fullmatch
_name: Final = re.compile(r"[\w-]+(?:\.[\w-]+)*").fullmatch  # letters of any script
_number: Final = re.compile(r"0x[0-9a-f]*|[0-9]+").fullmatch
_base64: Final = re.compile(r"[A-Za-z0-9+/_=\s-]+").fullmatch

# Names below these are never public; the last label of a name without a dot is all of it.
_PRIVATE_SUFFIXES: Final = frozenset(
    {
        *("corp", "home", "home.arpa", "internal", "intranet", "lan", "local", "localdomain"),
        *("private", "svc"),
    }
)
_CLOSED: Final[tuple[tuple[IpNetwork, str], ...]] = tuple(
    (ip_network(network), kind)
    for kind, networks in (
        ("an unspecified address", ("0.0.0.0/8", "::/128")),
        ("a loopback address", ("127.0.0.0/8", "::1/128")),
        ("a private address", ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")),
        ("a unique local address", ("fc00::/7", "fec0::/10", "64:ff9b:1::/48")),
        ("a metadata address", ("169.254.169.254/32", "168.63.129.16/32", "192.0.0.0/24")),
        ("a link-local address", ("169.254.0.0/16", "fe80::/10")),
        ("a multicast address", ("224.0.0.0/4", "ff00::/8")),
        (
            "a reserved address",
            (
                *("192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
                *("192.88.99.0/24", "240.0.0.0/4", "2001:2::/48", "2001:10::/28"),
                *("2001:db8::/32", "3fff::/20"),
            ),
        ),
    )
    for network in networks
)
_PUBLIC_V6: Final = IPv6Network("2000::/3")
# Prefixes whose addresses hold an IPv4 address, and how many bits stand behind it.
_HOLD_V4: Final = (
    (IPv6Network("::ffff:0:0/96"), 0),  # mapped
    (IPv6Network("::ffff:0:0:0/96"), 0),  # translated
    (IPv6Network("::/96"), 0),  # compatible
    (IPv6Network("64:ff9b::/96"), 0),  # NAT64
    (IPv6Network("2002::/16"), 80),  # 6to4
)
_TEREDO: Final = IPv6Network("2001::/32")
_ISATAP: Final = frozenset({0x00005EFE, 0x02005EFE})


class MediaHosts:
    """The hosts that engines may be sent to, as ``gateway.limits.media_hosts`` lists them.

    Names, ``*.name`` for all below one, addresses, networks, and ``*`` for every public host.
    Raises ``ValueError`` for what is none of these.
    """

    __slots__ = ("_names", "_networks", "_public", "_suffixes")

    def __init__(self, listed: tuple[str, ...]) -> None:
        names: set[str] = set()
        suffixes: list[str] = []
        networks: list[IpNetwork] = []
        for entry in listed:
            if entry == ANY_PUBLIC:
                continue
            if entry.startswith("*."):
                suffixes.append(_checked_name(entry[2:]))
                continue
            try:
                networks.append(ip_network(entry.strip("[]")))
            except ValueError:
                names.add(_checked_name(entry))
        self._public = ANY_PUBLIC in listed
        self._names = frozenset(names)
        self._suffixes = tuple(f".{name}" for name in suffixes)
        self._networks = tuple(networks)

    def refusal(self, url: str, *, bare: bool = False) -> str:
        """Why an engine must not be sent for this; empty: it may be, or there is nothing to fetch.

        ``bare``: the member is for base64 as it is. The reason repeats nothing of the URL.
        """
        text = url.strip()
        if not text or text[:5].lower() == "data:":
            return ""
        scheme = _scheme(text)
        if scheme is None:
            long = len(text) >= BASE64_LEAST
            return "" if (bare or long) and _base64(text) else "it is no URL"
        if scheme[1].lower() not in {"http", "https"}:
            return "its scheme is neither http, https nor data"
        authority = _authority(text, scheme.end())
        place = _place(authority[1]) if authority is not None else None
        if place is None:
            return "its host is not written plainly: no user names, escapes or blanks"
        return self._of_address(place[1]) if place[1] else self._of_name(place[2])

    def _of_name(self, host: str) -> str:
        name = _folded(host)
        if _name(name) is None or len(name) > HOST_CHARACTERS_MAX:
            return "its host is no name"
        last = name.rpartition(".")[2]
        if _number(last) or last.isdecimal():
            return self._of_numbers(name)
        if name in self._names or name.endswith(self._suffixes):
            return ""
        if last == "localhost":
            return "its host is this machine"
        if "." not in name or any(name.endswith(f".{one}") for one in _PRIVATE_SUFFIXES):
            return "its host is a private name"
        return "" if self._public else "its host is not listed in gateway.limits.media_hosts"

    def _of_numbers(self, name: str) -> str:
        readings = list(_read_numbers(name))
        if not readings:
            return "its host is no address"
        return next((told for address in readings if (told := self._of_ip(address))), "")

    def _of_address(self, host: str) -> str:
        try:
            address = ip_address(host)
        except ValueError:
            return "its host is no address"
        return self._of_ip(address)

    def _of_ip(self, address: IpAddress) -> str:
        every = [address, *_inside(address)]
        if any(one in network for one in every for network in self._networks):
            return ""
        for one in reversed(every):
            kind = next((kind for network, kind in _CLOSED if one in network), "")
            if kind:
                return f"its host is {kind}"
        if isinstance(address, IPv6Address) and len(every) == 1 and address not in _PUBLIC_V6:
            return "its host is a reserved address"
        return "" if self._public else "its host is not listed in gateway.limits.media_hosts"


@lru_cache(maxsize=16)
def media_hosts(listed: tuple[str, ...]) -> MediaHosts:
    """The rules of a list; each list is read once."""
    return MediaHosts(listed)


def _checked_name(name: str) -> str:
    folded = _folded(name)
    if _name(folded) is None or _number(folded.rpartition(".")[2]):
        raise ValueError(name)
    return folded


def _folded(host: str) -> str:
    """A host as resolvers come to see it: full-width letters and dots, soft hyphens, case."""
    if not host.isascii():
        host = normalize("NFKC", normalize("NFKC", host).casefold()).replace("\u3002", ".")
        host = "".join(sign for sign in host if category(sign) != "Cf")
    return host.lower().removesuffix(".")


def _read_numbers(name: str) -> Iterator[IPv4Address]:
    """What an address in numbers may mean: short forms, hex, and zeros before octal or decimal."""
    parts = name.split(".")
    if len(parts) > 4 or not all(map(_number, parts)):
        return
    for octal in (True, False):
        try:
            numbers = [_value(part, octal=octal) for part in parts]
            *first, last = numbers
            if max(first, default=0) > 255:
                continue
            bits = 8 * (4 - len(first))
            if last < 1 << bits:
                head = sum(number << (24 - 8 * at) for at, number in enumerate(first))
                yield IPv4Address(head | last)
        except ValueError:  # such as 08
            continue


def _value(part: str, *, octal: bool) -> int:
    if len(part) > 32:
        raise ValueError(part)
    if part.startswith("0x"):
        return int(part[2:] or "0", 16)
    return int(part, 8 if octal and part.startswith("0") else 10)


def _inside(address: IpAddress) -> Iterator[IPv4Address]:
    """The IPv4 addresses that an IPv6 address may lead to."""
    if isinstance(address, IPv4Address) or address in {IPv6Address(0), IPv6Address(1)}:
        return
    number = int(address)
    for network, behind in _HOLD_V4:
        if address in network:
            yield IPv4Address((number >> behind) & 0xFFFFFFFF)
            return
    if address in _TEREDO:
        yield IPv4Address((number & 0xFFFFFFFF) ^ 0xFFFFFFFF)
    elif (number >> 32) & 0xFFFFFFFF in _ISATAP:
        yield IPv4Address(number & 0xFFFFFFFF)


__all__ = ["ANY_PUBLIC", "BASE64_LEAST", "MediaHosts", "media_hosts"]
