"""Commands for a running fleet: status, logs, scale, drain, undrain, restart."""

import http.client
import json
import ssl
import sys
from typing import Any
from urllib.parse import quote, urlsplit

import click

from holdfast.cli.admin_port import UNTRUSTED, Admin, asks_admin, why_not
from holdfast.control.http_client import HttpAnswer, UntrustedError
from holdfast.core.near_names import fix_of_name
from holdfast.ui.terminal.untrusted_text import LogEscaper, escape


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--pid", "replica", metavar="REPLICA", help="Print only this replica's process id.")
@asks_admin
def status(admin: Admin, replica: str | None, *, as_json: bool) -> None:
    """Show replicas, why they are as they are, and what happened.

    \b
    Examples:
      holdfast status
      holdfast status --json
      kill -9 $(holdfast status --pid smollm2-1)
    """  # noqa: D301
    found = admin.told("/status")
    if replica is not None:
        click.echo(_pid(found, replica))
        return
    if as_json:
        click.echo(json.dumps(found))
        return
    from holdfast.ui.terminal.fleet import EVENTS_SHOWN, show_status  # noqa: PLC0415 tables only

    answer = admin.ask(f"/events?limit={EVENTS_SHOWN}")
    events = json.loads(answer.body).get("events") if answer.status == 200 else None
    show_status(found, events or [])


def _pid(found: dict[str, Any], replica: str) -> int:
    rows = {str(row["id"]): row for row in found.get("replicas") or []}
    if replica not in rows:
        fix = escape(fix_of_name(replica, rows, "replicas"))
        raise click.ClickException(f"no such replica; {fix}")
    pid = rows[replica].get("pid")
    if not isinstance(pid, int):
        raise click.ClickException(f"{replica} has no process here; it is {rows[replica]['state']}")
    return pid


@click.command()
@click.argument("replica")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is added, until Ctrl-C.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0, 10_000),
    default=200,
    show_default=True,
    help="How many of the last lines.",
)
@asks_admin
def logs(admin: Admin, replica: str, lines: int, *, follow: bool) -> None:
    """Print what a replica's engine wrote.

    Of replicas that Holdfast started itself, kept across their restarts; and of pods that a
    Kubernetes source of the fleet file lists, as Kubernetes has it, without --follow.

    \b
    Examples:
      holdfast logs smollm2-1
      holdfast logs smollm2-1 -n 20 -f
    """  # noqa: D301
    path = f"/replicas/{quote(replica)}/logs?lines={lines}"
    if follow:
        _follow(admin, f"{path}&follow=1", replica)
        return
    answer = admin.ask(path)
    if answer.status != 200:
        raise click.ClickException(why_not(admin, answer, "replicas", replica))
    # Of pipes and files the engine's own bytes are expected; a terminal would obey some of them.
    raw = answer.body
    _write(escape(raw.decode(errors="backslashreplace")).encode() if _in_terminal() else raw)


def _follow(admin: Admin, path: str, replica: str) -> None:
    """Copy a log that has no end. A client without a deadline: a quiet replica is no error."""
    parts = urlsplit(admin.url)
    headers = {"authorization": f"Bearer {admin.token}"} if admin.token else {}
    host = parts.hostname or ""
    connection = http.client.HTTPConnection(host, parts.port)
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(host, parts.port, context=admin.tls)
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}{path}", headers=headers)
        response = connection.getresponse()
        if response.status != 200:
            answer = HttpAnswer(response.status, {}, response.read())
            raise click.ClickException(why_not(admin, answer, "replicas", replica))
        escaper = LogEscaper() if _in_terminal() else None
        while piece := response.read1(65_536):
            _write(piece if escaper is None else escaper.feed(piece).encode())
        if escaper is not None:
            _write(escaper.close().encode())
    except ssl.SSLCertVerificationError as error:
        told = UntrustedError(error)
        raise click.ClickException(f"{admin.url}: {told}; {UNTRUSTED}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise click.ClickException(f"{admin.url}: {str(reason).lower()}") from error
    except KeyboardInterrupt:
        return  # how one stops reading
    finally:
        connection.close()
    click.echo(f"the log of {replica} ends here", err=True)


def _in_terminal() -> bool:
    return sys.stdout.isatty()


def _write(text: bytes) -> None:
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


# --- orders ---------------------------------------------------------------------------------------


@click.command()
@click.argument("model")
@click.argument("replicas", metavar="N", type=click.IntRange(0, 256))
@asks_admin
def scale(admin: Admin, model: str, replicas: int) -> None:
    """Set the number of replicas of a model.

    It holds until the fleet file says another number. New ones serve when they have passed their
    canary; surplus ones finish their requests first. Watch it with 'holdfast status'.

    \b
    Example:
      holdfast scale smollm2 4
    """  # noqa: D301
    body = json.dumps({"replicas": replicas}).encode()
    _order(admin, "models", model, "scale", body)


@click.command()
@click.argument("replica")
@asks_admin
def drain(admin: Admin, replica: str) -> None:
    """Send a replica nothing new, and let it finish what it has.

    It stays out of service until 'holdfast undrain'.

    \b
    Example:
      holdfast drain smollm2-1
    """  # noqa: D301
    _order(admin, "replicas", replica, "drain")


@click.command()
@click.argument("replica")
@asks_admin
def undrain(admin: Admin, replica: str) -> None:
    """Take a drained replica back into service.

    \b
    Example:
      holdfast undrain smollm2-1
    """  # noqa: D301
    _order(admin, "replicas", replica, "undrain")


@click.command()
@click.argument("replica")
@asks_admin
def restart(admin: Admin, replica: str) -> None:
    """Drain a replica and start it again.

    \b
    Example:
      holdfast restart smollm2-1
    """  # noqa: D301
    _order(admin, "replicas", replica, "restart")


def _order(admin: Admin, kind: str, name: str, what: str, body: bytes | None = None) -> None:
    answer = admin.ask(f"/{kind}/{quote(name)}/{what}", body=body, method="POST")
    if answer.status not in {200, 202}:
        raise click.ClickException(why_not(admin, answer, kind, name))
    try:
        told = json.loads(answer.body)["reason"]
    except (ValueError, KeyError, TypeError):
        told = f"{name}: {what} was accepted"
    click.echo(told)


__all__ = ["drain", "logs", "restart", "scale", "status", "undrain"]
