"""Certificates of three kinds, and a port that shows one of them."""

import asyncio
import contextlib
import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Certificate:
    """A key, and what somebody signed for it. ``by`` None: it signed itself."""

    def __init__(self, *names, by=None, days=2):
        self.key = ec.generate_private_key(ec.SECP256R1())
        common = x509.NameAttribute(NameOID.COMMON_NAME, names[0])
        self.name = x509.Name([common])
        issuer = by or self
        now = datetime.now(UTC)
        alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
        self.made = (
            x509.CertificateBuilder()
            .subject_name(self.name)
            .issuer_name(issuer.name)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=5))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(alternatives, critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(issuer.key, hashes.SHA256())
        )

    @property
    def pem(self):
        return self.made.public_bytes(serialization.Encoding.PEM)

    def write(self, folder, name, *chain):
        """Both files; the certificate's with a chain behind it."""
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        certificate.write_bytes(b"".join(one.pem for one in (self, *chain)))
        key.write_bytes(
            self.key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return certificate, key


@pytest.fixture(scope="session")
def certified():
    """Makes a certificate."""
    return Certificate


@pytest.fixture(scope="session")
def own():
    """Of a port that others call by this name. It signed itself, and could sign others."""
    return Certificate("control.example.org")


@pytest.fixture(scope="session")
def signed(own):
    """Another one, signed by the first: a stranger who is trusted a little."""
    return Certificate("other.example.org", by=own)


@pytest.fixture(scope="session")
def stranger():
    return Certificate("control.example.org")


class Port:
    """Answers every request with 200, and keeps what it was sent."""

    def __init__(self, certificate, key):
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self.heard = b""
        self.url = ""

    async def _serve(self, reader, writer):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            self.heard += await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.url = f"https://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        await self._server.wait_closed()


@pytest.fixture
def port(tmp_path):
    """Makes a port with a certificate."""
    return lambda certificate, *chain: Port(*certificate.write(tmp_path, "port", *chain))
