"""``holdfast render``: manifests and configurations for platforms, proxies and autoscalers.

They are printed, never applied: they belong into a repository, where they are reviewed.
"""

import click

from holdfast.cli.render.autoscalers import (
    adapter_rules,
    horizontal_pod_autoscaler,
    hpa,
    keda,
    scaled_object,
)
from holdfast.cli.render.proxies import envoy, istio
from holdfast.cli.render.workloads import kubernetes


@click.group()
def render() -> None:
    """Print manifests for Kubernetes, Envoy, Istio and autoscalers.

    Nothing is applied.

    \b
    Examples:
      holdfast render kubernetes -c fleet.yaml -w workloads.yaml
      holdfast render envoy -c fleet.yaml
      holdfast render istio -c fleet.yaml --service llama=llama.ml.svc:8000
      holdfast render hpa --model llama --deployment llama-server --namespace ml
      holdfast render keda --model llama --deployment llama-server --max 16
    """  # noqa: D301


for _command in (kubernetes, envoy, istio, hpa, keda):
    render.add_command(_command)

__all__ = ["adapter_rules", "horizontal_pod_autoscaler", "render", "scaled_object"]
