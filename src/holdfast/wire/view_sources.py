"""Builds the view's sources from the fleet file, for control and for a single reading.

Each kind brings packages that others do without, so each is imported where it is built; a package
that is missing is an error of that source alone, and its text says what to install.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from holdfast.config.fleet_file import FleetFile
from holdfast.config.sources import (
    AgentsSection,
    AwsSection,
    KubernetesSection,
    LocalSection,
    RaySourceSection,
)
from holdfast.core.diagnose.facts import Looked
from holdfast.core.diagnose.investigation import Investigation, InvestigationConfig
from holdfast.core.view.fleet_records import FleetRecords
from holdfast.core.view.layers import Part, Reading
from holdfast.core.view.reading_diff import ReadingDiff
from holdfast.core.view.snapshot import Snapshot
from holdfast.core.view.snapshot_join import join
from holdfast.ports import Source

if TYPE_CHECKING:
    from holdfast.control.process import Control
    from holdfast.control.view.agent_claims import AgentGrant
    from holdfast.sources.kubernetes.config import KubernetesConfig

ONCE_S: Final = 60.0  # for one look; a source's own calls give up sooner
_TEXT_MAX: Final = 300

Make = Callable[[Any], Source]


def build_source(section: Any, control: "Control | None" = None) -> Source:
    """Build one source from its section; raises if its package is missing or settings fail."""
    name = section.called
    if isinstance(section, AwsSection):
        from holdfast.sources.aws.config import AwsConfig  # noqa: PLC0415 boto3 is an extra
        from holdfast.sources.aws.source import AwsSource  # noqa: PLC0415

        return AwsSource(name, _config(AwsConfig, section))
    if isinstance(section, KubernetesSection):
        from holdfast.sources.kubernetes.source import KubernetesSource  # noqa: PLC0415 an extra

        return KubernetesSource(name, kubernetes_config(section))
    if isinstance(section, RaySourceSection):
        from holdfast.sources.ray.config import RayConfig  # noqa: PLC0415 as above
        from holdfast.sources.ray.source import RaySource  # noqa: PLC0415

        return RaySource(name, _config(RayConfig, section))
    if isinstance(section, AgentsSection):
        return _inbox(section, control)
    assert isinstance(section, LocalSection), f"no source is built from {section!r}"
    return _local(section, control)


def kubernetes_config(section: KubernetesSection) -> "KubernetesConfig":
    """The config of a Kubernetes source."""
    from holdfast.sources.kubernetes.config import KubernetesConfig  # noqa: PLC0415 an extra

    config: KubernetesConfig = _config(KubernetesConfig, section)
    return config


def _config(kind: type[Any], section: Any) -> Any:
    """Build a source's config from its section; what the file leaves open keeps its default."""
    own = {one.name for one in fields(kind)}
    return kind(**{name: value for name, value in section.settings().items() if name in own})


def _local(section: LocalSection, control: "Control | None") -> Source:
    from holdfast.sources.local import LocalConfig, LocalSource  # noqa: PLC0415 as above

    config = _config(LocalConfig, section)
    if control is None:
        return LocalSource(section.called, config)
    summary = control.summary
    return LocalSource(
        section.called, config, replicas=summary.local_replicas, gpus=summary.gpu_report
    )


def _inbox(section: AgentsSection, control: "Control | None") -> Source:
    from holdfast.control.view.agents import AgentInbox, AgentsConfig  # noqa: PLC0415 as above

    config = replace(_config(AgentsConfig, section), agents=_grants(section))
    if control is None:
        return AgentInbox(section.called, config)
    # Whom an agent may speak of: all that anybody has declared, itself included.
    return AgentInbox(
        section.called,
        config,
        saw=control.saw,
        replicas=control.replica_names,
        launched=control.launched_names,
    )


def _grants(section: AgentsSection) -> "tuple[AgentGrant, ...]":
    from holdfast.control.view.agent_claims import AgentGrant  # noqa: PLC0415 as above

    return tuple(
        AgentGrant(
            one.name,
            one.token,
            one.host,
            tuple(one.replicas),
            one.certificate,
            tuple(one.groups),
            tuple(one.disks),
        )
        for one in section.agents
    )


# --- the operators' port --------------------------------------------------------------------------


def admin_app(control: "Control") -> Any:
    """Build control's ASGI application: admin paths, dashboard and agents' reports."""
    from holdfast.control.admin.admin import build_admin  # noqa: PLC0415 gateways do without
    from holdfast.control.view.agents import AgentDoor, AgentInbox, agent_routes  # noqa: PLC0415
    from holdfast.control.view.history import history_routes  # noqa: PLC0415
    from holdfast.planner import redundancy  # noqa: PLC0415
    from holdfast.planner.page import plans  # noqa: PLC0415
    from holdfast.ui.web.plans import plan_routes  # noqa: PLC0415
    from holdfast.ui.web.routes import web_routes  # noqa: PLC0415

    section = control.file.admin
    control.source_poller.follow(control.file.sources)

    def agents() -> AgentsSection | None:
        found = (one for one in control.file.sources if isinstance(one, AgentsSection))
        return next(found, None)

    def inbox() -> AgentInbox | None:
        """Of the config that runs now; a reload may bring another."""
        named = agents()
        source = control.source_poller.source(named.called) if named is not None else None
        assert source is None or isinstance(source, AgentInbox), "it was made of that section"
        return source

    def token() -> str | None:
        named = agents()
        return named.token if named is not None else None

    def grants() -> "tuple[AgentGrant, ...]":
        named = agents()
        return _grants(named) if named is not None else ()

    access = control.access
    reports = agent_routes(inbox)
    more = [
        *reports,
        *web_routes(access, lambda: control.file, control.view.snapshot, redundancy),
        *plan_routes(plans()),
    ]
    if control.sampler is not None:
        more += history_routes(control.sampler.history)
    app = build_admin(control.admin, section, more, access=access)
    return AgentDoor(app, token=token, routes=reports, agents=grants)


# --- one look without a control -------------------------------------------------------------------


async def read_once(file: FleetFile, make: Make = build_source) -> Snapshot:
    """Read every source of a fleet file once, concurrently, and join them with incidents found.

    It knows nothing of gateways and canaries: only a running control does.
    """
    began = time.monotonic()
    readings = await asyncio.gather(*(_read(section, make) for section in file.sources))
    took = time.monotonic() - began
    names = {one.url: one.replica.id for one in file.replicas()}
    now, wall = time.monotonic_ns(), time.time()
    config = file.incidents.investigation()
    config = replace(config, acting=replace(config.acting, dry_run=True))  # nobody acts on a look
    investigation = _look(readings, names, now, wall, config)
    found = investigation.incidents.values()
    made = join(readings, FleetRecords(), found, wall, now, names=names, took_s=took)
    return replace(made, version=1)


async def _read(section: Any, make: Make) -> Reading:
    """Read one source; if that fails, return a reading that says why."""
    source: Source | None = None
    try:
        source = make(section)
        async with asyncio.timeout(ONCE_S):
            return await source.read()
    except TimeoutError:
        told = f"no answer for {ONCE_S:.0f} s"
    except Exception as error:  # noqa: BLE001 one source that fails must not cost the others
        told = str(error)[:_TEXT_MAX] or type(error).__name__
    finally:
        if source is not None:
            await source.close()
    now = time.time()
    return Reading(section.called, section.type, now, (Part("all", None, told, now),))


def _look(
    readings: Sequence[Reading],
    names: dict[str, str],
    now: int,
    wall: float,
    config: InvestigationConfig,
) -> Investigation:
    investigation, diff = Investigation(config), ReadingDiff()
    diff.follow(names)
    for reading in readings:
        for fact in diff.take(reading, now, wall):
            investigation.take(fact, now)
    investigation.take(Looked(), now)
    return investigation


__all__ = ["ONCE_S", "build_source", "kubernetes_config", "read_once"]
