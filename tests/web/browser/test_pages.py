"""The pages as somebody on call uses them."""

from dataclasses import replace

import fleet_server
import pytest

fleets = fleet_server.fleets
PAGES = [
    "/ui/",
    "/ui/replicas/llm-8b-1",
    "/ui/models/parler-tts",
    "/ui/incidents/inc-000007",
    "/ui/stream",
    "/ui/plan",
]
REPLICAS = "section:has(> h2:text-is('Replicas'))"


# Keeps what is written into the page from now on.
WATCH = """() => {
  window.seen = [];
  const told = ({ type, target }) => `${type} ${target.data}`;
  const keep = (all) => window.seen.push(...all.map(told));
  new MutationObserver(keep).observe(document.querySelector("main"),
    { subtree: true, childList: true, characterData: true, attributes: true });
}"""


def changed(view, replica, **values):
    rows = tuple(replace(row, **values) if row.id == replica else row for row in view.replicas)
    return replace(view, replicas=rows)


def row_of(page, replica):
    return page.locator(f"{REPLICAS} tbody tr", has=page.locator(f"th >> text='{replica}'"))


# --- the overview ---------------------------------------------------------------------------------


def test_the_overview_says_first_what_is_wrong(open_page, url):
    page = open_page(f"{url}/ui/")
    page.wait_for_selector("text=3 open incidents")
    assert page.title() == "Overview · Holdfast"
    assert "bad" in page.locator(".verdict").get_attribute("class")
    assert page.locator("a:text-is('inc-000007')").count() >= 2  # in its table, and on its rows
    assert row_of(page, "parler-tts-0").locator("td").nth(0).inner_text() == "dead"
    text = page.locator("main").inner_text()
    for expected in ("marigold-cpu", "parler-tts-requests", "fs-4711", "throttled", "MEMORY"):
        assert expected in text
    page.wait_for_selector("#live:text-is('live')")


def test_what_is_unknown_is_a_dash_and_never_a_zero(open_page, url):
    page = open_page(f"{url}/ui/")
    cells = row_of(page, "parler-tts-0").locator("td")
    cells.first.wait_for()
    heads = page.locator(f"{REPLICAS} thead th").all_inner_texts()
    assert cells.nth(heads.index("TTFT") - 1).inner_text() == "–"
    assert cells.nth(heads.index("in flight") - 1).inner_text() == "0"


def test_an_update_writes_the_cells_that_differ_and_no_other(open_page, url, fleet):
    page = open_page(f"{url}/ui/")
    row_of(page, "llm-8b-0").wait_for()
    page.wait_for_selector("#live:text-is('live')")
    page.evaluate(WATCH)
    fleet.view = changed(fleet.view, "llm-8b-0", inflight=99)
    row_of(page, "llm-8b-0").locator(".figure:text-is('99')").wait_for()
    assert page.evaluate("window.seen") == ["characterData 99"]


def test_a_replica_that_falls_ill_moves_up_and_is_said_aloud(open_page, url, fleet):
    page = open_page(f"{url}/ui/")
    row_of(page, "llm-70b-1").wait_for()
    page.wait_for_selector("#live:text-is('live')")
    fleet.view = changed(fleet.view, "llm-70b-1", state="suspect", reason="two canaries were slow")
    row_of(page, "llm-70b-1").locator("td:text-is('suspect')").wait_for()
    names = page.locator(f"{REPLICAS} tbody th").all_inner_texts()
    assert names.index("llm-70b-1") < names.index("llm-70b-0")
    page.wait_for_selector("#news:has-text('llm-70b-1')", state="attached")


def test_the_filter_narrows_by_words_and_keys(open_page, url):
    page = open_page(f"{url}/ui/")
    row_of(page, "llm-8b-0").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("parler")
    page.wait_for_selector("text=2 of 8 replicas")
    assert page.locator(f"{REPLICAS} tbody tr").count() == 2
    page.keyboard.type(" dead")
    page.wait_for_selector("text=1 of 8 replicas")
    page.keyboard.press("Escape")
    page.wait_for_selector("text='8 replicas'")
    page.keyboard.press("!")
    page.wait_for_selector("text=3 of 8 replicas")
    page.keyboard.press("!")
    page.fill("#filter", "nobody")
    page.wait_for_selector("text=No replica matches.")


def test_columns_sort_and_unknown_goes_last(open_page, url):
    page = open_page(f"{url}/ui/")
    row_of(page, "llm-8b-0").wait_for()
    head = page.locator(f"{REPLICAS} th:has(button:text-is('TTFT'))")
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert page.locator(f"{REPLICAS} tbody th").last.inner_text() == "parler-tts-0"
    head.locator("button").click()
    assert page.locator(f"{REPLICAS} tbody th").first.inner_text() == "parler-tts-1"
    assert page.locator(f"{REPLICAS} tbody th").last.inner_text() == "parler-tts-0"


def test_a_big_fleet_is_paged(open_page, url, fleet):
    fleet.view = fleets.big()
    page = open_page(f"{url}/ui/")
    page.wait_for_selector("text=500 replicas")
    assert page.locator(f"{REPLICAS} tbody tr").count() == 100
    page.click("text=Show 100 more of 400")
    assert page.locator(f"{REPLICAS} tbody tr").count() == 200


def test_a_calm_fleet_is_called_so(open_page, url, fleet):
    fleet.view = fleets.calm()
    page = open_page(f"{url}/ui/")
    page.wait_for_selector(".verdict.good:has-text('All well')")
    page.wait_for_selector("text=No open incident.")


def test_a_former_life_is_shown_and_not_counted(open_page, url, fleet):
    first = fleet.view.replicas[0]
    former = replace(first, id=f"{first.id}@1", state="stopped", routed=False, incidents=())
    fleet.view = replace(fleet.view, replicas=(*fleet.view.replicas, former))
    page = open_page(f"{url}/ui/")
    page.wait_for_selector("text='8 replicas and 1 that ended'")
    row_of(page, former.id).wait_for()


def test_a_fleet_without_a_gateway_is_not_well(open_page, url, fleet):
    calm = fleets.calm()
    fleet.view = replace(calm, totals=calm.totals | {"gateways_ready": 0})
    page = open_page(f"{url}/ui/")
    page.wait_for_selector(".verdict.bad:has-text('no gateway accepts clients')")


def test_rows_out_of_sight_are_written_when_they_come_into_it(open_page, url, fleet):
    fleet.view = fleets.big()
    page = open_page(f"{url}/ui/", viewport={"width": 1280, "height": 500})
    page.wait_for_selector("#live:text-is('live')")
    last = page.locator(f"{REPLICAS} tbody tr").last
    name = last.locator("th").text_content()
    fleet.view = changed(fleets.big(version=2), name, inflight=777)
    page.wait_for_timeout(300)
    assert last.locator(".figure:text-is('777')").count() == 0
    page.locator(REPLICAS).evaluate("(one) => one.scrollIntoView()")  # only then is it laid out
    page.wait_for_timeout(300)
    last.evaluate("(one) => one.scrollIntoView()")
    last.locator(".figure:text-is('777')").wait_for()


SHOWN = """() => [...document.querySelectorAll("[aria-label=Replicas] tbody tr")].slice(0, 12)
  .map((row) => row.children[5].textContent)"""


def test_words_and_colours_come_at_once_and_figures_in_turn(open_page, url, fleet):
    fleet.view = fleets.big()
    page = open_page(f"{url}/ui/")
    page.wait_for_selector("#live:text-is('live')")
    page.locator(REPLICAS).evaluate("(one) => one.scrollIntoView()")
    page.wait_for_timeout(300)
    page.evaluate("document.addEventListener('holdfast:updated', () => { window.told = true; })")
    ids = page.locator(f"{REPLICAS} tbody th").all_inner_texts()[:12]

    def moved(number):
        view = replace(fleets.big(version=2), replicas=fleet.view.replicas)
        for name in ids:
            view = changed(view, name, inflight=number, waiting=number, tokens_s=number)
        page.evaluate("window.told = false")
        fleet.view = changed(view, ids[8], state="draining")
        page.wait_for_function("() => window.told")

    moved(501)
    late = page.evaluate(SHOWN)
    assert 0 < late.count("501") < len(ids)
    assert row_of(page, ids[8]).locator("td").first.text_content() == "draining"
    assert late[page.locator(f"{REPLICAS} tbody th").all_inner_texts().index(ids[8])] != ""
    for number in range(502, 508):  # the others have their turn
        moved(number)
    shown = [int(text) for text in page.evaluate(SHOWN)]
    assert all(number > 501 for number in shown)
    # and in the end everybody shows the last, though no more updates come
    page.wait_for_function(f"() => ({SHOWN})().every((text) => text === '507')")


KEPT = """async (version) => {
  const { live } = await import(performance.getEntriesByType("resource")
    .map(({ name }) => name).find((name) => name.includes("live.")));
  if (live.view.version !== version) return false;
  const asked = await (await fetch("/view")).json();
  return JSON.stringify({ ...asked, at: 0 }) === JSON.stringify({ ...live.view, at: 0 });
}"""


def test_what_the_page_keeps_is_what_the_server_has(open_page, url, fleet):
    page = open_page(f"{url}/ui/")
    page.wait_for_selector("#live:text-is('live')")
    for view in (fleets.big(30, 3, 2), fleets.big(30, 3, 3), fleets.calm(), fleets.broken()):
        fleet.view = view
        page.wait_for_function(KEPT, arg=fleet.version)


def test_a_page_that_nobody_looks_at_does_nothing_and_begins_anew(open_page, url, fleet):
    page = open_page(f"{url}/ui/")
    row_of(page, "llm-8b-0").wait_for()
    page.wait_for_selector("#live:text-is('live')")
    page.evaluate("""() => {
      Object.defineProperty(document, "hidden", { value: true, configurable: true });
      document.addEventListener("holdfast:updated", () => { window.told = true; });
    }""")
    fleet.view = changed(fleet.view, "llm-8b-0", inflight=98)
    fleet.view = changed(fleet.view, "llm-8b-1", inflight=97)
    page.wait_for_timeout(300)
    assert page.evaluate("window.told") is None
    page.evaluate("""() => {
      Object.defineProperty(document, "hidden", { value: false, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }""")
    row_of(page, "llm-8b-0").locator(".figure:text-is('98')").wait_for()
    row_of(page, "llm-8b-1").locator(".figure:text-is('97')").wait_for()


def test_a_lost_connection_is_said(open_page, fleet):
    with fleet_server.served(fleet_server.build(fleet)) as url:
        page = open_page(f"{url}/ui/")
        page.wait_for_selector("#live:text-is('live')")
    page.wait_for_selector("#live.bad:has-text('not live')")
    open_page.problems.clear()  # the browser itself complains of the refused connection


# --- one replica, one model, one incident ---------------------------------------------------------


def test_an_order_without_a_sign_in_asks_for_the_token(open_page, url, fleet):
    page = open_page(f"{url}/ui/replicas/llm-8b-1")
    page.wait_for_selector("#signout", state="hidden")
    page.click("button:text-is('Drain')")
    page.fill("#order-token", fleet_server.OWN_TOKEN)
    page.click("dialog button:text-is('Drain')")
    page.wait_for_selector("text=Drain: it begins now")
    assert fleet.orders == [("/replicas/llm-8b-1/drain", None)]
    page.click("#signout")  # and what is only read stays
    page.wait_for_selector("#signout", state="hidden")
    page.wait_for_selector("h1:has-text('llm-8b-1')")


def test_a_link_signs_in_and_leaves_the_address(open_page, url, sign_in):
    page = open_page(f"{url}/ui/{sign_in()}")
    page.wait_for_selector("#signout", state="visible")
    assert "#" not in page.evaluate("location.href")


def test_a_replica_is_drained_after_a_question(open_page, url, fleet, sign_in):
    page = open_page(f"{url}/ui/replicas/llm-8b-1{sign_in()}")
    page.wait_for_selector("#signout", state="visible")
    page.click("button:text-is('Drain')")
    page.wait_for_selector("dialog >> text=Drain llm-8b-1?")
    page.keyboard.press("Escape")
    assert fleet.orders == []
    page.click("button:text-is('Drain')")
    page.click("dialog button:text-is('Drain')")
    page.wait_for_selector("text=Drain: it begins now")
    assert fleet.orders == [("/replicas/llm-8b-1/drain", None)]
    fleet.view = changed(fleet.view, "llm-8b-1", state="draining")
    page.wait_for_selector("button:text-is('Undrain')")


def test_an_order_that_is_refused_says_why(open_page, url, fleet, sign_in):
    fleet.refuse = "it is the last one of its model"
    page = open_page(f"{url}/ui/replicas/llm-8b-1{sign_in()}")
    page.wait_for_selector("#signout", state="visible")
    page.click("button:text-is('Restart')")
    page.click("dialog button:text-is('Restart')")
    page.wait_for_selector("dialog [role=alert]:text-is('it is the last one of its model')")
    open_page.problems.clear()  # the browser itself notes the 409


def test_the_replica_page_shows_its_life(open_page, url):
    page = open_page(f"{url}/ui/replicas/llm-8b-1")
    page.wait_for_selector("h1 .s-suspect")
    page.wait_for_selector("text=full in about 73 min")
    page.wait_for_selector(".lives rect.g-loading")
    page.wait_for_selector("figure:has-text('Memory') canvas")
    page.wait_for_selector("text=as it climbs")
    page.wait_for_selector("text=Last: timeout")
    page.wait_for_selector("pre.log:has-text('served 1 request')")
    assert page.locator("text=memory climbs by 41 MB").count() >= 1
    page.wait_for_selector(".lives text.sign:has-text('b')", state="attached")
    page.wait_for_selector("figure:has-text('per token') canvas")


def test_the_last_canaries_stand_beside_their_latency(open_page, url):
    page = open_page(f"{url}/ui/replicas/llm-8b-1")
    rows = page.locator("section.panel[aria-labelledby]:has(h2:text-is('Last canaries')) tbody tr")
    rows.nth(19).wait_for(state="attached")
    assert rows.count() == 20
    assert "timeout" in rows.nth(0).inner_text()
    assert "no answer in 10 s" in rows.nth(0).inner_text()
    assert rows.nth(0).locator("td.bad.mark").count() == 1
    assert rows.nth(2).locator("td.warn.mark").inner_text() == "slow"
    assert rows.nth(3).locator("td.mark").count() == 0
    page.wait_for_selector("text=Last: timeout, –")


def test_a_replica_that_is_only_seen_on_its_platform_has_no_canaries(open_page, url, fleet):
    row = fleet.view.replicas[0]
    fleet.view = changed(fleet.view, row.id, routed=False)
    page = open_page(f"{url}/ui/replicas/{row.id}")
    page.wait_for_selector("text=Holdfast asks only replicas that it routes to.")


def test_canaries_that_cannot_be_read_are_said_so(open_page, url):
    page = open_page(f"{url}/ui/replicas/nobody")
    page.wait_for_selector("text=The last canaries are not known: no replica has the id")
    open_page.problems.clear()  # the browser itself notes the 404


def test_a_chart_says_that_nothing_was_recorded_only_once_it_was_read(open_page, url):
    page = open_page(f"{url}/ui/models/llm-8b")
    page.wait_for_selector("figure canvas")
    held = []

    def hold(route):
        held.append(route)

    page.route("**/history?*", hold)
    page.click("a:text-is('Overview')")
    page.locator("figure .none:text-is('reading what was recorded …')").first.wait_for()
    assert page.locator("text=nothing recorded in this time").count() == 0
    assert page.locator("figure.chart figcaption button:visible").count() == 0
    page.route("**/history?*", lambda route: route.fulfill(json={"series": {}}))
    for route in held:
        route.fulfill(json={"series": {}})
    page.locator("text=nothing recorded in this time").first.wait_for()


def test_each_chart_has_its_table(open_page, url):
    page = open_page(f"{url}/ui/models/llm-8b")
    page.wait_for_selector("figure canvas")
    buttons = page.locator("figure.chart:has(canvas) figcaption button")
    for place in range(buttons.count()):
        button = buttons.nth(place)
        button.click()
        assert button.get_attribute("aria-expanded") == "true"
    tables = page.locator("figure.chart table").count()
    assert tables == buttons.count() >= 6
    assert page.locator("figure:has-text('CUSUM') table tbody tr").count() > 50


def test_a_model_is_scaled(open_page, url, fleet, sign_in):
    page = open_page(f"{url}/ui/models/llm-8b{sign_in()}")
    page.wait_for_selector("#signout", state="visible")
    page.wait_for_selector("text=Replicas wanted")
    page.fill("#wanted", "5")
    page.keyboard.press("Enter")
    page.click("dialog button:text-is('Scale')")
    page.wait_for_selector("text=Scale: it begins now")
    assert fleet.orders == [("/models/llm-8b/scale", {"replicas": 5})]


def test_an_incident_tells_cause_consequence_action_and_fix(open_page, url):
    page = open_page(f"{url}/ui/")
    page.click("section:has(> h2:text-is('Incidents')) a:text-is('inc-000007')")
    page.wait_for_selector("h1:has-text('undersized of parler-tts-0')")
    text = page.locator("main").inner_text()
    for expected in (
        "set 4 GB",
        "paged: the reservation is not ours to change",
        "killed for memory 31 s after it was ready",
        "grew from 12 to 422",
        "37 in all",
        "platform",
        "97 % sure",
    ):
        assert expected in text
    with page.expect_download() as started:
        page.click("text=Export for replay")
    assert started.value.suggested_filename == "inc-000007.jsonl"
    page.go_back()
    page.wait_for_selector("text=3 open incidents")


def test_the_task_stream_shows_waves_and_the_same_as_a_table(open_page, url):
    page = open_page(f"{url}/ui/stream")
    page.wait_for_selector(".lives rect.g-loading")
    assert page.locator(".lives rect.g-dead").count() == 12
    page.click("figcaption button")
    assert page.locator("figure table tbody tr:has-text('exit 137')").count() == 12
    page.fill("#filter", "parler")
    page.wait_for_selector("text=2 replicas.")
    page.click(".lives a >> nth=0")
    page.wait_for_selector("h1:has-text('parler-tts-0')")


def test_a_what_if_is_answered_beside_the_plan(open_page, url):
    page = open_page(f"{url}/ui/plan")
    page.wait_for_selector("#w-model option", state="attached")
    page.select_option("#w-model", "llm-8b")
    page.fill("#w-rate", "3")
    page.fill("#w-traffic", "1.5")
    page.fill("#w-output", "20")
    page.select_option("#w-zone", "eu-west-2b")
    page.click("button.main")
    page.wait_for_selector("h2:text-is('Planned')", timeout=60_000)
    text = page.locator("main").inner_text()
    for expected in ("answered well", "zone lost", "spares", "For 99.9 %"):
        assert expected in text


# --- for everybody --------------------------------------------------------------------------------


def test_it_works_by_keyboard_alone(open_page, url):
    page = open_page(f"{url}/ui/")
    row_of(page, "llm-8b-1").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    row_of(page, "llm-8b-1").locator("a.row").focus()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('llm-8b-1')")
    page.keyboard.press("?")
    page.wait_for_selector("dialog >> text=only faults")
    page.keyboard.press("Escape")
    assert page.locator("dialog").count() == 0


def test_a_row_is_a_link_wherever_it_is_clicked(open_page, url):
    page = open_page(f"{url}/ui/")
    row_of(page, "llm-70b-0").locator("td").last.click(force=True)
    page.wait_for_selector("h1:has-text('llm-70b-0')")


def test_it_is_dark_where_the_system_is_and_when_asked(open_page, url):
    ground = "getComputedStyle(document.body).backgroundColor"
    page = open_page(f"{url}/ui/", color_scheme="dark")
    dark = page.evaluate(ground)
    assert max(int(n) for n in dark[4:-1].split(",")) < 64
    page.click("#theme")
    light = page.evaluate(ground)
    assert min(int(n) for n in light[4:-1].split(",")) > 200
    page.reload()
    page.wait_for_selector(".verdict")
    assert page.evaluate(ground) == light


@pytest.mark.parametrize("path", PAGES)
def test_at_four_hundred_per_cent_nothing_scrolls_sideways(open_page, url, path):
    page = open_page(f"{url}{path}", viewport={"width": 320, "height": 256})
    page.wait_for_timeout(500)
    wide, there = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= there


def test_on_paper_there_are_no_buttons(open_page, url):
    page = open_page(f"{url}/ui/", color_scheme="dark")
    page.wait_for_selector("text=3 open incidents")
    page.emulate_media(media="print")
    assert not page.locator("#theme").is_visible()
    assert page.locator("text=3 open incidents").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_nothing_serious(open_page, url, axe, path, scheme):
    # Tall, so that nothing is left out because it is out of sight.
    page = open_page(f"{url}{path}", color_scheme=scheme, viewport={"width": 1280, "height": 3_500})
    page.wait_for_timeout(700)
    for button in page.locator("figure.chart:has(canvas) figcaption button").all()[:1]:
        button.click()
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    told = [
        (one["impact"], one["id"], one["nodes"][0]["html"][:160], one["nodes"][0]["failureSummary"])
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
    assert told == []


# --- signing in -----------------------------------------------------------------------------------


def test_the_token_is_asked_for_once(open_page, fleet):
    with fleet_server.served(fleet_server.build(fleet, fleet_server.TOKEN)) as url:
        page = open_page(f"{url}/ui/replicas/llm-8b-1", wait="#token")
        page.fill("#token", "wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("[role=alert]:text-is('this is not the admin token')")
        page.fill("#token", fleet_server.TOKEN)
        page.keyboard.press("Enter")
        page.wait_for_selector("h1:has-text('llm-8b-1')")
        assert page.evaluate("document.cookie") == ""
        assert page.evaluate("Object.values(localStorage).join()") == ""
        page.click("button:text-is('Drain')")
        page.click("dialog button:text-is('Drain')")
        page.wait_for_selector("text=Drain: it begins now")
        page.reload()
        page.wait_for_selector("h1:has-text('llm-8b-1')")
        page.click("#signout")
        page.wait_for_selector("#token")
        page.reload()
        page.wait_for_selector("#token")
    open_page.problems.clear()  # the browser itself notes each 401
