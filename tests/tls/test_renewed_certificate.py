"""A port uses the certificate that is in its files now, without a restart."""

import ssl

import pytest

from holdfast.config.certificates import PortCertificate, names_of


def shown(context: ssl.SSLContext) -> bytes:
    """The certificate that a handshake with this context shows, as DER; all in memory."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(down, up)
    server = context.wrap_bio(up, down, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return client.getpeercert(binary_form=True)


def welcome(context: ssl.SSLContext, certificate, key) -> bool:
    """Whether a caller with this certificate comes through, and by its name; all in memory."""
    caller = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    caller.check_hostname = False
    caller.verify_mode = ssl.CERT_NONE
    caller.load_cert_chain(certificate, key)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = caller.wrap_bio(down, up)
    server = context.wrap_bio(up, down, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
    return names_of(server.getpeercert()) == {"gpu-1.example.org"}


def der(certificate) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificate.pem.decode())


def test_a_renewed_certificate_is_shown_to_whoever_connects_next(certified, tmp_path):
    first, second = certified("localhost"), certified("localhost")
    port = PortCertificate(*first.write(tmp_path, "port"))
    assert shown(port.context) == der(first)
    assert not port.refresh()
    second.write(tmp_path, "port")
    assert port.refresh()
    assert shown(port.context) == der(second)
    assert not port.refresh()


def test_a_half_written_pair_changes_nothing_until_it_fits(certified, tmp_path):
    first, second = certified("localhost"), certified("localhost")
    certificate, key = first.write(tmp_path, "port")
    port = PortCertificate(certificate, key)
    certificate.write_bytes(second.pem)
    assert not port.refresh()
    assert port.problem
    assert shown(port.context) == der(first)
    key.unlink()
    assert not port.refresh()
    second.write(tmp_path, "port")
    assert port.refresh()
    assert (shown(port.context), port.problem) == (der(second), "")


def test_callers_are_believed_by_the_authorities_that_stand_in_the_file_now(certified, tmp_path):
    first, second = certified("first authority"), certified("second authority")
    old = certified("gpu-1.example.org", by=first).write(tmp_path, "old")
    new = certified("gpu-1.example.org", by=second).write(tmp_path, "new")
    authorities, _ = first.write(tmp_path, "ca")
    certificate, key = certified("localhost").write(tmp_path, "port")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authorities)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_cert_chain(certificate, key)
    port = PortCertificate(certificate, key, context, authorities)
    assert (welcome(context, *old), welcome(context, *new)) == (True, False)
    authorities.write_bytes(first.pem + second.pem)
    assert port.refresh()
    assert (welcome(context, *old), welcome(context, *new)) == (True, True)
    authorities.write_bytes(second.pem)
    assert port.refresh()
    assert (welcome(context, *old), welcome(context, *new)) == (False, True)
    authorities.write_bytes(b"no certificate")
    assert not port.refresh()
    assert port.problem
    assert (welcome(context, *old), welcome(context, *new)) == (False, True)


def test_a_port_does_not_begin_without_its_files(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        PortCertificate(tmp_path / "no.pem", tmp_path / "no.key")
