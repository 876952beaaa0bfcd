"""A control that takes reports, on loopback and over TLS, with a certificate made for the test."""

import contextlib
import shutil
import socket
import subprocess
import threading
import time

import pytest
import uvicorn
from starlette.applications import Starlette

from holdfast.config.fleet_file import AdminSection
from holdfast.config.tenants import hash_key
from holdfast.control.access.admin_access import AdminAccess
from holdfast.control.access.guard import Guard
from holdfast.control.view.agents import AgentDoor, AgentInbox, AgentsConfig, agent_routes

TOKEN = "agents-" + "a" * 40
ADMIN = "admin-" + "b" * 40
LONG_S = 30.0


def wait_until(condition, timeout_s=LONG_S):
    """Wait for something that another process or thread does; fails loudly."""
    end = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.01)
    return found


class ControlSide:
    """The part of control that takes reports."""

    def __init__(self, certificate=None, config=None, *, loopback=True, port=0):
        self.seen = []
        config = config or AgentsConfig(token=hash_key(TOKEN))
        self.inbox = AgentInbox(config=config, saw=self.seen.append)
        routes = agent_routes(self.inbox)
        app = Starlette(routes=routes)
        listen = "127.0.0.1:8001" if loopback else "0.0.0.0:8001"
        section = AdminSection(listen=listen, token=hash_key(ADMIN))
        app.add_middleware(Guard, access=AdminAccess(lambda: section))
        app.add_middleware(AgentDoor, token=self.inbox.config.token, routes=routes)
        tls = {}
        if certificate is not None:
            tls = {"ssl_certfile": certificate[0], "ssl_keyfile": certificate[1]}
        self._server = uvicorn.Server(
            uvicorn.Config(
                app, log_config=None, lifespan="off", timeout_graceful_shutdown=1, ws="none", **tls
            )
        )
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self.url = f"{'https' if certificate else 'http'}://localhost:{self.port}"
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self):
        self._server.run(sockets=[self._listener])

    def __enter__(self):
        self._listener.listen()
        self._thread.start()
        wait_until(lambda: self._server.started)
        return self

    def __exit__(self, *_):
        self._server.should_exit = True
        self._thread.join(LONG_S)
        self._listener.close()

    def reading(self, name="gpu-1"):
        """What an agent told last; None before its first report."""
        return next((one for one in self.inbox.readings()[1:] if one.source == name), None)


def make_certificate(folder, name="localhost"):
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate with")
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-addext", f"subjectAltName=DNS:{name}"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return str(certificate), str(key)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="session")
def other_certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="session")
def wrong_name_certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("name"), "elsewhere.example")


@pytest.fixture
def until():
    return wait_until


@pytest.fixture
def side():
    """Builds a control's side, with other settings than usual."""
    return ControlSide


@pytest.fixture
def token():
    return TOKEN


@pytest.fixture
def admin_token():
    return ADMIN


@pytest.fixture
def control(certificate):
    with ControlSide(certificate) as side:
        yield side


@pytest.fixture
def killed_at_end():
    """Processes that must not outlive their test."""
    with contextlib.ExitStack() as stack:

        def keep(process):
            def end():
                if process.poll() is None:
                    process.kill()
                process.wait(LONG_S)
                for stream in (process.stdout, process.stderr):
                    if stream is not None:
                        stream.close()

            stack.callback(end)
            return process

        yield keep
