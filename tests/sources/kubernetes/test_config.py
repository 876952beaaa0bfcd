import pytest

from holdfast.core.types import ConfigError
from holdfast.sources.kubernetes import KubernetesConfig


def test_defaults_ask_for_everything_with_the_pods_own_account():
    config = KubernetesConfig()
    assert (config.namespace, config.kubeconfig, config.period_s) == ("", "", 5.0)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"api_url": "http://a", "kubeconfig": "f"}, "api_url: is set beside a kubeconfig"),
        ({"token_file": "t"}, "token_file: is set without api_url"),
        ({"ca_file": "t"}, "ca_file: is set without api_url"),
        ({"api_url": "a:80"}, "api_url: is 'a:80'"),
        ({"api_url": "https://u:p@a"}, "api_url: holds credentials"),
        ({"dcgm_urls": ("ftp://a",)}, "dcgm_urls: is 'ftp://a'"),
        ({"dcgm_urls": ("http://a",) * 257}, "dcgm_urls: are more than 256"),
        ({"selector": "a b"}, "selector: cannot be read at 'a b'"),
        ({"all_pods": False}, "all_pods: is false without a selector; name the labels"),
        ({"model_label": ""}, "model_label: is empty"),
        ({"period_s": 0}, "period_s: is 0"),
        ({"retry_s": -1.0}, "retry_s: is -1.0"),
        ({"page": 0}, "page: is 0"),
    ],
)
def test_what_cannot_work_is_refused(said, told):
    with pytest.raises(ConfigError, match=told):
        KubernetesConfig(**said)
