"""What a Kubernetes API server knows of hosts and pods, kept current by watches."""

from holdfast.sources.kubernetes.config import KubernetesConfig
from holdfast.sources.kubernetes.source import KubernetesSource

__all__ = ["KubernetesConfig", "KubernetesSource"]
