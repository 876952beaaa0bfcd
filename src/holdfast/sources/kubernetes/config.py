"""Config of the Kubernetes source: which API server, which pods, and its timeouts."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from holdfast.core.types import require
from holdfast.core.view.selectors import parse_selector

MODEL_LABEL: Final = "app.kubernetes.io/name"


@dataclass(slots=True, frozen=True)
class KubernetesConfig:
    """Which API server is read, which of its pods, and with which timeouts."""

    kubeconfig: str = ""  # empty: this pod's own account, else $KUBECONFIG, else ~/.kube/config
    context: str = ""  # of that file; empty: its current one
    api_url: str = ""  # asked instead of what a kubeconfig names, such as a kubectl proxy
    token_file: str = ""  # shown to api_url; read anew when refused, because tokens are rotated
    ca_file: str = ""  # signs api_url's certificate; empty: what this host trusts
    namespace: str = ""  # empty: all; with one, what is reserved on hosts cannot be known
    selector: str = ""  # pods that are replicas; empty: all with a model, except daemon sets'
    all_pods: bool = True  # others' pods too: their sum is what is reserved on hosts
    model_label: str = MODEL_LABEL  # a label or annotation that names the model of a pod
    group_label: str = ""  # of nodes, before those of EKS, Karpenter, GKE and AKS
    inference_pools: bool = False  # watch InferencePools: four more calls, and rights to them
    period_s: float = 5.0  # between readings; watches tell of changes in between
    usage_s: float = 30.0  # metrics-server itself measures each 15 s
    dcgm_urls: tuple[str, ...] = ()  # metrics pages of dcgm-exporters
    timeout_s: float = 10.0  # a list page takes below 1 s on a healthy API server
    silence_s: float = 75.0  # bookmarks come each minute: a watch without one may be cut unseen
    retry_s: float = 0.5  # before the second try; doubled for each further one
    retry_max_s: float = 30.0  # an API server that restarts must not meet everybody at once
    page: int = 250  # objects at once: larger ones hold up this process while they are read
    nodes_max: int = 5_000  # what Kubernetes itself supports
    pods_max: int = 20_000  # kept in memory, about 2 kB each
    events_max: int = 2_000  # the oldest are dropped; only warnings are asked for
    pools_max: int = 1_000  # inference pools, and models and objectives of each kind

    @property
    def by_server(self) -> bool:
        """Whether the API server selects the pods: only those of the selector are then sent.

        What is reserved on hosts is the sum over all pods. Of one namespace it is not known anyway.
        """
        return bool(self.selector) and (bool(self.namespace) or not self.all_pods)

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        one = not (self.api_url and (self.kubeconfig or self.context))
        fix = "keep one: api_url, or kubeconfig with context"
        require(one, "api_url", "is set beside a kubeconfig", fix)
        for name in ("token_file", "ca_file"):
            fix = "set api_url, or let the kubeconfig name it"
            fits = bool(self.api_url) or not getattr(self, name)
            require(fits, name, "is set without api_url", fix)
        urls = [("api_url", self.api_url)] if self.api_url else []
        urls += [("dcgm_urls", url) for url in self.dcgm_urls]
        for name, url in urls:
            parts = urlsplit(url)
            fits = parts.scheme in {"http", "https"} and bool(parts.hostname)
            require(fits, name, f"is {url[:80]!r}", "write http://host:port or https://host:port")
            plain = "@" not in parts.netloc
            require(plain, name, "holds credentials", "use token_file")
        require(len(self.dcgm_urls) <= 256, "dcgm_urls", "are more than 256", "list fewer")
        require(bool(self.model_label), "model_label", "is empty", "name a label of pods")
        parse_selector(self.selector)
        fits = self.all_pods or bool(self.selector)
        fix = "name the labels of your pods in selector, or leave all_pods out"
        require(fits, "all_pods", "is false without a selector", fix)
        for name in ("period_s", "usage_s", "timeout_s", "silence_s", "retry_s", "retry_max_s"):
            value = getattr(self, name)
            require(value > 0, name, f"is {value}", "use a positive number of seconds")
        for name in ("page", "nodes_max", "pods_max", "events_max", "pools_max"):
            value = getattr(self, name)
            require(value > 0, name, f"is {value}", "use a positive number")


__all__ = ["MODEL_LABEL", "KubernetesConfig"]
