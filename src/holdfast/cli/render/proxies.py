"""``holdfast render envoy`` and ``istio``: rules of a fleet file for proxies in the path."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from holdfast.cli.render.output import named, print_manifest
from holdfast.config.addresses import Address, parse_listen
from holdfast.config.files import load
from holdfast.config.fleet_file import FleetFile
from holdfast.core.types import ConfigError, require
from holdfast.manifests import istio as mesh
from holdfast.manifests.envoy import bootstrap
from holdfast.manifests.proxy_rules import departures_of, rules_of

_PAGE: Final = "docs/operating/proxies.md"
_ADMIN: Final = "127.0.0.1:9901"


def _services(
    _context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    found: dict[str, str] = {}
    for value in values:
        model, between, place = value.partition("=")
        if not between or not model or not place:
            told = f"{value[:80]!r} is not MODEL=HOST:PORT"
            raise click.BadParameter(told, param=parameter)
        if model in found:
            raise click.BadParameter(f"{model!r} is given twice", param=parameter)
        found[model] = place
    return found


def _address(_context: click.Context, parameter: click.Parameter, value: str | None) -> Address:
    if value is None:
        return Address("", 0)
    try:
        return parse_listen(value)
    except ConfigError as error:
        raise click.BadParameter(f"{error.problem}; {error.fix}", param=parameter) from error


def _shared(command: Callable[..., None]) -> Callable[..., None]:
    """The options that both commands have."""
    options = [
        click.option(
            "-c", "--config", type=click.Path(path_type=Path), required=True, help="The fleet file."
        ),
        click.option(
            "--service",
            "services",
            multiple=True,
            metavar="MODEL=HOST:PORT",
            callback=_services,
            help="The name of a model's replicas, where the file does not list them. Repeatable.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@_shared
@click.option(
    "--listen", callback=_address, metavar="HOST:PORT", help="Default: gateway.listen of the file."
)
@click.option(
    "--admin",
    callback=_address,
    default=_ADMIN,
    show_default=True,
    metavar="HOST:PORT",
    help="Envoy's own admin port; anybody who reaches it may stop Envoy.",
)
@click.option(
    "--streams-only",
    is_flag=True,
    help="All clients stream: a silence is then cut like a late first token.",
)
@click.option(
    "--without-keys",
    is_flag=True,
    help="Accept that Envoy checks no tenant's key: whoever reaches it is served.",
)
def envoy(
    config: Path,
    services: dict[str, str],
    listen: Address,
    admin: Address,
    *,
    streams_only: bool,
    without_keys: bool,
) -> None:
    """Print a configuration of Envoy that ejects, retries and waits as the fleet file says.

    For fleets that cannot have Holdfast in the path of requests. Above it stands what Envoy does
    otherwise. Made for Envoy 1.40; check it with 'envoy --mode validate -c FILE'.

    \b
    Examples:
      holdfast render envoy -c fleet.yaml > envoy.yaml
      holdfast render envoy -c fleet.yaml --service llama=llama.ml.svc:8000
    """  # noqa: D301
    file = load(config, FleetFile)
    fix = "add --without-keys if something in front of it checks callers"
    known = without_keys or not file.tenants
    require(known, "tenants", "have keys and quotas, and Envoy would check neither", fix)
    rules = rules_of(file, services, streams_only=streams_only)
    place = listen if listen.port else file.gateway.address
    require(bool(place.port), "gateway.listen", "has the port 0", "name one with --listen")
    apart = not place.overlaps(admin)
    require(apart, "admin", "is where clients connect, too", "use another port with --admin")
    notes = departures_of(file, rules)
    if file.tenants:
        notes.append("tenants, their keys and quotas are not known to it: anybody is served")
    print_manifest([bootstrap(file, rules, place, admin)], "envoy", _PAGE, notes)


@click.command()
@_shared
@click.option(
    "--namespace",
    default="default",
    show_default=True,
    callback=named("namespace", 63),
    help="Where the resources go.",
)
def istio(config: Path, services: dict[str, str], namespace: str) -> None:
    """Print resources of Istio that eject, retry and wait as the fleet file says.

    A DestinationRule and a VirtualService for each model, and a ServiceEntry where the file lists
    its replicas. Above them stands what Istio does otherwise. Made for Istio 1.31.

    \b
    Examples:
      holdfast render istio -c fleet.yaml --namespace ml
      holdfast render istio -c fleet.yaml --service llama=llama.ml.svc:8000
    """  # noqa: D301
    file = load(config, FleetFile)
    rules = rules_of(file, services)
    mesh.check_names(rules)
    notes = [*departures_of(file, rules), *mesh.DEPARTURES]
    print_manifest(mesh.resources(rules, namespace), "istio", _PAGE, notes)


__all__ = ["envoy", "istio"]
