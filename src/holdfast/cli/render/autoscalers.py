"""``holdfast render hpa`` and ``keda``: manifests for autoscalers that follow our metrics.

Two signals, as in most recipes for GPU serving: the share of memory that requests fill, and how
many requests wait. They are not alike. Memory is a *level* that all replicas share: its target is a
``Value``. Waiting requests are an *amount* that more replicas divide: their target is an
``AverageValue``. A level under ``AverageValue`` would be divided by the replicas, so that eight of
them at 90 % would look like 11 % each.

Replicas that Holdfast launches are scaled by Holdfast (``models[].scaling``); these manifests are
for those that Kubernetes runs. Rejected: applying them from here. They belong into a repository.
"""

import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

import click

from holdfast.cli.render.output import named, print_manifest

MEMORY_PERCENT: Final = 70
QUEUE_DEPTH: Final = 10
DOWN_S: Final = 300
_UP_S: Final = 60
_PODS_UP: Final = 2  # in one step: a loading wave of more is slower than two short ones
_POLL_S: Final = 15

_LABEL: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*")
_PROMETHEUS: Final = "http://prometheus.monitoring.svc:9090"

_MEMORY_METRIC: Final = "holdfast_model_memory_used_ratio"
_QUEUE_METRIC: Final = "holdfast_queued_requests"
_WAITING_METRIC: Final = "holdfast_replica_waiting"

_PAGE: Final = "docs/operating/exporters.md"


def _model(_context: click.Context, parameter: click.Parameter, value: str) -> str:
    if not _MODEL.fullmatch(value) or len(value) > 128:
        raise click.BadParameter(f"{value[:80]!r} cannot be a model's name", param=parameter)
    return value


def _address(_context: click.Context, parameter: click.Parameter, value: str) -> str:
    try:
        parts = urlsplit(value)
        well = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        well = False
    if not well or "@" in value:
        told = f"not a URL such as {_PROMETHEUS}, without credentials"
        raise click.BadParameter(told, param=parameter)
    return value.rstrip("/")


def _options(least: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """What both commands need to know."""
    made = [
        click.option("--model", required=True, callback=_model, help="Its name in the fleet file."),
        click.option(
            "--deployment",
            required=True,
            callback=named("Deployment", 253),
            help="The Deployment that runs its replicas.",
        ),
        click.option(
            "--namespace",
            default="default",
            show_default=True,
            callback=named("namespace", 63),
            help="Where the Deployment is.",
        ),
        click.option(
            "--min", "minimum", type=click.IntRange(least, 1_000), default=2, show_default=True
        ),
        click.option(
            "--max", "maximum", type=click.IntRange(1, 1_000), default=8, show_default=True
        ),
        click.option(
            "--memory",
            type=click.IntRange(1, 100),
            default=MEMORY_PERCENT,
            show_default=True,
            help="Percent of the memory for requests; above it, replicas are added.",
        ),
        click.option(
            "--queue",
            type=click.IntRange(1, 1_000_000),
            default=QUEUE_DEPTH,
            show_default=True,
            help="Waiting requests for each replica; above it, replicas are added.",
        ),
        click.option(
            "--down",
            type=click.IntRange(0, 3_600),
            default=DOWN_S,
            show_default=True,
            help="Seconds of calm before replicas are removed: a new one takes long to load.",
        ),
    ]

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(made):
            command = option(command)
        return command

    return add


@click.command()
@_options(least=1)
@click.option(
    "--metrics",
    type=click.Choice(["prometheus", "cloudwatch"]),
    default="prometheus",
    show_default=True,
    help="Whose external metrics the HPA reads.",
)
@click.option("--rules", is_flag=True, help="Print the rules for prometheus-adapter instead.")
def hpa(metrics: str, *, rules: bool, **said: Any) -> None:
    """Print a HorizontalPodAutoscaler (autoscaling/v2) on external metrics.

    It needs an adapter that serves them: prometheus-adapter with the rules that --rules prints,
    or, for CloudWatch, an adapter of AWS's.

    \b
    Examples:
      holdfast render hpa --model llama --deployment llama-server
      holdfast render hpa --model llama --deployment llama-server --rules
    """  # noqa: D301
    _fits(said)
    if rules:
        print_manifest([adapter_rules()], "hpa --rules", _PAGE)
        return
    if not _LABEL.fullmatch(said["model"]) or len(said["model"]) > 63:
        told = f"{said['model']!r} cannot be the value of a label in Kubernetes; use 'render keda'"
        raise click.BadParameter(told, param_hint="--model")
    manifest = horizontal_pod_autoscaler(cloudwatch=metrics == "cloudwatch", **said)
    print_manifest([manifest], "hpa", _PAGE)


@click.command()
@_options(least=0)
@click.option(
    "--prometheus",
    default=_PROMETHEUS,
    show_default=True,
    callback=_address,
    help="Where KEDA finds Prometheus.",
)
def keda(prometheus: str, **said: Any) -> None:
    """Print a ScaledObject of KEDA (keda.sh/v1alpha1) that asks Prometheus.

    \b
    Example:
      holdfast render keda --model llama --deployment llama-server \\
        --prometheus http://prom:9090
    """  # noqa: D301
    _fits(said)
    print_manifest([scaled_object(prometheus, **said)], "keda", _PAGE)


def _fits(said: dict[str, Any]) -> None:
    if said["minimum"] > said["maximum"]:
        told = f"is {said['maximum']}, below --min {said['minimum']}"
        raise click.BadParameter(told, param_hint="--max")


# --- manifests ------------------------------------------------------------------------------------


def horizontal_pod_autoscaler(
    *,
    model: str,
    deployment: str,
    namespace: str,
    minimum: int,
    maximum: int,
    memory: int,
    queue: int,
    down: int,
    cloudwatch: bool = False,
) -> dict[str, Any]:
    """The manifest of a HorizontalPodAutoscaler as plain data."""
    if cloudwatch:
        selector = {"matchLabels": {"Model": model}}
        level = ("GPUMemoryUtilization", {"type": "Value", "value": str(memory)})
        amount = "InferenceQueueDepth"
    else:
        selector = {"matchLabels": {"model": model}}
        level = (_MEMORY_METRIC, {"type": "Value", "value": f"{memory * 10}m"})  # thousandths
        amount = _QUEUE_METRIC
    share = {"type": "AverageValue", "averageValue": str(queue)}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": f"{deployment}-holdfast", "namespace": namespace},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment},
            "minReplicas": minimum,
            "maxReplicas": maximum,
            "metrics": [
                {
                    "type": "External",
                    "external": {"metric": {"name": name, "selector": selector}, "target": target},
                }
                for name, target in (level, (amount, share))
            ],
            "behavior": _behaviour(down),
        },
    }


def scaled_object(
    prometheus: str,
    *,
    model: str,
    deployment: str,
    namespace: str,
    minimum: int,
    maximum: int,
    memory: int,
    queue: int,
    down: int,
) -> dict[str, Any]:
    """The manifest of a KEDA ScaledObject as plain data."""
    own = f'{{model="{model}"}}'
    level = f"100 * max({_MEMORY_METRIC}{own})"
    amount = f"sum({_QUEUE_METRIC}{own}) + (sum({_WAITING_METRIC}{own}) or vector(0))"
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": f"{deployment}-holdfast", "namespace": namespace},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment},
            "pollingInterval": _POLL_S,
            "cooldownPeriod": down,
            "minReplicaCount": minimum,
            "maxReplicaCount": maximum,
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behaviour(down)}},
            "triggers": [
                _trigger("memory", "Value", level, memory, prometheus),
                _trigger("queue", "AverageValue", amount, queue, prometheus),
            ],
        },
    }


def _trigger(name: str, kind: str, query: str, threshold: int, prometheus: str) -> dict[str, Any]:
    return {
        "type": "prometheus",
        "name": name,
        "metricType": kind,
        "metadata": {
            "serverAddress": prometheus,
            "query": query,
            "threshold": str(threshold),
            "ignoreNullValues": "false",  # no value is no zero: with it, an outage would shrink
        },
    }


def _behaviour(down: int) -> dict[str, Any]:
    return {
        "scaleUp": {
            "stabilizationWindowSeconds": _UP_S,
            "policies": [{"type": "Pods", "value": _PODS_UP, "periodSeconds": _UP_S}],
        },
        "scaleDown": {"stabilizationWindowSeconds": down},
    }


def adapter_rules() -> dict[str, Any]:
    """The rules for prometheus-adapter's config; the same for all models."""
    return {
        "externalRules": [
            {
                "seriesQuery": f'{{__name__="{metric}",model!=""}}',
                "resources": {"namespaced": False},
                "name": {"as": metric},
                "metricsQuery": f"{how}(<<.Series>>{{<<.LabelMatchers>>}}) by (model)",
            }
            for metric, how in ((_MEMORY_METRIC, "max"), (_QUEUE_METRIC, "sum"))
        ]
    }


__all__ = [
    "DOWN_S",
    "MEMORY_PERCENT",
    "QUEUE_DEPTH",
    "adapter_rules",
    "horizontal_pod_autoscaler",
    "hpa",
    "keda",
    "scaled_object",
]
