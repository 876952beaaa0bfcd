"""What ``holdfast chaos`` shows where control refuses."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson
import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.control.fleet.disturbances import ChaosDisabledError

ROW = {"id": "m-1", "model": "m", "state": "ready", "endpoint": "http://127.0.0.1:9", "pid": None}


class Refusing(BaseHTTPRequestHandler):
    """The admin port of a fleet whose file does not enable chaos."""

    def do_GET(self):
        self._answer(200, {"replicas": [ROW], "incidents": []})

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self._answer(403, {"error": str(ChaosDisabledError())})

    def _answer(self, status, data):
        body = orjson.dumps(data)
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Nothing."""


@pytest.fixture
def admin():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    serving.join()
    server.server_close()


@pytest.mark.parametrize("fault", ["skew", "hang"])
def test_a_fleet_whose_file_does_not_enable_chaos_says_so_with_the_fix(admin, fault):
    told = CliRunner().invoke(main, ["chaos", fault, "m-1", "--for", "0.1", "--admin", admin])
    assert told.exit_code == 1
    assert f"{fault} on m-1 not done: chaos.enabled is false in the fleet file" in told.output
    assert "'chaos: {enabled: true}'" in told.output
