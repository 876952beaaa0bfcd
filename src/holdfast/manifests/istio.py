"""Resources of Istio that eject, retry and wait as a fleet file says.

For each model a ``DestinationRule`` (ejection, budget, connections) and a ``VirtualService``
(retries, timeout); where the file lists the replicas, a ``ServiceEntry`` gives them a name first.

Istio has fewer words than Envoy: no share of failures, no longest ejection, no longest wait between
two tries. ``DEPARTURES`` says so.
"""

import re
from typing import Any, Final

from holdfast.core.types import require
from holdfast.manifests.envoy import retry_on
from holdfast.manifests.proxy_rules import ProxyRules, duration

_API: Final = "networking.istio.io/v1"
_DOMAIN: Final = "holdfast.internal"  # of the names that a ServiceEntry gives to listed replicas
_UNSAFE: Final = re.compile(r"[^a-z0-9-]+")

DEPARTURES: Final = (
    "only failures in a row eject, not their share of the last requests",
    "ejection times have no upper bound of ours: each is a step longer than the last",
)


def resources(rules: tuple[ProxyRules, ...], namespace: str) -> list[dict[str, Any]]:
    """All resources, in the order in which they are to be applied."""
    found: list[dict[str, Any]] = []
    for rule in rules:
        if not rule.targets.service:
            found.append(_service_entry(rule, namespace))
        found += [_destination_rule(rule, namespace), _virtual_service(rule, namespace)]
    return found


def check_names(rules: tuple[ProxyRules, ...]) -> None:
    """Refuse two models whose names Kubernetes could not tell apart."""
    taken: dict[str, str] = {}
    for index, rule in enumerate(rules):
        first = taken.setdefault(resource_name(rule.model), rule.model)
        problem = f"is {rule.model!r}, which has the same name in Kubernetes as {first!r}"
        fix = "rename one: only lower-case letters, digits and dashes are kept"
        require(first == rule.model, f"models[{index}].name", problem, fix)


def resource_name(model: str) -> str:
    """A model's name as a name in Kubernetes: lower-case letters, digits and dashes."""
    return _UNSAFE.sub("-", model.lower()).strip("-")[:63].strip("-") or "model"


def host_of(rule: ProxyRules) -> str:
    """The name under which the mesh knows a model's replicas."""
    if rule.targets.service:
        return rule.targets.targets[0].host
    return f"{resource_name(rule.model)}.{_DOMAIN}"


def _resource(kind: str, rule: ProxyRules, namespace: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": resource_name(rule.model), "namespace": namespace}
    return {"apiVersion": _API, "kind": kind, "metadata": metadata, "spec": spec}


def _service_entry(rule: ProxyRules, namespace: str) -> dict[str, Any]:
    named = any(not _is_address(target.host) for target in rule.targets.targets)
    spec = {
        "hosts": [host_of(rule)],
        "location": "MESH_EXTERNAL",
        "resolution": "DNS" if named else "STATIC",
        "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}],
        "endpoints": [
            {
                "address": target.host,
                "ports": {"http": target.port},
                "locality": f"{target.region}/{target.zone}",
                "weight": target.weight,
            }
            for target in rule.targets.targets
        ],
    }
    return _resource("ServiceEntry", rule, namespace, spec)


def _destination_rule(rule: ProxyRules, namespace: str) -> dict[str, Any]:
    policy: dict[str, Any] = {
        "loadBalancer": {
            "simple": "LEAST_REQUEST",
            "warmup": {
                "duration": duration(rule.slow_start_s),
                "minimumPercent": rule.slow_start_percent,
            },
        },
        "connectionPool": {
            "tcp": {
                "connectTimeout": duration(rule.timeouts.connect_s),
                "maxConnections": rule.in_flight_max,
            },
            "http": {
                "http1MaxPendingRequests": rule.waiting_max,
                "http2MaxRequests": rule.in_flight_max,
                "idleTimeout": duration(rule.timeouts.pooled_s),
            },
        },
    }
    if rule.ejection is not None:
        policy["outlierDetection"] = {
            "consecutive5xxErrors": rule.ejection.consecutive,
            "consecutiveGatewayErrors": 0,  # they are 5xx, and counted there
            "splitExternalLocalOriginErrors": True,
            "consecutiveLocalOriginFailures": rule.ejection.consecutive,
            "interval": duration(rule.ejection.sweep_s),
            "baseEjectionTime": duration(rule.ejection.base_s),
            "maxEjectionPercent": rule.ejection.percent_max,
            "minHealthPercent": 0,  # with it ejection would end where the bound above begins
        }
    if rule.retry.budget_percent is None:
        policy["connectionPool"]["http"]["maxRetries"] = rule.in_flight_max
    else:
        policy["retryBudget"] = {
            "percent": rule.retry.budget_percent,
            "minRetryConcurrency": rule.retry.concurrent_min,
        }
    if rule.targets.secure:
        policy["tls"] = {"mode": "SIMPLE"}
    return _resource(
        "DestinationRule", rule, namespace, {"host": host_of(rule), "trafficPolicy": policy}
    )


def _virtual_service(rule: ProxyRules, namespace: str) -> dict[str, Any]:
    port = rule.targets.targets[0].port if rule.targets.service else 80
    retries: dict[str, Any] = {"attempts": rule.retry.retries}
    if rule.retry.retries:
        codes = [str(status) for status in rule.retry.statuses]
        conditions = retry_on(rule.retry).split(",")
        retries |= {
            "retryOn": ",".join([*conditions, *codes]),
            "backoff": duration(rule.retry.backoff_s),
            "retryIgnorePreviousHosts": True,
            "retryRemoteLocalities": True,
        }
    http: dict[str, Any] = {
        "name": resource_name(rule.model),
        "route": [{"destination": {"host": host_of(rule), "port": {"number": port}}}],
        "timeout": duration(rule.timeouts.request_s),
        "retries": retries,
    }
    if rule.targets.path:
        http["match"] = [{"uri": {"prefix": "/"}}]
        http["rewrite"] = {"uri": f"{rule.targets.path}/"}
    return _resource("VirtualService", rule, namespace, {"hosts": [host_of(rule)], "http": [http]})


def _is_address(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdecimal()


__all__ = ["DEPARTURES", "check_names", "host_of", "resource_name", "resources"]
