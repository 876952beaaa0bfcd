"""Two pods with a standby control: the overlay's fleet file, its rights, its certificates."""

import base64
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import pytest
import yaml

from fakekube import Right, rights_of
from holdfast.config.files import load
from holdfast.config.fleet_file import FleetFile
from holdfast.wire.control_name import own_name
from holdfast.wire.election import gateway_member
from holdfast.wire.kubernetes.rights import lease_rights

OVERLAY = Path(__file__).resolve().parents[2] / "deploy/kubernetes/overlays/two-gateways"
SERVICE = "holdfast-control"


def documents(name):
    return list(yaml.safe_load_all((OVERLAY / name).read_text()))


def certificates(folder):
    """What the shipped script prints, as the files that a Secret becomes in a pod."""
    made = subprocess.run(
        ["sh", OVERLAY / "certificates.sh"], capture_output=True, text=True, check=True
    )
    secret = yaml.safe_load(made.stdout)
    assert secret["metadata"]["name"] == "holdfast-control-tls"
    for name, data in secret["data"].items():
        (folder / name).write_bytes(base64.b64decode(data))


@pytest.fixture
def file(tmp_path):
    """The overlay's fleet file, with its keys and certificates where this host has them."""
    text = (OVERLAY / "fleet.yaml").read_text()
    for place in ("/etc/holdfast/keys", "/etc/holdfast/control"):
        text = text.replace(place, str(tmp_path))
    for name in ("admin-token", "tenant-key"):
        (tmp_path / name).write_text(f"hf-{name}-{'k' * 40}\n")
    (tmp_path / "fleet.yaml").write_text(text)
    return load(tmp_path / "fleet.yaml", FleetFile)


def test_the_fleet_file_loads_and_its_members_are_the_pods_of_the_set(file):
    (service,) = documents("control-service.yaml")
    patch = {one["path"]: one["value"] for one in documents("named-pods.yaml")[0] if "value" in one}
    assert patch["/spec/serviceName"] == service["metadata"]["name"] == SERVICE
    assert patch["/kind"] == "StatefulSet"
    names = [f"holdfast-{index}" for index in range(patch["/spec/replicas"])]
    assert [one.name for one in file.control.members] == names
    space = service["metadata"]["namespace"]
    (port,) = service["spec"]["ports"]
    for member in file.control.members:
        assert member.address == f"{member.name}.{SERVICE}.{space}.svc:{port['port']}"
    assert service["spec"]["publishNotReadyAddresses"]  # a standby is reached before it is ready
    assert file.control.listen == f"0.0.0.0:{port['port']}"
    assert own_name({}) == socket.gethostname()  # which a StatefulSet makes the pod's own name
    for name in names:
        (other,) = gateway_member(file.control, name).controls
        (peer,) = [one for one in file.control.members if one.name != name]
        assert other.host == peer.place.host


def test_the_role_of_the_lease_is_what_a_control_uses_and_nothing_more(file):
    lease = file.control.lease
    assert (lease.store, lease.namespace) == ("kubernetes", "holdfast")
    role, binding = documents("lease.yaml")
    granted = {
        (group, resource, verb, name)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }
    needed = [one.action for one in lease_rights(lease.namespace, lease.name)]
    assert granted == {(one.group, one.resource, one.verb, one.name) for one in needed}
    assert {one.namespace for one in needed} == {role["metadata"]["namespace"]}
    assert rights_of([role, binding], "holdfast", "holdfast") == {Right(*one[:4]) for one in needed}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the script needs openssl")
def test_the_certificates_of_the_script_let_both_pods_know_each_other(file, tmp_path):
    certificates(tmp_path)
    files = file.control.tls
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files.ca)
    serving.verify_mode = ssl.CERT_REQUIRED
    serving.load_cert_chain(files.certificate, files.key)
    for member in file.control.members:
        (other,) = gateway_member(file.control, member.name).controls
        calling = other.tls()
        assert calling.check_hostname
        shake_hands(serving, calling, other.host)
    stranger = ssl.create_default_context(cafile=files.ca)  # shows no certificate
    with pytest.raises(ssl.SSLError):
        shake_hands(serving, stranger, file.control.members[0].place.host)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(serving, calling, "elsewhere.example.org")


def shake_hands(serving, calling, host):
    """A TLS handshake in memory, and one byte of each side."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = calling.wrap_bio(to_client, to_server, server_hostname=host)
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    todo = [client, server]
    for _ in range(10):
        for side in list(todo):
            try:
                side.do_handshake()
                todo.remove(side)
            except ssl.SSLWantReadError:
                continue
        if not todo:
            break
    assert not todo
    client.write(b"x")
    assert server.read(1) == b"x"
