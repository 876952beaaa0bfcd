"""The Kubernetes source: nodes and pods of an API server, kept current by watches."""

from holdfast.sources.kubernetes.config import KubernetesConfig
from holdfast.sources.kubernetes.source import KubernetesSource

__all__ = ["KubernetesConfig", "KubernetesSource"]
