import re

import fleet_server
import pytest
from starlette.testclient import TestClient

from holdfast.control.access.sessions import COOKIE, CSRF_HEADER

HERE = "http://127.0.0.1:8001"
TOKEN = fleet_server.TOKEN
DRAIN = "/replicas/llm-8b-1/drain"


@pytest.fixture
def fleet():
    return fleet_server.Fleet(fleet_server.fleets.broken())


def client_of(fleet, token=None, **more):
    local = ("127.0.0.1", 50_000)
    return TestClient(fleet_server.build(fleet, token), base_url=HERE, client=local, **more)


@pytest.fixture
def client(fleet):
    with client_of(fleet, TOKEN) as client:
        yield client


@pytest.fixture
def anybody(fleet):
    with client_of(fleet) as client:
        yield client


def sign_in(client):
    answer = client.post("/ui/session", json={"token": TOKEN}, headers={"origin": HERE})
    assert answer.status_code == 200
    return answer.json()["csrf"]


# --- pages and files ------------------------------------------------------------------------------


def test_the_root_leads_to_the_page(client):
    answer = client.get("/", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "/ui/")
    assert client.get("/ui").text.startswith("<!doctype html>")


@pytest.mark.parametrize(
    "path", ["/ui/", "/ui/replicas/org/m-1", "/ui/incidents/inc-000007", "/ui/stream", "/ui/plan"]
)
def test_each_address_of_the_dashboard_gives_the_page(client, path):
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"


def test_pages_run_no_script_and_no_style_but_their_own(client):
    answer = client.get("/ui/")
    policy = dict(
        part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", answer.text)
    assert "http:" not in answer.text
    assert "https:" not in answer.text


def files_of(client):
    page = client.get("/ui/").text
    return re.findall(r'(?:href|src)="(/ui/static/[^"]+)"', page)


def test_files_that_the_page_names_are_served_and_kept_for_ever(client):
    files = files_of(client)
    assert len(files) >= 4
    for path in files:
        answer = client.get(path)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
    kinds = {client.get(path).headers["content-type"].split(";")[0] for path in files}
    assert kinds == {"text/javascript", "text/css", "image/svg+xml"}


def test_modules_import_files_that_exist(client):
    main = next(path for path in files_of(client) if path.endswith("/main.js"))
    seen, left = set(), {main}
    while left:
        path = left.pop()
        seen.add(path)
        answer = client.get(path)
        assert answer.status_code == 200, path
        for name in re.findall(r'from "\./([^"]+)"', answer.text):
            left |= {path.rpartition("/")[0] + "/" + name} - seen
    assert len(seen) > 10


def test_the_licence_of_what_is_not_ours_lies_beside_it(client):
    path = next(path for path in files_of(client) if path.endswith("uPlot.min.css"))
    answer = client.get(path.replace("uPlot.min.css", "uPlot.LICENSE.txt"))
    assert "MIT License" in answer.text


def test_files_are_packed_for_who_can_unpack(client):
    path = files_of(client)[-1]
    packed = client.get(path, headers={"accept-encoding": "gzip"})
    plain = client.get(path, headers={"accept-encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.content == plain.content
    assert int(packed.headers["content-length"]) < len(plain.content)


@pytest.mark.parametrize("path", ["main.js", "0000/main.js", "../routes.py", "..%2froutes.py", ""])
def test_nothing_else_is_served(client, path):
    answer = client.get(f"/ui/static/{path}")
    assert answer.status_code in (200, 404)
    assert "web_routes" not in answer.text
    if answer.status_code == 200:  # the address was folded into that of a page
        assert answer.text.startswith("<!doctype html>")


# --- signing in -----------------------------------------------------------------------------------


def test_pages_are_open_and_facts_are_not(client):
    assert client.get("/ui/").status_code == 200
    for path in ("/view", "/events", "/status", "/whatif", "/uix", "/view/stream"):
        assert client.get(path).status_code == 401, path
    session = client.get("/ui/session").json()
    bare = {"required": True, "signed_in": False, "csrf": None}
    assert session == bare | {"name": None, "roles": []}


def test_the_token_is_shown_once_and_a_cookie_opens_the_rest(client):
    sign_in(client)
    assert client.get("/view").status_code == 200
    session = client.get("/ui/session")
    assert session.json()["signed_in"]
    assert session.headers["cache-control"] == "no-store"


def test_the_cookie_is_kept_from_scripts_and_from_other_sites(client):
    answer = client.post("/ui/session", json={"token": TOKEN})
    said = answer.headers["set-cookie"]
    assert said.startswith(f"{COOKIE}=")
    for part in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=43200"):
        assert part in said
    assert "Secure" not in said  # plain HTTP, on loopback
    assert TOKEN not in said + answer.text


def test_over_https_the_cookie_stays_there(fleet):
    with TestClient(fleet_server.build(fleet, TOKEN), base_url="https://127.0.0.1") as client:
        answer = client.post("/ui/session", json={"token": TOKEN})
        assert "Secure" in answer.headers["set-cookie"]


def test_a_wrong_token_is_refused_and_soon_slowed(client):
    for _ in range(5):
        answer = client.post("/ui/session", json={"token": "wrong"})
        assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
    answer = client.post("/ui/session", json={"token": TOKEN})
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("body", [{}, [], {"token": 3}, {"token": ""}, {"token": "x" * 5_000}, "t"])
def test_a_body_that_holds_no_token_is_refused(client, body):
    assert client.post("/ui/session", json=body).status_code == 400


def test_a_huge_body_is_not_read_to_its_end(client):
    answer = client.post("/ui/session", json={"token": "x" * 200_000})
    assert answer.status_code == 400


def test_nobody_signs_in_from_another_site_or_by_a_form(client):
    evil = {"origin": "http://evil.example"}
    assert client.post("/ui/session", json={"token": TOKEN}, headers=evil).status_code == 403
    assert client.post("/ui/session", data={"token": TOKEN}).status_code == 415


def test_signing_out_ends_it_on_the_server(client):
    csrf = sign_in(client)
    cookie = client.cookies[COOKIE]
    assert client.request("DELETE", "/ui/session").status_code == 403
    answer = client.request("DELETE", "/ui/session", headers={CSRF_HEADER: csrf})
    assert answer.status_code == 200
    client.cookies.set(COOKIE, cookie)
    assert client.get("/view").status_code == 401


def test_a_cookie_that_nobody_handed_out_opens_nothing(client):
    client.cookies.set(COOKIE, "made-up")
    assert client.get("/view").status_code == 401
    headers = {CSRF_HEADER: "made-up", "origin": HERE}
    assert client.post(DRAIN, headers=headers).status_code == 401


def test_the_bearer_token_works_as_before_and_needs_no_second_secret(client, fleet):
    bearer = {"authorization": f"Bearer {TOKEN}"}
    assert client.get("/view", headers=bearer).status_code == 200
    assert client.post(DRAIN, headers=bearer).status_code == 202
    assert fleet.orders == [(DRAIN, None)]


def test_another_host_gets_nothing_not_even_the_page(client):
    for path in ("/ui/", "/ui/session", "/view"):
        answer = client.get(path, headers={"host": "evil.example"})
        assert answer.status_code == 421


# --- orders ---------------------------------------------------------------------------------------


def test_an_order_of_a_page_carries_its_secret(client, fleet):
    csrf = sign_in(client)
    assert client.post(DRAIN, headers={"origin": HERE}).status_code == 403
    assert client.post(DRAIN, headers={"origin": HERE, CSRF_HEADER: "x"}).status_code == 403
    assert client.post(DRAIN).status_code == 403  # a cookie alone gives no order, page or not
    assert fleet.orders == []
    good = {"origin": HERE, CSRF_HEADER: csrf}
    assert client.post(DRAIN, headers=good).status_code == 202
    answer = client.post("/models/llm-8b/scale", json={"replicas": 3}, headers=good)
    assert answer.status_code == 202
    assert fleet.orders == [(DRAIN, None), ("/models/llm-8b/scale", {"replicas": 3})]


def test_the_right_secret_from_another_site_is_refused(client, fleet):
    csrf = sign_in(client)
    headers = {"origin": "http://evil.example", CSRF_HEADER: csrf}
    assert client.post(DRAIN, headers=headers).status_code == 403
    assert fleet.orders == []


def test_on_loopback_pages_read_without_a_sign_in_and_give_no_orders(anybody, fleet):
    session = anybody.get("/ui/session").json()
    assert (session["required"], session["signed_in"]) == (False, False)
    assert (session["name"], session["roles"]) == ("anybody", ["read"])
    assert anybody.get("/view").status_code == 200
    good = {"origin": HERE, CSRF_HEADER: session["csrf"]}
    for headers in ({}, {"origin": HERE}, good):
        assert anybody.post(DRAIN, headers=headers).status_code == 401
    assert fleet.orders == []
    # A what-if changes nothing, and is open to pages that have the secret, and to programs.
    assert anybody.post("/whatif", json={}, headers={"origin": HERE}).status_code == 403
    assert anybody.post("/whatif", json={"x": 1}, headers=good).status_code == 400
    assert anybody.post("/whatif", json={"x": 1}).status_code == 400


def link_of(client):
    bearer = {"authorization": f"Bearer {fleet_server.OWN_TOKEN}"}
    answer = client.post("/ui/link", headers=bearer)
    assert (answer.status_code, answer.json()["lasts_s"]) == (201, 600.0)
    path, _, code = answer.json()["path"].partition("#sign-in=")
    assert path == "/ui/"
    return code


def test_a_link_signs_one_browser_in_once(anybody, fleet):
    code = link_of(anybody)
    answer = anybody.post("/ui/session", json={"code": code}, headers={"origin": HERE})
    assert answer.status_code == 200
    assert (answer.json()["name"], answer.json()["roles"]) == (
        "local",
        ["chaos", "operate", "read"],
    )
    good = {"origin": HERE, CSRF_HEADER: answer.json()["csrf"]}
    assert anybody.post(DRAIN, headers=good).status_code == 202
    assert fleet.orders == [(DRAIN, None)]
    again = anybody.post("/ui/session", json={"code": code}, headers={"origin": HERE})
    assert (again.status_code, "used already" in again.json()["error"]) == (401, True)


def test_a_link_is_made_for_who_may_give_orders_only(anybody):
    assert anybody.post("/ui/link").status_code == 401
    wrong = {"authorization": "Bearer wrong"}
    assert anybody.post("/ui/link", headers=wrong).status_code == 401


def test_an_old_link_signs_nobody_in(fleet):
    now = [0.0]
    app = fleet_server.build(fleet, clock=lambda: now[0])
    with TestClient(app, base_url=HERE, client=("127.0.0.1", 50_000)) as client:
        code = link_of(client)
        now[0] += 601
        assert client.post("/ui/session", json={"code": code}).status_code == 401


def test_the_token_of_the_state_directory_orders_without_a_second_secret(anybody):
    bearer = {"authorization": f"Bearer {fleet_server.OWN_TOKEN}"}
    assert anybody.post(DRAIN, headers=bearer).status_code == 202
    assert anybody.post(DRAIN).status_code == 401


# --- what if --------------------------------------------------------------------------------------


def ask(client, **body):
    session = client.get("/ui/session").json()
    return client.post("/whatif", json=body, headers={CSRF_HEADER: session["csrf"], "origin": HERE})


def test_a_question_starts_from_what_runs(anybody):
    models = {one["model"]: one for one in anybody.get("/whatif").json()["models"]}
    assert models["llm-8b"]["replicas"] == 2
    assert models["llm-8b"]["slots"] == 32
    assert models["llm-8b"]["requests_s"] is not None
    assert models["org/tts"]["requests_s"] is None  # nobody has seen it: not known, not zero


def test_the_answer_holds_both_fleets_and_the_plan(anybody):
    answer = ask(anybody, model="llm-8b", rate=5, replicas=4, traffic=2, output=20)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert told["now"]["total"]["offered"] < told["then"]["total"]["offered"]
    assert 0 <= told["then"]["total"]["goodput"] <= 1
    now, then = told["redundancy"]
    assert (now["replicas"], then["replicas"]) == (2, 4)
    assert told["plan"]["replicas"] >= told["question"]["need"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "model"),
        ({"model": "nobody"}, "model"),
        ({"model": ["llm-8b"]}, "model"),
        ({"model": "org/tts"}, "rate"),
        ({"model": "llm-8b", "replicas": 0}, "replicas"),
        ({"model": "llm-8b", "replicas": True}, "replicas"),
        ({"model": "llm-8b", "traffic": "2"}, "traffic"),
        ({"model": "llm-8b", "traffic": 1e9}, "traffic"),
        ({"model": "llm-8b", "lost_zone": "mars"}, "lost_zone"),
        ({"model": "llm-8b", "lost_zone": ["x"]}, "lost_zone"),
        ({"model": "llm-8b", "target": 1}, "target"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_by_field(anybody, body, field):
    answer = ask(anybody, **body)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(f"{field}: ")
