"""Asks the Kubernetes API servers of a fleet file which rights its account lacks there."""

from typing import Any

from holdfast.config.fleet_file import FleetFile
from holdfast.config.sources import KubernetesSection
from holdfast.doctor import Advice, AdviceLevel
from holdfast.ports import UnreadableError

_FIX = "bind the roles of examples/kubernetes/rbac.yaml to its account; see docs, Kubernetes"
_POOLS = "kubectl apply -f examples/kubernetes/inference-pools.yaml"
_LEASE = "apply the Role of deploy/kubernetes/overlays/two-gateways/lease.yaml"


async def check_rights(file: FleetFile) -> list[Advice]:
    """Advice for each right that sources and the lease of a file need and do not have."""
    found: list[Advice] = []
    for index, section in enumerate(file.sources):
        if isinstance(section, KubernetesSection):
            found += await _of_source(f"sources.{index}", section)
    lease = file.control.lease
    if lease is not None and lease.store == "kubernetes":
        from holdfast.sources.kubernetes.config import KubernetesConfig  # noqa: PLC0415 an extra
        from holdfast.sources.kubernetes.rights import lease_rights  # noqa: PLC0415

        needed = lease_rights(lease.namespace, lease.name)
        found += await _asked("control.lease", KubernetesConfig(), needed)
    return found


async def _of_source(where: str, section: KubernetesSection) -> list[Advice]:
    from holdfast.sources.kubernetes.rights import source_rights  # noqa: PLC0415 an extra
    from holdfast.wire.view_sources import kubernetes_config  # noqa: PLC0415

    config = kubernetes_config(section)
    return await _asked(where, config, source_rights(config))


async def _asked(where: str, config: Any, rights: Any) -> list[Advice]:
    from holdfast.sources.kubernetes.api import KubernetesApi  # noqa: PLC0415 an extra
    from holdfast.sources.kubernetes.rights import lacking_rights  # noqa: PLC0415

    api = KubernetesApi(config)
    try:
        lacking = await lacking_rights(api, rights)
    except UnreadableError as error:
        told = f"its API server cannot be asked for rights: {error}"
        fix = "see that it is reachable from here, and which account is used"
        return [Advice(AdviceLevel.ERROR, where, told, fix)]
    finally:
        await api.close()
    return [_advice(where, one) for one in lacking]


def _advice(where: str, right: Any) -> Advice:
    level = AdviceLevel.ERROR if right.needed else AdviceLevel.NOTE
    fix = _POOLS if "inference" in right.group else _LEASE if right.resource == "leases" else _FIX
    return Advice(level, where, f"may not {right}: {right.without}", fix)


__all__ = ["check_rights"]
