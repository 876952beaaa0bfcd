"""Parses addresses to listen on and URLs to call, as a fleet file writes them.

A bad address is refused when the file is read, not when it is first used: by then its line number
is lost. A refused value is repeated only where it cannot hold a secret.
"""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Annotated, Final, NamedTuple
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from holdfast.core.types import ConfigError, require

_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_LISTEN: Final = re.compile(r"(?:\[(?P<v6>[^\]]*)\]|(?P<host>[^:\[\]]*)):(?P<port>[0-9]{1,5})")
_LISTEN_FIX: Final = "write host:port, such as 127.0.0.1:8000 or '[::1]:8000'"
URL_FIX: Final = "write http://host:port or https://host:port"
_URL_PATH: Final = re.compile(r"(?:/[A-Za-z0-9._~-]+)*")
_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]{0,127}")  # capitals: few tokens look like this
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class Address(NamedTuple):
    """A host and port to listen on."""

    host: str  # a name or an IP address, without brackets
    port: int  # 0: any free one

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it. A name other than localhost counts as no."""
        address = _ip(self.host)
        return self.host.lower() == "localhost" if address is None else address.is_loopback

    @property
    def reached(self) -> str:
        """The ``host:port`` for clients on this machine; loopback where it binds every address."""
        address = _ip(self.host)
        host = self.host
        if address is not None and address.is_unspecified:
            host = "127.0.0.1" if address.version == 4 else "::1"
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def overlaps(self, other: "Address") -> bool:
        """Whether two addresses cannot both be bound."""
        if self.port != other.port or not self.port:
            return False
        addresses = (_ip(self.host), _ip(other.host))
        everywhere = any(address is not None and address.is_unspecified for address in addresses)
        return everywhere or self.host.lower() == other.host.lower()


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _is_host(host: str) -> bool:
    """A name or an address. What looks like an address must be one, or it fails much later."""
    if "%" in host or _ip(host) is not None:
        return "%" not in host
    return bool(_HOST.fullmatch(host)) and not host.rpartition(".")[2].isdecimal()


def parse_listen(text: str) -> Address:
    """Parse ``host:port`` or ``[IPv6]:port``; raises ``ConfigError`` if it is neither."""
    match = _LISTEN.fullmatch(text)
    if match is None:
        raise ConfigError("address", f"is {text[:80]!r}", _LISTEN_FIX)
    host, port = match["v6"] or match["host"] or "", int(match["port"])
    require(bool(host), "address", "has no host", "write 0.0.0.0 (with tenants) for every address")
    require(port <= 65_535, "address", f"has the port {port}", "use a port up to 65535")
    known = isinstance(_ip(host), IPv6Address) if match["v6"] is not None else _is_host(host)
    require(known, "address", f"has the host {host[:80]!r}", _LISTEN_FIX)
    return Address(host, port)


def _listen(text: str) -> str:
    parse_listen(text)
    return text


def parse_url(text: str) -> str:
    """Check a URL and return it in one spelling; raises ``ConfigError`` with the fix.

    What holds an '@' may hold a password and is not repeated.
    """
    require("@" not in text, "address", "holds credentials", "remove them; use api_key_env")
    told = f"is {text[:80]!r}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ConfigError("address", told, URL_FIX) from error
    scheme, host = parts.scheme.lower(), parts.hostname or ""
    plain = text.isascii() and text.isprintable() and " " not in text
    require(plain and scheme in _DEFAULT_PORTS, "address", told, URL_FIX)
    require(_is_host(host), "address", told, URL_FIX)
    require(port != 0, "address", "has the port 0", "name the engine's port")
    bare = "?" not in text and "#" not in text
    require(bare, "address", "has a query or fragment", "remove what follows the path")
    path = parts.path.rstrip("/")
    fix = "leave it out: the path that the client asked for is added"
    require(not path.endswith("/v1"), "address", "ends in /v1", fix)
    fits = _URL_PATH.fullmatch(path) is not None
    require(fits, "address", f"has the path {path[:80]!r}", "use letters, digits and '-._~'")
    shown_host = f"[{host}]" if ":" in host else host
    shown_port = "" if port in {None, _DEFAULT_PORTS[scheme]} else f":{port}"
    return f"{scheme}://{shown_host}{shown_port}{path}"


def _variable(value: object) -> str | None:
    """The name of an environment variable; if it is a token after all, it is not repeated."""
    if value is not None and not (isinstance(value, str) and _VARIABLE.fullmatch(value)):
        fix = "write the name, in capitals, of the environment variable that holds the token"
        raise ConfigError("variable", "is not a name (tokens are never written down)", fix)
    return value


Listen = Annotated[
    str, AfterValidator(_listen), Field(description="host:port", examples=["127.0.0.1:8000"])
]
Url = Annotated[
    str, AfterValidator(parse_url), Field(description="a URL", examples=["http://127.0.0.1:9501"])
]
Variable = Annotated[str | None, BeforeValidator(_variable, json_schema_input_type=str | None)]

__all__ = ["URL_FIX", "Address", "Listen", "Url", "Variable", "parse_listen", "parse_url"]
