"""Who we are to an API server, and what becomes of answers that are none."""

import asyncio
import builtins
import json
import os

import pytest

from holdfast.core.types import ConfigError
from holdfast.sources.kubernetes import KubernetesConfig, KubernetesSource, exec_plugin
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


def test_several_files_are_one_and_the_first_to_name_it_wins(kube, tmp_path, monkeypatch):
    kube.token = "secret"
    (tmp_path / "token").write_text("secret")
    whole = KUBECONFIG.format(url=kube.url, current="nobody")
    first = tmp_path / "first"
    first.write_text(
        "current-context: mine\n"
        "contexts: [{name: mine, context: {cluster: c, user: me}}]\n"
        "users: [{name: me, user: {tokenFile: token}}]\n"  # beside that file
    )
    second = tmp_path / "second"
    second.write_text(whole)
    files = [tmp_path / "missing", first, second]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, files)))
    assert ask(KubernetesConfig())["kind"] == "NodeList"
    assert ask(KubernetesConfig(context="good"))["kind"] == "NodeList"
    with pytest.raises(KubernetesApiError, match="401"):
        ask(KubernetesConfig(context="nobody"))


# --- a program that prints tokens -----------------------------------------------------------------

PLUGIN = """current-context: x
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "{url}"}}}}]
users:
  - name: u
    user:
      exec:
        apiVersion: {version}
        command: ./plugin
        args: [get-token]
        env: [{{name: ASKED, value: "yes"}}]
        interactiveMode: IfAvailable
        provideClusterInfo: true
"""
V1 = "client.authentication.k8s.io/v1"


def with_plugin(kube, tmp_path, script, version=V1):
    """A kubeconfig beside the program that it names."""
    config = tmp_path / "config"
    config.write_text(PLUGIN.format(url=kube.url, version=version))
    program = tmp_path / "plugin"
    program.write_text(f"#!/bin/sh\necho ran >> {tmp_path}/runs\n{script}\n")
    program.chmod(0o700)
    return KubernetesConfig(kubeconfig=str(config))


def printing(token, expires=""):
    status = {"token": token} | ({"expirationTimestamp": expires} if expires else {})
    return f"echo '{json.dumps({'kind': 'ExecCredential', 'apiVersion': V1, 'status': status})}'"


def runs(tmp_path):
    return len((tmp_path / "runs").read_text().splitlines())


@pytest.mark.parametrize("version", [V1, V1 + "beta1"])
def test_a_program_prints_the_token_and_knows_who_asks(kube, tmp_path, version):
    kube.token = "secret"
    checks = '[ "$1" = get-token ] && [ "$ASKED" = yes ] || exit 3\n'
    checks += 'case "$KUBERNETES_EXEC_INFO" in *ExecCredential*) ;; *) exit 4 ;; esac\n'
    config = with_plugin(kube, tmp_path, checks + printing("secret"), version)
    assert ask(config)["kind"] == "NodeList"


def test_a_program_runs_once_for_all_who_wait_and_again_when_its_token_is_refused(kube, tmp_path):
    kube.token = "secret"
    config = with_plugin(kube, tmp_path, printing("secret", "2999-01-01T00:00:00Z"))

    async def main():
        api = KubernetesApi(config)
        await asyncio.gather(*(api.get("api/v1/nodes") for _ in range(5)))
        assert runs(tmp_path) == 1
        kube.token = "other"
        with_plugin(kube, tmp_path, printing("other"))
        assert (await api.get("api/v1/nodes"))["kind"] == "NodeList"
        assert runs(tmp_path) == 2
        await api.close()

    asyncio.run(main())


def test_a_token_that_is_about_to_expire_is_not_used_again(kube, tmp_path):
    kube.token = "secret"
    config = with_plugin(kube, tmp_path, printing("secret", "2001-01-01T00:00:00Z"))

    async def main():
        api = KubernetesApi(config)
        for _ in range(2):
            await api.get("api/v1/nodes")
        await api.close()

    asyncio.run(main())
    assert runs(tmp_path) == 2


@pytest.mark.parametrize(
    ("script", "version", "told"),
    [
        ("echo secret-words; exit 7", V1, "ended with status 7"),
        ("echo secret-words", V1, "printed no credential"),
        (
            """echo '{"status": {"clientCertificateData": "secret-words"}}'""",
            V1,
            "a token is needed",
        ),
        ("sleep 60", V1, "no token within"),
        ("true", "client.authentication.k8s.io/v9", "is not known"),
    ],
)
def test_a_program_that_gives_no_token_is_the_reason_and_is_not_quoted(
    kube, tmp_path, monkeypatch, script, version, told
):
    monkeypatch.setattr(exec_plugin, "PLUGIN_S", 0.5 if "sleep" in script else 20.0)
    with pytest.raises(KubernetesApiError, match=told) as caught:
        ask(with_plugin(kube, tmp_path, script, version))
    assert "secret-words" not in str(caught.value)


def test_a_program_that_is_not_there_is_named(kube, tmp_path):
    config = with_plugin(kube, tmp_path, "true")
    (tmp_path / "plugin").unlink()
    with pytest.raises(KubernetesApiError, match="plugin"):
        ask(config)


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
