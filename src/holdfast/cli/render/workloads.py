"""``holdfast render kubernetes``: the workloads of a fleet's models, to be applied as they are."""

from pathlib import Path
from typing import Final

import click

from holdfast.cli.render.output import print_manifest
from holdfast.config.files import load
from holdfast.config.fleet_file import FleetFile
from holdfast.manifests.workload_file import WorkloadFile
from holdfast.manifests.workloads import manifests

_PAGE: Final = "docs/operating/kubernetes-workloads.md"


@click.command()
@click.option(
    "-c", "--config", type=click.Path(path_type=Path), required=True, help="The fleet file."
)
@click.option(
    "-w",
    "--workloads",
    type=click.Path(path_type=Path),
    required=True,
    help="The workloads file: images, replicas and nodes of the models.",
)
def kubernetes(config: Path, workloads: Path) -> None:
    """Print Deployments, StatefulSets or LeaderWorkerSets for the models of a fleet file.

    With probes that are the engine's own, a readiness that follows Holdfast's verdict and fails
    open, a grace that exceeds the drain, and a disruption budget from the spares.

    \b
    Example:
      holdfast render kubernetes -c fleet.yaml -w workloads.yaml
    """  # noqa: D301
    file, described = load(config, FleetFile), load(workloads, WorkloadFile)
    documents, notes = manifests(file, described)
    for note in notes:
        click.echo(f"holdfast render: {note}", err=True)
    print_manifest(documents, "kubernetes", _PAGE)


__all__ = ["kubernetes"]
