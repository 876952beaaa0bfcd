"""What ``serve`` refuses and warns of before anything starts."""

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs
from wire_stage import port_of

from holdfast.cli import main
from holdfast.config.document import ConfigFileError
from holdfast.config.files import load
from holdfast.config.fleet_file import FleetFile
from holdfast.core.types import ConfigError
from holdfast.wire import serve as serve_module
from holdfast.wire.serve import serve


def test_launched_replicas_cannot_be_taken_over(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text("models: [{name: m, engine: vllm, launch: {command: [engine]}}]\n")
    with pytest.raises(ConfigError, match="--takeover: is no use where models are launched"):
        serve(path, takeover=True, say=print)


def test_a_bad_file_is_told_before_anything_starts(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text("models: []\n")
    with pytest.raises(ConfigFileError, match=r"fleet\.yaml:1: models"):
        serve(path, takeover=False, say=print)


def test_an_unknown_log_level_is_told_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_LOG_LEVEL", "chatty")
    path = tmp_path / "fleet.yaml"
    path.write_text("models: [{name: m, engine: vllm, endpoints: ['http://127.0.0.1:9']}]\n")
    told = CliRunner().invoke(main, ["serve", "-c", str(path)])
    assert told.exit_code == 2
    assert "HOLDFAST_LOG_LEVEL: is 'chatty'" in told.stderr
    assert "use one of debug, info, warning, error" in told.stderr


def test_a_switch_that_is_neither_on_nor_off_is_told_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_PLAIN", "yes")
    path = tmp_path / "fleet.yaml"
    path.write_text("models: [{name: m, engine: vllm, endpoints: ['http://127.0.0.1:9']}]\n")
    told = CliRunner().invoke(main, ["serve", "-c", str(path)])
    assert told.exit_code == 2
    assert "HOLDFAST_PLAIN: is 'yes'; use 1, or do not set it" in told.stderr


@pytest.mark.parametrize(
    ("gateway", "warned"),
    [
        ("{listen: '0.0.0.0:8000'}", True),
        ("{listen: '[::]:8000'}", True),
        ("{listen: '127.0.0.1:8000'}", False),
        ("{listen: '0.0.0.0:8000', tls: {certificate: /c.pem, key: /c.key}}", False),
    ],
)
def test_clients_beyond_this_machine_without_tls_are_warned_of(tmp_path, gateway, warned):
    path = tmp_path / "fleet.yaml"
    path.write_text(
        f"gateway: {gateway}\n"
        "models: [{name: m, engine: vllm, endpoints: [http://127.0.0.1:1]}]\n"
        f"tenants: [{{name: t, keys: ['sha256:{'ab' * 32}']}}]\n"
    )
    with capture_logs() as logs:
        serve_module._warn_of_plain_text(load(path, FleetFile))
    assert [one["event"] for one in logs] == (["clients without TLS"] if warned else [])
    if warned:
        assert "readable" in logs[0]["why"]
        assert "gateway.tls" in logs[0]["fix"]
        assert logs[0]["log_level"] == "warning"


def test_a_port_in_use_is_a_readable_error(tmp_path, listeners):
    port = port_of(listeners())
    path = tmp_path / "fleet.yaml"
    path.write_text(
        f"gateway: {{listen: '127.0.0.1:{port}'}}\nadmin: {{listen: '127.0.0.1:0'}}\n"
        "models: [{name: m, engine: vllm, endpoints: [http://127.0.0.1:1]}]\n"
    )
    result = CliRunner().invoke(main, ["serve", "-c", str(path)])
    assert result.exit_code == 1
    assert "is in use" in result.output
