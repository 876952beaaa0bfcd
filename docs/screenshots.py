"""Takes the pictures of the dashboard that the docs show, from a fleet on paper.

    .venv/bin/python docs/screenshots.py

Needs Chromium and Playwright. The fleet is the one of the tests, so that a picture shows what is
tested; each stays below 200 KB.
"""

# ruff: noqa: INP001 - a script, not a package

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
PICTURES: Final = ROOT / "docs" / "pictures"
CHROMIUM: Final = os.environ.get("HOLDFAST_CHROMIUM", "/usr/bin/chromium")
ARGS: Final = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
BYTES_MAX: Final = 200_000

# name, address, colours, height
SHOTS: Final = (
    ("web-overview", "/ui/", "light", 980),
    ("web-overview-dark", "/ui/", "dark", 980),
    ("web-replica", "/ui/replicas/llm-8b-1", "light", 1000),
    ("web-model", "/ui/models/parler-tts", "light", 940),
    ("web-incident", "/ui/incidents/inc-000007", "light", 800),
    ("web-stream", "/ui/stream", "light", 460),
    ("web-whatif", "/ui/plan", "light", 900),
)


def _ask(page: Any) -> None:
    page.wait_for_selector("#w-model option", state="attached")
    page.fill("#w-rate", "10")
    page.fill("#w-traffic", "2")
    page.fill("#w-replicas", "4")
    page.select_option("#w-zone", index=1)
    page.fill("#w-seeds", "3")
    page.click("button.main")
    page.wait_for_selector("h2:text-is('Planned')", timeout=60_000)


def main() -> None:
    """All of them."""
    sys.path.append(str(ROOT / "tests" / "web"))
    fleet_server = import_module("fleet_server")
    sync_playwright = import_module("playwright.sync_api").sync_playwright  # not of every install

    fleet = fleet_server.Fleet(fleet_server.fleets.broken())
    with (
        fleet_server.served(fleet_server.build(fleet)) as url,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        for name, address, colours, height in SHOTS:
            size = {"width": 1320, "height": height}
            context = browser.new_context(viewport=size, color_scheme=colours)
            page = context.new_page()
            page.goto(url + address)
            page.wait_for_selector("#live:text-is('live')")
            if name == "web-whatif":
                _ask(page)
            page.wait_for_timeout(1_000)
            path = PICTURES / f"{name}.png"
            page.screenshot(path=path)
            context.close()
            if path.stat().st_size > BYTES_MAX:
                raise SystemExit(f"{path} has {path.stat().st_size} bytes; at most {BYTES_MAX}")
        browser.close()


if __name__ == "__main__":
    main()
