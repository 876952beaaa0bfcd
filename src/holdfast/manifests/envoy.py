"""A configuration of Envoy that ejects, retries and waits as a fleet file says.

    listener ─► json_to_metadata (the request's "model") ─► route by it ─► cluster of the model

Envoy reads the model from the body of a request by a filter of its own, so that one port serves all
models. A file with one model needs no such filter, and whatever is asked goes there.

429, and 5xx *with* Retry-After, are a busy replica that says so: they are no failures
(``error_matcher``). Failures of connections are counted by themselves, since they cannot be a
client's doing.
"""

import re
from ipaddress import ip_address
from typing import Any, Final

from holdfast.config.addresses import Address
from holdfast.config.fleet_file import FleetFile
from holdfast.config.models import EngineTlsSection
from holdfast.manifests.proxy_rules import EjectionRule, ProxyRules, RetryRule, duration

_TYPE: Final = "type.googleapis.com/envoy."
_EXTENSIONS: Final = f"{_TYPE}extensions."
_PROTOCOLS: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_NAMESPACE: Final = "holdfast"  # of the metadata that routes read
_HEADER_KB_MAX: Final = 8_192  # Envoy's own bound
_DNS_S: Final = 5.0  # a pod that is gone must not be asked for a minute
_HOST_TRIES: Final = 3  # to find a replica that was not asked yet
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")


def bootstrap(
    file: FleetFile, rules: tuple[ProxyRules, ...], listen: Address, admin: Address
) -> dict[str, Any]:
    """The whole configuration, for ``envoy -c``."""
    tls_of = {model.name: model.tls for model in file.models}
    return {
        "admin": {"address": _socket(admin.host, admin.port)},
        "static_resources": {
            "listeners": [_listener(file, rules, listen)],
            "clusters": [_cluster(rule, tls_of.get(rule.model)) for rule in rules],
        },
    }


def cluster_name(model: str) -> str:
    """The name of a model's cluster; dots would be read as levels by its statistics."""
    return _UNSAFE.sub("_", model)


# --- the listener ---------------------------------------------------------------------------------


def _listener(file: FleetFile, rules: tuple[ProxyRules, ...], listen: Address) -> dict[str, Any]:
    http = file.gateway.http
    filters = [] if len(rules) == 1 else [_model_reader()]
    filters.append(_extension("envoy.filters.http.router", "filters.http.router.v3.Router"))
    widest_s = max(rule.timeouts.request_s for rule in rules)
    manager = _extension(
        "envoy.filters.network.http_connection_manager",
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="gateway",
        stream_idle_timeout=duration(widest_s),  # its own default cuts long answers at 5 minutes
        request_timeout=duration(http.header_s + http.body_s),
        request_headers_timeout=duration(http.header_s),
        max_request_headers_kb=min(_HEADER_KB_MAX, max(1, http.header_bytes_max // 1024)),
        common_http_protocol_options={
            "idle_timeout": duration(http.keepalive_s),
            "max_headers_count": http.headers_max,
        },
        http_filters=filters,
        route_config={
            "name": "models",
            "virtual_hosts": [
                {"name": "models", "domains": ["*"], "routes": _routes(rules)},
            ],
        },
    )
    chain: dict[str, Any] = {"filters": [manager]}
    if file.gateway.tls is not None:
        tls = {"tls_certificates": [_certificate(file.gateway.tls)]}
        chain["transport_socket"] = _extension(
            "envoy.transport_sockets.tls",
            "transport_sockets.tls.v3.DownstreamTlsContext",
            common_tls_context=tls,
        )
    return {
        "name": "clients",
        "address": _socket(listen.host, listen.port),
        # Bodies are held to read the model and to be sent again; larger ones are answered 413.
        "per_connection_buffer_limit_bytes": http.body_bytes_max,
        "filter_chains": [chain],
    }


def _model_reader() -> dict[str, Any]:
    """The filter that copies the member "model" of a JSON body to where routes can see it."""
    place = {"metadata_namespace": _NAMESPACE, "key": "model"}
    unknown = {**place, "value": ""}
    rule = {
        "selectors": [{"key": "model"}],
        "on_present": place,
        "on_missing": unknown,
        "on_error": unknown,
    }
    return _extension(
        "envoy.filters.http.json_to_metadata",
        "filters.http.json_to_metadata.v3.JsonToMetadata",
        request_rules={"rules": [rule]},
    )


def _routes(rules: tuple[ProxyRules, ...]) -> list[dict[str, Any]]:
    if len(rules) == 1:
        return [{"match": {"prefix": "/"}, **_route(rules[0])}]
    routes: list[dict[str, Any]] = []
    for rule in rules:
        asked = {
            "filter": _NAMESPACE,
            "path": [{"key": "model"}],
            "value": {"string_match": {"exact": rule.served_as}},
        }
        routes.append({"match": {"prefix": "/", "dynamic_metadata": [asked]}, **_route(rule)})
    told = '{"error":{"message":"no such model","type":"invalid_request_error"}}\n'
    missing = {"status": 404, "body": {"inline_string": told}}
    return [*routes, {"match": {"prefix": "/"}, "direct_response": missing}]


def _route(rule: ProxyRules) -> dict[str, Any]:
    action: dict[str, Any] = {
        "cluster": cluster_name(rule.model),
        "timeout": duration(rule.timeouts.request_s),
        "idle_timeout": duration(rule.timeouts.request_s),  # its own default is 5 minutes
        "retry_policy": _retry_policy(rule),
    }
    if rule.targets.path:
        action["prefix_rewrite"] = f"{rule.targets.path}/"
    if rule.targets.secure:
        action["auto_host_rewrite"] = True
    route: dict[str, Any] = {"route": action}
    if rule.api_key_env is not None:
        header = {"key": "authorization", "value": f"Bearer %ENVIRONMENT({rule.api_key_env})%"}
        route["request_headers_to_add"] = [
            {"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
        ]
    return route


def _retry_policy(rule: ProxyRules) -> dict[str, Any]:
    retry = rule.retry
    policy: dict[str, Any] = {
        "retry_on": retry_on(retry),
        "num_retries": retry.retries,
        "retriable_status_codes": list(retry.statuses),
        "retry_back_off": {
            "base_interval": duration(retry.backoff_s),
            "max_interval": duration(retry.backoff_max_s),
        },
        "retry_host_predicate": [
            _extension(
                "envoy.retry_host_predicates.previous_hosts",
                "retry.host.previous_hosts.v3.PreviousHostsPredicate",
            )
        ],
        "host_selection_retry_max_attempts": _HOST_TRIES,
    }
    if rule.timeouts.silence_s < rule.timeouts.request_s:
        policy["per_try_idle_timeout"] = duration(rule.timeouts.silence_s)
    return policy


def retry_on(retry: RetryRule) -> str:
    """The conditions of a retry: what Holdfast retries, as far as a status or a socket shows it."""
    conditions = ["connect-failure", "refused-stream", "reset", "5xx"]
    return ",".join([*conditions, *(["retriable-status-codes"] if retry.statuses else [])])


# --- clusters -------------------------------------------------------------------------------------


def _cluster(rule: ProxyRules, tls: EngineTlsSection | None) -> dict[str, Any]:
    names = any(not _is_ip(target.host) for target in rule.targets.targets)
    slow_start = {
        "slow_start_window": duration(rule.slow_start_s),
        "min_weight_percent": {"value": rule.slow_start_percent},
    }
    cluster: dict[str, Any] = {
        "name": cluster_name(rule.model),
        **({"cluster_type": _by_name()} if names else {"type": "STATIC"}),
        "connect_timeout": duration(rule.timeouts.connect_s),
        "lb_policy": "LEAST_REQUEST",
        "least_request_lb_config": {"choice_count": 2, "slow_start_config": slow_start},
        "circuit_breakers": {"thresholds": [_threshold(rule)]},
        "typed_extension_protocol_options": {_PROTOCOLS: _protocols(rule)},
    }
    if rule.ejection is not None:
        share = 100 - rule.ejection.percent_max
        cluster["common_lb_config"] = {"healthy_panic_threshold": {"value": share}}
        cluster["outlier_detection"] = _outlier_detection(rule.ejection)
    if rule.targets.secure:
        cluster["transport_socket"] = _secured(tls)
    cluster["load_assignment"] = {
        "cluster_name": cluster["name"],
        "endpoints": _localities(rule),
    }
    return cluster


def _by_name() -> dict[str, Any]:
    """A cluster whose members are all addresses of its names, asked for every few seconds."""
    return _extension(
        "envoy.cluster.dns",
        "clusters.dns.v3.DnsCluster",
        dns_refresh_rate=duration(_DNS_S),
        respect_dns_ttl=False,
    )


def _outlier_detection(ejection: EjectionRule) -> dict[str, Any]:
    return {
        "consecutive_5xx": ejection.consecutive,
        "enforcing_consecutive_5xx": 100,
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": ejection.consecutive,
        "enforcing_consecutive_local_origin_failure": 100,
        "enforcing_consecutive_gateway_failure": 0,  # they are 5xx, and counted there
        "enforcing_success_rate": 0,  # a comparison with peers never acts alone
        "enforcing_local_origin_success_rate": 0,
        "failure_percentage_threshold": ejection.failure_percent,
        "failure_percentage_request_volume": ejection.outcomes_min,
        "failure_percentage_minimum_hosts": 2,  # one that stands alone has nobody to fall back on
        "enforcing_failure_percentage": 100,
        "enforcing_failure_percentage_local_origin": 100,
        "interval": duration(ejection.sweep_s),
        "base_ejection_time": duration(ejection.base_s),
        "max_ejection_time": duration(ejection.max_s),
        "max_ejection_time_jitter": duration(ejection.jitter_s),
        "max_ejection_percent": ejection.percent_max,
        "always_eject_one_host": False,
    }


def _threshold(rule: ProxyRules) -> dict[str, Any]:
    threshold: dict[str, Any] = {
        "priority": "DEFAULT",
        "max_connections": rule.in_flight_max,
        "max_pending_requests": rule.waiting_max,
        "max_requests": rule.in_flight_max,
    }
    if rule.retry.budget_percent is None:
        return threshold | {"max_retries": rule.in_flight_max}
    budget = {
        "budget_percent": {"value": rule.retry.budget_percent},
        "min_retry_concurrency": rule.retry.concurrent_min,
    }
    return threshold | {"retry_budget": budget}


def _protocols(rule: ProxyRules) -> dict[str, Any]:
    server_error = {"name": ":status", "string_match": {"safe_regex": {"regex": "5.."}}}
    polite = {"http_response_headers_match": {"headers": [_present("retry-after")]}}
    failed = [{"http_response_headers_match": {"headers": [server_error]}}, {"not_match": polite}]
    options: dict[str, Any] = {
        "@type": f"{_TYPE}{_PROTOCOLS.removeprefix('envoy.')}",
        "common_http_protocol_options": {"idle_timeout": duration(rule.timeouts.pooled_s)},
        "explicit_http_config": {"http_protocol_options": {}},
        "outlier_detection": {"error_matcher": {"and_match": {"rules": failed}}},
    }
    if rule.targets.secure:
        options["upstream_http_protocol_options"] = {"auto_sni": True, "auto_san_validation": True}
    return options


def _localities(rule: ProxyRules) -> list[dict[str, Any]]:
    by_place: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for target in rule.targets.targets:
        endpoint: dict[str, Any] = {"address": _socket(target.host, target.port)}
        if rule.targets.secure:
            endpoint["hostname"] = target.host
        row = {"endpoint": endpoint, "load_balancing_weight": target.weight}
        by_place.setdefault((target.region, target.zone), []).append(row)
    return [
        {
            "locality": {name: value for name, value in (("region", r), ("zone", z)) if value},
            "lb_endpoints": rows,
        }
        for (r, z), rows in by_place.items()
    ]


def _secured(tls: EngineTlsSection | None) -> dict[str, Any]:
    trusted: dict[str, Any] = {"system_root_certs": {}}
    if tls is not None and tls.ca is not None:
        trusted = {"trusted_ca": {"filename": str(tls.ca)}}
    context: dict[str, Any] = {"validation_context": trusted}
    if tls is not None and tls.certificate is not None:
        context["tls_certificates"] = [_certificate(tls)]
    return _extension(
        "envoy.transport_sockets.tls",
        "transport_sockets.tls.v3.UpstreamTlsContext",
        common_tls_context=context,
    )


def _certificate(tls: Any) -> dict[str, Any]:
    return {
        "certificate_chain": {"filename": str(tls.certificate)},
        "private_key": {"filename": str(tls.key)},
    }


def _present(header: str) -> dict[str, Any]:
    return {"name": header, "present_match": True}


def _extension(name: str, kind: str, **config: Any) -> dict[str, Any]:
    return {"name": name, "typed_config": {"@type": f"{_EXTENSIONS}{kind}", **config}}


def _socket(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


__all__ = ["bootstrap", "cluster_name", "retry_on"]
