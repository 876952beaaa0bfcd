"""Finds the admin port of a command's options, and sends requests to it."""

import functools
import json
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import click

from holdfast.control.access.trust import trusting
from holdfast.control.http_client import FetchError, HttpAnswer, UntrustedError, request
from holdfast.core.near_names import fix_of_name
from holdfast.ui.terminal.untrusted_text import escape
from holdfast.wire.own_token import find_token, read_token
from holdfast.wire.state_dir import default_state_dir, read_running

if TYPE_CHECKING:
    from holdfast.config.fleet_file import FleetFile

DEADLINE_S: Final = 5.0
DEFAULT_ADMIN: Final = "http://127.0.0.1:8001"
TOKEN_VARIABLE: Final = "HOLDFAST_ADMIN_TOKEN"  # noqa: S105 a name, no token
UNTRUSTED: Final = (
    "name its fleet file with -c, or its authority with --ca; where the certificate was renewed, "
    "start the fleet anew"
)
NO_TOKEN: Final = (
    f"set {TOKEN_VARIABLE}, or name the fleet that you run here with -c or --state-dir"
)

_INCIDENTS_ASKED: Final = 1_000  # as many as the admin port tells at once

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


@dataclass(slots=True, frozen=True)
class Admin:
    """An admin port with its token and trusted certificate."""

    url: str
    token: str | None = None
    tls: ssl.SSLContext | None = None  # whom to believe there; None: the system's authorities

    def ask(self, path: str, *, body: bytes | None = None, method: str | None = None) -> HttpAnswer:
        """Send one request and return its answer; without one the command ends with a message."""
        url = self.url.rstrip("/")
        try:
            return request(
                url, path, DEADLINE_S, bearer=self.token, body=body, method=method, tls=self.tls
            )
        except FetchError as error:
            raise click.ClickException(f"{self.url}: {error}; {way_out(error, url)}") from error

    def told(self, path: str) -> Any:
        """GET a page and return its JSON; ends the command with a message if it is refused."""
        answer = self.ask(path)
        if answer.status != 200:
            raise click.ClickException(why(answer))
        return json.loads(answer.body)


def way_out(error: FetchError, url: str) -> str:
    """A hint for people after a request without an answer."""
    if isinstance(error, UntrustedError):
        return UNTRUSTED
    if error.lost and urlsplit(url).scheme == "http":
        return f"if admin.tls is set in its fleet file, use https{url[4:]} with -c or --ca"
    return "is 'holdfast up' or 'holdfast serve' running?"


def why(answer: HttpAnswer) -> str:
    """The error message of a refusal."""
    try:
        told = escape(str(json.loads(answer.body)["error"]))
    except (ValueError, KeyError, TypeError):
        return f"the admin port answered {answer.status}"
    return f"{told}; {NO_TOKEN}" if answer.status == 401 else told


def why_not(admin: Admin, answer: HttpAnswer, kind: str, name: str) -> str:
    """The error message of a refusal about one of ``kind``: replicas, models or incidents.

    An unknown name is told with the near one, or with those that there are.
    """
    told = why(answer)
    known = _known(admin, kind) if answer.status == 404 else [name]
    return told if name in known else f"{told}; {escape(fix_of_name(name, known, kind))}"


def _known(admin: Admin, kind: str) -> list[str]:
    """The names of all replicas, models or incidents that the admin port lists."""
    if kind == "incidents":
        found = admin.told(f"/incidents?limit={_INCIDENTS_ASKED}")
        return [str(row["id"]) for row in found.get("incidents") or []]
    found = admin.told("/status")
    field = "id" if kind == "replicas" else "model"
    names = [str(row[field]) for row in found.get("replicas") or [] if field in row]
    if kind == "models":  # one that has no replica now is there, too
        names += [*(found.get("models") or {})]
    return list(dict.fromkeys(names))


def which_fleet(command: CommandT) -> CommandT:
    """Decorator: adds the options by which ``up`` and ``down`` identify a fleet."""
    config = click.option("-c", "--config", type=click.Path(path_type=Path), help="Its fleet file.")
    state_dir = click.option(
        "--state-dir",
        type=click.Path(path_type=Path, file_okay=False),
        help="Where it keeps its state, if not at the usual place.",
    )
    return config(state_dir(command))


def which_admin(command: CommandT) -> CommandT:
    """Decorator: adds the options that name an admin port."""
    url = click.option(
        "--admin",
        "url",
        help=f"The admin port. Default: where the fleet that runs has it, or {DEFAULT_ADMIN}.",
    )
    token = click.option(
        "--token-env",
        default=TOKEN_VARIABLE,
        show_default=True,
        help="The environment variable that holds the admin token. Where it is not set, the token "
        "of the fleet that runs here is read from its state directory.",
    )
    ca = click.option(
        "--ca",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Trust this PEM file of an authority, where the admin port has TLS. Default: the "
        "certificate of the fleet that runs here, or of the file of -c; else the system's.",
    )
    return url(token(ca(command)))


def asks_admin(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator: adds the admin port's options and passes the port as ``admin``."""

    @which_admin
    @which_fleet
    @functools.wraps(command)
    def asked(
        *,
        url: str | None,
        token_env: str,
        ca: Path | None,
        config: Path | None,
        state_dir: Path | None,
        **options: Any,
    ) -> None:
        command(admin=admin_of(url, token_env, config, state_dir, ca), **options)

    return asked


def admin_of(
    url: str | None,
    token_env: str,
    config: Path | None,
    state_dir: Path | None = None,
    ca: Path | None = None,
) -> Admin:
    """The admin port that these options name."""
    folder = state_dir or default_state_dir(config, os.environ)
    running = read_running(folder)
    address, certificate, token = url or DEFAULT_ADMIN, "", os.environ.get(token_env)
    if running is not None and (url is None or url.rstrip("/") == running.admin):
        address, certificate = running.admin, running.certificate
        token = token or read_token(folder)
    elif config is not None and (url is None or (url.startswith("https:") and ca is None)):
        admin = read_fleet_file(config).admin
        address = url or f"{'https' if admin.tls else 'http'}://{admin.address.reached}"
        certificate = str(admin.tls.certificate) if admin.tls else ""
    _check(address)
    own = Path(certificate) if certificate else None
    return Admin(address, token or find_token(address, os.environ), trusting(address, ca, own))


def read_fleet_file(path: Path) -> "FleetFile":
    """Read a fleet file; imports its reader late, which takes half a second."""
    from holdfast.config.files import load  # noqa: PLC0415
    from holdfast.config.fleet_file import FleetFile  # noqa: PLC0415

    return load(path, FleetFile)


def _check(url: str) -> None:
    try:
        parts = urlsplit(url)
        well = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        well = False
    if not well:
        raise click.UsageError(f"--admin {url}: not a URL such as {DEFAULT_ADMIN}")


__all__ = [
    "DEFAULT_ADMIN",
    "NO_TOKEN",
    "TOKEN_VARIABLE",
    "UNTRUSTED",
    "Admin",
    "admin_of",
    "asks_admin",
    "read_fleet_file",
    "way_out",
    "which_admin",
    "which_fleet",
    "why",
    "why_not",
]
