"""Several controls in a fleet file: what is refused, and with which words."""

import pytest

from holdfast.config.document import ConfigFileError
from holdfast.config.files import load
from holdfast.config.fleet_file import FleetFile
from holdfast.control.process import gateway_places
from holdfast.core.types import ConfigError
from holdfast.wire.control_name import own_name

MODEL = "models: [{name: m, engine: vllm, endpoints: ['http://127.0.0.1:9']}]\n"
LAUNCHED = "models: [{name: m, engine: vllm, launch: {command: [x], replicas: 1}}]\n"
TWO = "members: [{name: a, address: '127.0.0.1:1'}, {name: b, address: '127.0.0.1:2'}]"
APART = "members: [{name: a, address: 'a.example.org:1'}, {name: b, address: 'b.example.org:1'}]"
LEASE = "lease: {store: sqlite, path: /x/lease.sqlite}"
TLS = "tls: {certificate: c.pem, key: k.pem, ca: ca.pem}"


def read(tmp_path, control, models=MODEL):
    path = tmp_path / "fleet.yaml"
    path.write_text(f"{models}control: {{{control}}}\n")
    return load(path, FleetFile)


def test_each_machine_has_places_for_its_gateways(tmp_path):
    file = read(tmp_path, f"{TWO}, {LEASE}")
    assert gateway_places(file) == ["a/gateway-0", "b/gateway-0"]
    assert file.control.own("b").place.port == 2
    again = FleetFile.from_json(file.to_json())
    assert again.control == file.control


def test_one_control_needs_no_such_section(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(MODEL)
    assert gateway_places(load(path, FleetFile)) == ["gateway-0"]


def test_a_machine_that_is_no_member_is_told_how_to_be_one(tmp_path):
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, f"{TWO}, {LEASE}").control.own("c")
    assert "HOLDFAST_CONTROL_NAME" in refused.value.fix
    assert own_name({"HOLDFAST_CONTROL_NAME": "b"}) == "b"
    assert own_name({})


@pytest.mark.parametrize(
    ("control", "models", "said"),
    [
        (f"{LEASE}", MODEL, "control.lease"),
        (f"{TWO}", MODEL, "control.lease"),
        ("members: [{name: a, address: '127.0.0.1:1'}]", MODEL, "control.members"),
        (f"{TWO.replace('name: b', 'name: a')}, {LEASE}", MODEL, "control.members"),
        (f"{APART}, {LEASE}", MODEL, "control.tls"),
        (f"{TWO}, {LEASE}, listen: '0.0.0.0:1'", MODEL, "control.listen"),
        (f"{TWO}, {LEASE}, {TLS}, secret_file: s", MODEL, "control.secret_file"),
        ("secret_file: s", MODEL, "control.secret_file"),
        (f"{APART}, {LEASE}, secret_file: s", MODEL, "control.tls"),
        (f"{TWO}, lease: {{store: postgres, url_file: u}}", MODEL, "control.secret_file"),
        (f"{TWO}, {LEASE}", LAUNCHED, "control.members"),
        (f"{TWO}, lease: {{store: postgres}}", MODEL, "url_file"),
        (f"{TWO}, lease: {{store: sqlite, path: x, namespace: n}}", MODEL, "namespace"),
        (f"{TWO}, {LEASE}, leadership: {{lease_s: 2}}", MODEL, "lease_s"),
    ],
)
def test_what_cannot_work_is_refused_by_the_name_of_its_field(tmp_path, control, models, said):
    with pytest.raises(ConfigFileError) as refused:
        read(tmp_path, control, models)
    assert said in str(refused.value)


def test_a_lease_in_a_database_needs_a_place_for_the_secret(tmp_path):
    own = read(tmp_path, f"{TWO}, lease: {{store: postgres, url_file: u}}, secret_file: /x/s")
    assert str(own.control.shared_secret) == "/x/s"


def test_machines_apart_need_certificates(tmp_path):
    assert read(tmp_path, f"{APART}, {LEASE}, {TLS}").control.tls is not None
