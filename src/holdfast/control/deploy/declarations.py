"""Derives facts about replicas (memory, host, versions, chains) from the fleet file and host.

The host of a listed endpoint is that of its URL unless the file names another: it is the best guess
there is, and two replicas at one address do fail together. What is not declared is unknown.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from holdfast.config.fleet_file import FleetFile, ModelSection
from holdfast.config.incidents import FootprintSection
from holdfast.control.deploy.launched_replica import LaunchedReplica
from holdfast.core.diagnose.facts import ChainDeclared, Declared, VersionsSeen
from holdfast.core.types import Replica
from holdfast.core.view.layers import Reading
from holdfast.launchers.weights import KNOWN, path_of

FILES_MAX: Final = 4_096  # of one folder of weights
_CUDA: Final = "CUDA_VERSION"  # what NVIDIA's images, and those built on them, say of themselves


def declared_of(
    file: FleetFile,
    units: Mapping[str, LaunchedReplica],
    host: str,
    sizes: Mapping[str, int | None],
) -> dict[str, Declared]:
    """A ``Declared`` fact for each replica of the fleet file, by id: host, memory, zone and so on.

    ``sizes`` has the bytes of weights by path; ``host`` is the name of this host, for replicas
    launched on it.
    """
    found: dict[str, Declared] = {}
    for model in file.models:
        for deployed, endpoint in zip(model.deployed(), model.endpoints, strict=True):
            replica = deployed.replica
            unit = units.get(replica.id)
            here = host if unit is not None and not unit.on else ""
            where = here or endpoint.host or urlsplit(endpoint.url).hostname
            found[replica.id] = _declared(model, replica, where or "", unit, sizes)
    return found


def _declared(
    model: ModelSection,
    replica: Replica,
    host: str,
    unit: LaunchedReplica | None,
    sizes: Mapping[str, int | None],
) -> Declared:
    footprint = model.footprint
    weights = footprint.weights
    if weights is None and unit is not None:
        weights = sizes.get(unit.spec.weights)
    memory = model.launch.memory if model.launch is not None else None
    return Declared(
        replica.id,
        model.name,
        replica.revision,
        host,
        replica.zone,
        model.filesystem,
        needs_gpu=footprint.gpu,
        weights_bytes=weights,
        kv_bytes=footprint.kv,
        reserved_bytes=memory.reservation if memory is not None else None,
        limit_bytes=memory.limit if memory is not None else None,
        managed=unit is not None,
    )


def with_placed(
    declared: Mapping[str, Declared],
    placed: Mapping[str, Declared],
    footprints: Mapping[str, FootprintSection] | None = None,
) -> dict[str, Declared]:
    """The declarations of the file, with those of platforms added or filled in. Changes no input.

    For a replica in both, the platform names the host and fills fields that the file leaves open. A
    model's footprint of the file counts before what a platform says it needs.
    """
    found = dict(declared)
    for name, one in placed.items():
        own = found.get(name)
        footprint = footprints.get(one.model) if footprints else None
        told = one if footprint is None else _with_footprint(one, footprint)
        found[name] = told if own is None else _filled(own, told)
    return found


def _with_footprint(placed: Declared, footprint: FootprintSection) -> Declared:
    return replace(
        placed,
        needs_gpu=placed.needs_gpu if footprint.gpu is None else footprint.gpu,
        weights_bytes=footprint.weights or placed.weights_bytes,
        kv_bytes=footprint.kv or placed.kv_bytes,
    )


def reading_with_footprints(
    reading: Reading, footprints: Mapping[str, FootprintSection]
) -> Reading:
    """The reading, with ``needs_gpu`` set by models' footprints where they say so.

    The same object where nothing differs.
    """
    said = {name: one.gpu for name, one in footprints.items() if one.gpu is not None}
    if all(said.get(row.model, row.needs_gpu) is row.needs_gpu for row in reading.placed):
        return reading
    rows = (
        replace(row, needs_gpu=said[row.model]) if row.model in said else row
        for row in reading.placed
    )
    return replace(reading, placed=tuple(rows))


def _filled(own: Declared, placed: Declared) -> Declared:
    told = {
        name: getattr(placed, name)
        for name in ("filesystem", "needs_gpu", "reserved_bytes", "limit_bytes")
        if getattr(own, name) in (None, "")
    }
    return replace(own, host=placed.host or own.host, **told)


def chains_of(file: FleetFile) -> list[ChainDeclared]:
    """The chains of models that the fleet file declares, as facts."""
    return [ChainDeclared(chain.name, tuple(chain.models)) for chain in file.chains]


def versions_of(
    unit: LaunchedReplica,
    environment: Mapping[str, str],
    driver: str | None,
    cuda: str | None,
    engine: str = "",
) -> VersionsSeen:
    """The versions (CUDA, driver, NCCL, engine, weights) of a launched replica; empty is unknown.

    Its own ``CUDA_VERSION`` counts before control's, and that before the driver's.
    """
    own = unit.environment.get(_CUDA) or environment.get(_CUDA) or cuda or ""
    digests = {path_of(name): known.sha256 for name, known in KNOWN.items()}
    return VersionsSeen(
        unit.id,
        own,
        driver or "",
        unit.version or engine,
        digests.get(unit.spec.weights, ""),
        nccl=unit.nccl,
    )


def weights_size(path: str) -> int | None:
    """Bytes of a weights file, or of the files directly in a folder. Blocks on the disk.

    None: not an absolute path, not there, not readable or empty.
    """
    place = Path(path)
    if not path or not place.is_absolute():
        return None
    try:
        if place.is_file():
            return place.stat().st_size
        files = [one for one in sorted(place.iterdir())[:FILES_MAX] if one.is_file()]
        return sum(one.stat().st_size for one in files) or None
    except OSError:  # not there yet, or not ours to read: unknown
        return None


__all__ = [
    "FILES_MAX",
    "chains_of",
    "declared_of",
    "reading_with_footprints",
    "versions_of",
    "weights_size",
    "with_placed",
]
