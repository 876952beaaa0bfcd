from pathlib import Path

import pytest

from holdfast.config.document import ConfigFileError
from holdfast.config.files import load
from holdfast.config.fleet_file import FleetFile

FLEET = """
admin:
  listen: 127.0.0.1:8001
  tls: {%s}
models: [{name: m, engine: vllm, endpoints: ["http://127.0.0.1:9501"]}]
"""


def read(folder, tls):
    path = folder / "fleet.yaml"
    path.write_text(FLEET % tls)
    return load(path, FleetFile)


def test_the_operators_port_can_have_a_certificate(tmp_path):
    file = read(tmp_path, "certificate: /etc/c.pem, key: /etc/c.key")
    assert (file.admin.tls.certificate, file.admin.tls.key) == (
        Path("/etc/c.pem"),
        Path("/etc/c.key"),
    )
    assert FleetFile.from_json(file.to_json()).admin.tls == file.admin.tls


@pytest.mark.parametrize("tls", ["certificate: /etc/c.pem", "key: /etc/c.key", "cert: x"])
def test_half_a_certificate_is_refused(tmp_path, tls):
    with pytest.raises(ConfigFileError, match="tls"):
        read(tmp_path, tls)


def test_without_one_it_speaks_plain_http():
    assert FleetFile.model_fields["admin"].default.tls is None
