"""``holdfast agent``: report what this host sees to a control on another one."""

import os
import sys

import click
import msgspec

from holdfast.agent.settings import (
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    AgentConfig,
    default_name,
    read_logs,
    read_replicas,
    read_token,
)
from holdfast.sources.this_host import LocalConfig


@click.command()
@click.option("--url", required=True, help="Control's admin port: https://host:port.")
@click.option("--ca", default="", help="A PEM file of certificates to trust, for own ones.")
@click.option("--certificate", default="", help="A PEM file to show to control, if it asks.")
@click.option("--key", default="", help="The private key of that certificate, as a PEM file.")
@click.option("--name", help="What this agent is called. Default: the hostname.")
@click.option("--group", default="", help="Hosts that are made alike share one.")
@click.option("--zone", default="", help="Where the host is, for people.")
@click.option(
    "--replica",
    "replicas",
    multiple=True,
    metavar="ID=MODEL:WHERE",
    help="A replica here; WHERE is port=N, pid=N or pidfile=/PATH. May be repeated.",
)
@click.option(
    "--engine",
    "engines",
    multiple=True,
    metavar="[ID=]ENGINE",
    help="Whose words the logs are in, such as vllm; for one replica or for all.",
)
@click.option(
    "--log",
    "logs",
    multiple=True,
    metavar="[ID=]PATTERN",
    help="Log files, such as '/var/log/vllm/{replica}.log'. May be repeated.",
)
@click.option(
    "--mount",
    "mounts",
    multiple=True,
    metavar="[NAME=]PATH",
    help="A shared filesystem to watch. Default: all NFS, Ceph and their like.",
)
@click.option("--period", type=float, default=5.0, show_default=True, help="Seconds to a report.")
@click.option("--once", is_flag=True, help="Send one report, say how that went, and end.")
def agent(
    *,
    url: str,
    ca: str,
    certificate: str,
    key: str,
    name: str | None,
    group: str,
    zone: str,
    replicas: tuple[str, ...],
    engines: tuple[str, ...],
    logs: tuple[str, ...],
    mounts: tuple[str, ...],
    period: float,
    once: bool,
) -> None:
    """Report this host, its replicas and logs to control.

    Until SIGTERM. For hosts without a cloud's or Kubernetes' API. The token is read from the
    environment variable HOLDFAST_AGENT_TOKEN, or from the file that HOLDFAST_AGENT_TOKEN_FILE
    names. Texts of log lines never leave the host, only what they mean. Renewed files of token and
    certificate are used without a restart.

    \b
    Examples:
      holdfast agent --url https://control:8001 --replica r1=qwen:port=8000
      holdfast agent --url http://127.0.0.1:8001 --once
    """  # noqa: D301
    called = name or default_name()
    config = AgentConfig(
        url=url,
        name=called,
        ca=ca,
        certificate=certificate,
        key=key,
        local=LocalConfig(period_s=period, host=called, group=group, zone=zone, mounts=mounts),
        replicas=read_replicas(replicas, engines),
        logs=read_logs(logs),
    )
    read_token(os.environ)  # before anything else begins: its absence is a mistake of the caller
    _become([*(["once"] if once else []), msgspec.json.encode(config).decode()])


def _become(arguments: list[str]) -> None:
    """Replace this process by the agent's own, which is half as large."""
    os.execv(sys.executable, [sys.executable, "-m", "holdfast.agent", *arguments])  # noqa: S606


__all__ = ["TOKEN_FILE_VARIABLE", "TOKEN_VARIABLE", "agent"]
