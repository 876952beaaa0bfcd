"""Asks the Kubernetes API servers of a fleet file which rights its account lacks there.

An API server answers such questions (SelfSubjectAccessReview) to everybody who is known to it, and
nothing is changed by them.
"""

import asyncio
from typing import Final

from holdfast.config.fleet_file import FleetFile
from holdfast.core.types import ConfigError
from holdfast.doctor import Advice, AdviceLevel
from holdfast.ports import UnreadableError
from holdfast.sources.kubernetes.api import KubernetesApi
from holdfast.sources.kubernetes.config import KubernetesConfig
from holdfast.wire.kubernetes.rights import KubernetesAction, PartRights, rights_of_file

_REVIEWS: Final = "apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_UNASKED_FIX: Final = (
    "run it where Holdfast runs, or check the kubeconfig, the context or api_url, and its account"
)

_Refused = set[KubernetesAction]


async def check_rights(file: FleetFile, *, demanded: bool = False) -> list[Advice]:
    """Advice for each right that a fleet file needs and its account does not have.

    An API server that cannot be asked is a warning, because a file may be checked where no cluster
    is; it is an error where the answer was ``demanded``. Each server is asked once for all parts.
    """
    parts = rights_of_file(file)
    servers = list(dict.fromkeys(part.server for part in parts))
    level = AdviceLevel.ERROR if demanded else AdviceLevel.WARNING
    answers = await asyncio.gather(*(_ask(server, parts) for server in servers))
    answer_of = dict(zip(servers, answers, strict=True))
    return [advice for part in parts for advice in _advice(part, answer_of[part.server], level)]


async def _ask(server: KubernetesConfig, parts: list[PartRights]) -> _Refused | Exception:
    """What one API server refuses of all that is needed there, or why it cannot be asked.

    What several parts need alike is one question.
    """
    needed = {one.action for part in parts if part.server == server for one in part.rights}
    try:
        api = KubernetesApi(server)
    except ConfigError as error:  # its package is not installed
        return error
    try:
        return {action for action in sorted(needed) if not await _is_allowed(api, action)}
    except UnreadableError as error:
        return error
    finally:
        await api.close()


async def _is_allowed(api: KubernetesApi, action: KubernetesAction) -> bool:
    resource, _, part = action.resource.partition("/")
    asked = {
        "group": action.group,
        "resource": resource,
        "verb": action.verb,
        "namespace": action.namespace,
        "name": action.name,
        "subresource": part,
    }
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {key: value for key, value in asked.items() if value}},
    }
    answer = await api.send("POST", _REVIEWS, body)
    return bool((answer.get("status") or {}).get("allowed"))


def _advice(part: PartRights, answer: _Refused | Exception, unasked: AdviceLevel) -> list[Advice]:
    """One row for each right that a part lacks, or one that says why nothing is known."""
    if isinstance(answer, set):
        return [
            Advice(
                AdviceLevel.ERROR if right.needed else AdviceLevel.NOTE,
                part.where,
                f"may not {right.action}: {right.without}",
                right.fix,
            )
            for right in part.rights
            if right.action in answer
        ]
    why, fix = str(answer), _UNASKED_FIX
    if isinstance(answer, ConfigError):
        why, fix = f"{answer.field} {answer.problem}", answer.fix
    told = f"its API server cannot be asked for rights: {why}"
    return [Advice(unasked, part.where, told, fix)]


__all__ = ["check_rights"]
