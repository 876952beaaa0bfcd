"""What one update of the dashboard costs a browser: 500 replicas of 20 models, all figures moving.

Each update is parsed, compared with what is shown and written into the cells that differ, as far as
their turn has come. ``script`` is the time of the page's own code (``performance.now``), ``layout``
what the browser then takes to lay the page out, asked for at once. Exit status 1 where they take
together more than 5 ms at the median.
"""

import argparse
import json
import statistics
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
CHROMIUM: Final = "/usr/bin/chromium"
BOUND_MS: Final = 5.0
ARGS: Final = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]

_LISTEN: Final = """() => {
  window.costs = [];
  document.addEventListener("holdfast:updated", ({ detail }) => {
    const began = performance.now();
    document.body.offsetHeight;
    window.costs.push([detail.ms, performance.now() - began]);
  });
}"""


def measure(replicas: int, models: int, updates: int, panel: str) -> dict[str, Any]:
    """Milliseconds per update, with that panel in sight."""
    sys.path.append(str(ROOT / "tests" / "web"))
    fleet_server = import_module("fleet_server")
    sync_playwright = import_module("playwright.sync_api").sync_playwright  # not of every install

    fleet = fleet_server.Fleet(fleet_server.fleets.big(replicas, models, 1))
    size = 0
    with (
        fleet_server.served(fleet_server.build(fleet)) as url,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        page.goto(f"{url}/ui/")
        page.wait_for_selector("#live:text-is('live')")
        shown = page.locator(f"section:has(> h2:text-is('{panel}'))").first
        shown.evaluate("(one) => one.scrollIntoView()")
        page.wait_for_timeout(300)
        page.evaluate(_LISTEN)
        for version in range(2, updates + 2):
            fleet.view = fleet_server.fleets.big(replicas, models, version)
            page.wait_for_timeout(100)
        costs = page.evaluate("window.costs")
        size = len(page.request.get(f"{url}/view").body())
        browser.close()
    costs = costs[3:]  # the first few are not compiled yet
    script, layout = sorted(ms for ms, _ in costs), sorted(ms for _, ms in costs)
    together = sorted(map(sum, costs))
    return {
        "in_sight": panel,
        "replicas": replicas,
        "models": models,
        "updates": len(script),
        "view_bytes": size,
        "script_ms_median": round(statistics.median(script), 2),
        "layout_ms_median": round(statistics.median(layout), 2),
        "together_ms_median": round(statistics.median(together), 2),
        "together_ms_p95": round(together[int(len(together) * 0.95)], 2),
    }


def main() -> int:
    """Print one JSON object for each place: the head of the page, and the long table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=500)
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--updates", type=int, default=60)
    given = parser.parse_args()
    size = (given.replicas, given.models, given.updates)
    found = [measure(*size, panel) for panel in ("Incidents", "Replicas")]
    print(json.dumps(found, indent=2))
    return int(any(one["together_ms_median"] > BOUND_MS for one in found))


if __name__ == "__main__":
    sys.exit(main())
