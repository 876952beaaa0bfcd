"""``holdfast cost`` against an admin port that answers what a test gives it."""

import http.server
import json
import threading

import pytest
from click.testing import CliRunner

from holdfast.cli.cost import cost
from holdfast.control.view.costs import Costs
from holdfast.core.plan.cost import ModelPrice, Prices


def told(prices):
    """What control would tell of an hour of one replica that had one tenant and one failure."""
    costs = Costs(prices)
    row = {"id": "m-1", "model": "m", "state": "ready", "inflight": 1}
    costs.look([row], {}, 0)
    series = {
        'tokens_total{tenant="search",model="m",route="auto",use="useful",type="output"}': 300,
        'tokens_total{tenant="search",model="m",route="auto",use="retry",type="output"}': 100,
    }
    costs.look([row], series, 3_600_000_000_000)
    costs.look([row | {"inflight": 0}], series, 7_200_000_000_000)
    return costs.report()


@pytest.fixture
def admin():
    """The URL of an admin port, and the page that it shows."""
    pages = {}

    class Admin(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps(pages.get(self.path, {"error": "no such page"})).encode()
            self.send_response(200 if self.path in pages else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Admin) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", pages
        server.shutdown()
        thread.join()


def test_a_table_says_who_cost_what_and_what_was_wasted(admin):
    url, pages = admin
    pages["/cost"] = told(Prices("EUR", 4.0, {"m": ModelPrice(2, 3.0, 0.0, 1_000.0)}))
    result = CliRunner().invoke(cost, ["--admin", url])
    assert result.exit_code == 0, result.output
    model = next(line for line in result.output.splitlines() if line.startswith("m "))
    assert model.split() == ["m", "240", "min", "12.00", "37.5%", "12.5%", "50.0%", "0.30"]
    lines = [line.split() for line in result.output.splitlines() if line.startswith("search")]
    assert lines[0] == ["search", "m", "auto", "useful", "0", "300", "90", "min", "4.50"]
    assert lines[1][3] == "retry"
    assert "EUR" in result.output
    assert "no 'prices'" not in result.output


def test_without_prices_it_says_so(admin):
    url, pages = admin
    pages["/cost"] = told(Prices())
    result = CliRunner().invoke(cost, ["--admin", url, "--lines", "0"])
    assert "has no 'prices'" in result.output
    assert "search" not in result.output


def test_of_a_fleet_that_has_not_run_nothing_is_told(admin):
    url, pages = admin
    pages["/cost"] = Costs(Prices()).report()
    assert "no replica has run yet" in CliRunner().invoke(cost, ["--admin", url]).output


def test_programs_get_all_of_it(admin):
    url, pages = admin
    pages["/cost"] = told(Prices())
    result = CliRunner().invoke(cost, ["--admin", url, "--json"])
    assert json.loads(result.output) == pages["/cost"]


def test_a_control_without_that_page_is_an_error_in_words(admin):
    result = CliRunner().invoke(cost, ["--admin", admin[0]])
    assert result.exit_code == 1
    assert "no such page" in result.output
