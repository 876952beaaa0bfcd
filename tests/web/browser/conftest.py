"""A headless Chromium, shared by the tests of a module; each has its own context and fleet."""

import gzip
import os
import sys
from pathlib import Path

import pytest

WEB = Path(__file__).resolve().parent.parent
if str(WEB) not in sys.path:
    sys.path.append(str(WEB))

WANTED = "HOLDFAST_WEB"
ARGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")  # its event loop would be in the way of tests that run their own
def browser():
    if not os.environ.get(WANTED):
        pytest.skip(f"needs Chromium and Playwright: set {WANTED}=1 (make test-web)")
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 not installed everywhere

    with sync_playwright() as playwright:
        path = os.environ.get("HOLDFAST_CHROMIUM", "/usr/bin/chromium")
        browser = playwright.chromium.launch(executable_path=path, args=ARGS)
        yield browser
        browser.close()


@pytest.fixture
def fleet():
    import fleet_server  # noqa: PLC0415 found by the path above

    return fleet_server.Fleet(fleet_server.fleets.broken())


@pytest.fixture
def url(fleet):
    import fleet_server  # noqa: PLC0415

    with fleet_server.served(fleet_server.build(fleet)) as url:
        yield url


@pytest.fixture
def sign_in(fleet, url):
    """The end of an address that signs its page in."""
    return lambda: f"#sign-in={fleet.sign_in_code()}"


@pytest.fixture
def open_page(browser, url):
    """Opens pages; at the end, while their server still runs, none may have complained."""
    contexts, problems = [], []

    def opened(address, wait="#main h1", **options):
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "console",
            lambda said: problems.append(said.text) if said.type == "error" else None,
        )
        page.goto(address)
        page.wait_for_selector(wait, state="attached")
        return page

    opened.problems = problems
    yield opened
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture(scope="session")
def axe():
    return gzip.decompress((WEB / "vendor" / "axe.min.js.gz").read_bytes()).decode()
