"""The agent's settings: control's address, and the processes and logs of replicas.

Everything is checked before the first report: an agent that starts and then reports nothing useful
is itself a silent failure. The token is not a setting. It comes from an environment variable or a
file, since every user can read arguments in the list of processes.
"""

import contextlib
import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from holdfast.core.types import ConfigError, require
from holdfast.engines import dialect
from holdfast.sources.this_host import LocalConfig

TOKEN_VARIABLE: Final = "HOLDFAST_AGENT_TOKEN"  # noqa: S105 a name, no token
TOKEN_FILE_VARIABLE: Final = "HOLDFAST_AGENT_TOKEN_FILE"  # noqa: S105 as above
TOKEN_CHARS_MAX: Final = 512
ENGINE: Final = "openai"  # its dialect knows what drivers, kernels and libraries say

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_REPLICA: Final = re.compile(
    r"(?P<id>[^=\s]{1,200})=(?P<model>\S{1,200}):(?P<how>pid|pidfile|port)=(?P<what>\S.*)"
)
_LOG: Final = re.compile(r"(?:(?P<id>[^=\s/]{1,200})=)?(?P<pattern>/.+)")
_ENGINE: Final = re.compile(r"(?:(?P<id>[^=\s]{1,200})=)?(?P<engine>[a-z]+)")


@dataclass(slots=True, frozen=True)
class ReplicaRule:
    """How to find the process of one replica."""

    id: str
    model: str
    how: str  # pid, pidfile or port
    what: str
    engine: str = ENGINE


@dataclass(slots=True, frozen=True)
class LogRule:
    """Which log files belong to which replica."""

    pattern: str  # as of the shell; "{replica}" stands for an id
    replica: str = ""  # empty: by "{replica}", or by an id in the file's name


@dataclass(slots=True, frozen=True)
class AgentConfig:
    """The settings of one agent, checked on construction."""

    url: str  # of control's admin port
    name: str  # of this agent: one host has one
    ca: str = ""  # a PEM file whose certificates are trusted; empty: the system's
    certificate: str = ""  # a PEM file that is shown to control; empty: none
    key: str = ""  # its private key
    local: LocalConfig = field(default_factory=LocalConfig)  # how often it looks, and at what
    replicas: tuple[ReplicaRule, ...] = ()
    logs: tuple[LogRule, ...] = ()

    def __post_init__(self) -> None:
        check_url(self.url)
        fix = "use letters, digits, '.', '_' and '-', up to 63"
        well = _NAME.fullmatch(self.name) is not None
        require(well, "--name", f"is {self.name[:80]!r}", fix)
        pair = bool(self.certificate) == bool(self.key)
        require(pair, "--key", "and --certificate are not both named", "name both, or neither")
        safe = not self.certificate or self.url.startswith("https:")
        require(safe, "--certificate", "is named for a URL without TLS", "write https://host:port")
        ids = [rule.id for rule in self.replicas]
        twice = next((one for one in ids if ids.count(one) > 1), None)
        require(twice is None, "--replica", f"has {twice!r} twice", "name each replica once")
        for rule in self.logs:
            known = not rule.replica or rule.replica in ids
            fix = "name one of --replica"
            require(known, "--log", f"names {rule.replica!r}, which is no replica here", fix)


def check_url(url: str) -> None:
    """Require https, or http to this machine: else the token would cross the network readable."""
    fix = "write https://host:port, control's admin port"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ConfigError("--url", f"is {url[:80]!r}", fix) from error
    bare = "@" not in url and not parts.query and not parts.fragment
    fits = parts.scheme in {"http", "https"} and bool(host) and port != 0 and bare
    require(fits and url.isascii() and url.isprintable(), "--url", f"is {url[:80]!r}", fix)
    safe = parts.scheme == "https" or _is_loopback(host)
    problem = f"is {url[:80]}: plain http would send the token readable over the network"
    require(safe, "--url", problem, "use https (admin.tls in the fleet file), and --ca if needed")


def read_replicas(texts: Sequence[str], engines: Sequence[str] = ()) -> tuple[ReplicaRule, ...]:
    """Parse ``--replica`` (``ID=MODEL:port=8000``) and ``--engine`` (``vllm`` or ``ID=vllm``)."""
    spoken = _engines(engines)
    rules: list[ReplicaRule] = []
    for text in texts:
        told = _REPLICA.fullmatch(text)
        fix = "write ID=MODEL:port=8000, ID=MODEL:pid=4711 or ID=MODEL:pidfile=/run/engine.pid"
        require(told is not None, "--replica", f"is {text[:120]!r}", fix)
        assert told is not None
        name, how, what = told["id"], told["how"], told["what"]
        number = int(what) if what.isascii() and what.isdecimal() and len(what) < 10 else 0
        most = 65_535 if how == "port" else 1 << 22
        well = what.startswith("/") if how == "pidfile" else 1 <= number <= most
        require(well, "--replica", f"has {how}={what[:80]}", fix)
        rules.append(ReplicaRule(name, told["model"], how, what, spoken.get(name) or spoken[""]))
    ids = [rule.id for rule in rules]
    stray = next((name for name in spoken if name and name not in ids), None)
    require(stray is None, "--engine", f"names {stray!r}, which is no replica here", "correct it")
    return tuple(rules)


def _engines(texts: Sequence[str]) -> dict[str, str]:
    found = {"": ENGINE}
    for text in texts:
        told = _ENGINE.fullmatch(text)
        require(told is not None, "--engine", f"is {text[:80]!r}", "write vllm or ID=vllm")
        assert told is not None
        found[told["id"] or ""] = dialect(told["engine"]).name
    return found


def read_logs(texts: Sequence[str]) -> tuple[LogRule, ...]:
    """Parse ``--log``: ``/var/log/engine/{replica}.log`` or ``ID=/var/log/engine.log``."""
    rules: list[LogRule] = []
    for text in texts:
        told = _LOG.fullmatch(text)
        fix = "write an absolute path or pattern, or ID=/the/path"
        require(told is not None, "--log", f"is {text[:120]!r}", fix)
        assert told is not None
        rules.append(LogRule(told["pattern"], told["id"] or ""))
    return tuple(rules)


def read_token(environment: Mapping[str, str]) -> str:
    """Read the token from its environment variable, or from the file that another one names."""
    token, path = environment.get(TOKEN_VARIABLE, ""), environment.get(TOKEN_FILE_VARIABLE, "")
    if not token and path:
        try:
            token = Path(path).read_text(encoding="ascii", errors="replace").strip()
        except OSError as error:
            why = error.strerror or type(error).__name__
            fix = "name a file that this user can read"
            raise ConfigError(TOKEN_FILE_VARIABLE, f"cannot be read: {why}", fix) from error
    fix = f"set it to the token, or {TOKEN_FILE_VARIABLE} to a file that holds it"
    require(bool(token), TOKEN_VARIABLE, "is not set", fix)
    well = token.isascii() and token.isprintable() and " " not in token
    fits = well and len(token) <= TOKEN_CHARS_MAX
    require(fits, TOKEN_VARIABLE, "is no token (it is not repeated here)", "see 'holdfast keys'")
    return token


class CurrentToken:
    """The token as its file has it now: one that is rotated needs no restart of the agent."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Read the token; raises ``ConfigError`` where there is none."""
        self._environment = environment
        self._token = read_token(environment)

    def __call__(self) -> str:
        """The token; the last one that could be read, while its file cannot be."""
        with contextlib.suppress(ConfigError):
            self._token = read_token(self._environment)
        return self._token


def default_name() -> str:
    """The agent's default name: the hostname, with invalid characters replaced."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", os.uname().nodename)[:63].strip("-._")
    return name or "host"


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


__all__ = [
    "ENGINE",
    "TOKEN_FILE_VARIABLE",
    "TOKEN_VARIABLE",
    "AgentConfig",
    "CurrentToken",
    "LogRule",
    "ReplicaRule",
    "check_url",
    "default_name",
    "read_logs",
    "read_replicas",
    "read_token",
]
