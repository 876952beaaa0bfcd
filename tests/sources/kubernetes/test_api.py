"""Who we are to an API server, and what becomes of answers that are none."""

import asyncio
import builtins

import pytest

from holdfast.core.types import ConfigError
from holdfast.sources.kubernetes import KubernetesConfig, KubernetesSource
from holdfast.sources.kubernetes import api as module
from holdfast.sources.kubernetes.api import KubernetesApi, KubernetesApiError

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: {current}
contexts:
  - name: good
    context: {{cluster: c, user: u}}
  - name: nobody
    context: {{cluster: c}}
clusters:
  - name: c
    cluster: {{server: "{url}"}}
users:
  - name: u
    user: {{token: secret}}
"""


def ask(config, path="api/v1/nodes"):
    async def main():
        api = KubernetesApi(config)
        try:
            return await api.get(path)
        finally:
            await api.close()

    return asyncio.run(main())


@pytest.mark.parametrize("context", ["", "good"])
def test_a_kubeconfig_says_where_and_who(kube, tmp_path, context):
    kube.token = "secret"
    path = tmp_path / "config"
    path.write_text(KUBECONFIG.format(url=kube.url, current="good"))
    found = ask(KubernetesConfig(kubeconfig=str(path), context=context))
    assert found["kind"] == "NodeList"


def test_a_context_of_the_usual_file_is_found(kube, tmp_path, monkeypatch):
    path = tmp_path / "config"
    path.write_text(KUBECONFIG.format(url=kube.url, current="good"))
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert ask(KubernetesConfig(context="nobody"))["kind"] == "NodeList"
    assert ask(KubernetesConfig())["kind"] == "NodeList"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "not found"),
        ("a: [", "credentials cannot be used"),
        ("{}", "credentials cannot be used"),
        (KUBECONFIG.format(url="http://127.0.0.1:9", current="other"), "'other' not found"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_an_answer_not_a_crash(tmp_path, text, told):
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(KubernetesApiError, match=told):
        ask(KubernetesConfig(kubeconfig=str(path)))


def test_a_rotated_token_is_read_anew(kube, tmp_path):
    kube.token = "first"
    path = tmp_path / "token"
    path.write_text("first")

    async def main():
        api = KubernetesApi(KubernetesConfig(api_url=kube.url, token_file=str(path)))
        await api.get("api/v1/nodes")
        kube.token = "second"
        with pytest.raises(KubernetesApiError, match="401 Unauthorized"):
            await api.get("api/v1/nodes")
        path.write_text("second")
        await api.get("api/v1/nodes")
        await api.close()

    asyncio.run(main())


def test_credentials_of_a_file_are_read_anew_after_a_while(kube, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "RENEW_S", 0.0)
    kube.token = "secret"
    path = tmp_path / "config"
    path.write_text(KUBECONFIG.format(url=kube.url, current="nobody"))

    async def main():
        api = KubernetesApi(KubernetesConfig(kubeconfig=str(path)))
        with pytest.raises(KubernetesApiError, match="401"):
            await api.get("api/v1/nodes")
        path.write_text(KUBECONFIG.format(url=kube.url, current="good"))
        assert (await api.get("api/v1/nodes"))["kind"] == "NodeList"
        await api.close()

    asyncio.run(main())


def test_a_missing_token_file_is_told(kube, tmp_path):
    config = KubernetesConfig(api_url=kube.url, token_file=str(tmp_path / "none"))
    with pytest.raises(KubernetesApiError, match="credentials cannot be used: Token file"):
        ask(config)


def test_nobody_there_is_told(kube):
    with pytest.raises(KubernetesApiError) as caught:
        ask(KubernetesConfig(api_url="http://127.0.0.1:9", timeout_s=5.0))
    assert caught.value.status is None


def test_answers_that_are_none_are_told(kube, monkeypatch):
    kube.pages["/odd"] = "not json"
    config = KubernetesConfig(api_url=kube.url)
    with pytest.raises(KubernetesApiError, match="not JSON"):
        ask(config, "odd")
    monkeypatch.setattr(module, "ANSWER_BYTES_MAX", 3)
    with pytest.raises(KubernetesApiError, match="larger than 3 bytes"):
        ask(config, "odd")
    with pytest.raises(KubernetesApiError, match="404") as caught:
        ask(config, "nothing")
    assert caught.value.status == 404


def test_no_answer_in_time_is_told(kube):
    kube.hold("nodes")
    with pytest.raises(KubernetesApiError, match=r"no answer within 0\.05 s|nothing came"):
        ask(KubernetesConfig(api_url=kube.url, timeout_s=0.05))


def test_who_lacks_the_extra_is_told_its_name(monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("lightkube"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError, match=r"pip install 'holdfast\[kubernetes\]'"):
        KubernetesSource("k", KubernetesConfig())
