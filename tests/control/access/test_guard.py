"""Who may do what at the admin port, asked of the whole application."""

import asyncio
import contextlib
from hashlib import sha256

import pytest
import uvicorn
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from holdfast.config.fleet_file import AdminSection
from holdfast.control.access import audit as audit_module
from holdfast.control.access.admin_access import AdminAccess
from holdfast.control.access.audit import AuditLog
from holdfast.control.access.roles import Role, roles_for
from holdfast.control.admin.admin import build_admin
from holdfast.testing.store import MemoryStore
from holdfast.ui.web.routes import web_routes

HERE = "http://127.0.0.1:8001"
LOCAL = ("127.0.0.1", 50_000)
TOKENS = {
    name: f"hf-{name}-" + "x" * 32 for name in ("own", "admin", "reader", "oncall", "gameday")
}
DETOUR = {"kind": "detour", "seconds": 5, "url": "http://127.0.0.1:9"}
DISTURB, UNDISTURB = "/replicas/org/m-1/disturb", "/replicas/org/m-1/undisturb"
DRAIN = "/replicas/org/m-1/drain"


def hashed(name):
    return "sha256:" + sha256(TOKENS[name].encode()).hexdigest()


def bearer(name):
    return {"authorization": f"Bearer {TOKENS.get(name, name)}"}


class Facts:
    """Takes on every order, and keeps it."""

    def __init__(self):
        self.orders = []

    def ready(self):
        return True, "ready"

    def model_ready(self, model):
        return True, model

    def status(self):
        return {"epoch": 1}

    def problems(self):
        return []

    async def reload(self):
        self.orders.append(("reload",))
        return True

    async def drain(self, replica):
        return self._take("drain", replica)

    async def undisturb(self, replica):
        return self._take("undisturb", replica)

    async def disturb(self, replica, *how):
        return self._take("disturb", replica, *how)

    def _take(self, *order):
        self.orders.append(order)
        return True, f"{order[1]}: begun"

    def __getattr__(self, name):
        if name in ("drain", "undrain", "restart", "undisturb", "incidents", "view"):
            return
        raise AttributeError(name)


class Port:
    """An admin port with its store, and somebody who asks."""

    def __init__(self, *, peer=LOCAL, **section):
        self.section = AdminSection(**section)
        self.store = MemoryStore()
        self.facts = Facts()
        self.access = AdminAccess(lambda: self.section, audit=AuditLog(self.store))
        self.access.accept_own(hashed("own"))
        pages = web_routes(self.access, lambda: None, lambda: None, None)
        self.app = build_admin(self.facts, self.section, pages, access=self.access)
        host = HERE if self.section.address.loopback else "http://control.example.org:8001"
        self.client = TestClient(self.app, base_url=host, client=peer)

    def post(self, path, token=None, body=None, **headers):
        shown = bearer(token) if token else {}
        return self.client.post(path, json=body, headers={**shown, **headers}).status_code

    def get(self, path, token=None):
        return self.client.get(path, headers=bearer(token) if token else {}).status_code

    def rows(self):
        found = self.store.orders(1_000)
        return [(one.who, one.what, one.address, one.status) for one in found]


ROLES = [
    {"name": "reader", "roles": ["read"], "token": hashed("reader")},
    {"name": "oncall", "roles": ["operate"], "token": hashed("oncall")},
    {"name": "gameday", "roles": ["chaos"], "token": hashed("gameday")},
]


# --- roles ----------------------------------------------------------------------------------------


def test_a_stranger_on_this_machine_leads_no_prompts_away():
    port = Port()
    assert port.post(DISTURB, body=DETOUR) == 401
    assert port.post(DISTURB, "made-up", DETOUR) == 401
    assert port.facts.orders == []
    assert port.post(DISTURB, "own", DETOUR) == 202


@pytest.mark.parametrize(
    ("name", "read", "operate", "undisturb", "chaos"),
    [
        (None, 401, 401, 401, 401),
        ("made-up", 401, 401, 401, 401),
        ("reader", 200, 403, 403, 403),
        ("oncall", 200, 202, 202, 403),
        ("gameday", 200, 403, 202, 202),
        ("admin", 200, 202, 202, 202),
        ("own", 200, 202, 202, 202),
    ],
)
def test_each_role_opens_its_paths_and_no_other(name, read, operate, undisturb, chaos):
    port = Port(token=hashed("admin"), tokens=ROLES)
    found = (
        port.get("/status", name),
        port.post(DRAIN, name),
        port.post(UNDISTURB, name),
        port.post(DISTURB, name, DETOUR),
    )
    assert found == (read, operate, undisturb, chaos)


def test_signs_of_life_are_open_to_all():
    port = Port(token=hashed("admin"))
    assert [port.get(path) for path in ("/livez", "/readyz", "/readyz/m")] == [200, 200, 200]
    assert (port.get("/status"), port.get("/readyzx")) == (401, 401)


@pytest.mark.parametrize(
    ("section", "status"),
    [
        ({}, 200),
        ({"open_read": False}, 401),
        ({"token": hashed("admin")}, 401),
        ({"tokens": ROLES}, 401),
        ({"token": hashed("admin"), "open_read": True}, 200),
        ({"listen": "0.0.0.0:8001", "token": hashed("admin")}, 401),
    ],
)
def test_reading_is_open_on_loopback_until_a_token_or_the_file_closes_it(section, status):
    assert Port(**section).get("/status") == status


def test_reading_stays_open_to_who_shows_a_wrong_token():
    """A variable that is left from another fleet must not keep anybody from looking."""
    port = Port()
    assert {port.get("/status", "made-up") for _ in range(20)} == {200}
    assert port.access.limit.failed_total == 5


def test_the_token_of_the_state_directory_is_for_this_machine_only():
    port = Port(peer=("10.1.2.3", 1), listen="0.0.0.0:8001", token=hashed("admin"))
    assert port.get("/status", "own") == 401
    assert port.get("/status", "admin") == 200


def test_a_token_that_left_the_file_is_out_at_once_with_its_sessions():
    port = Port(token=hashed("admin"), tokens=ROLES)
    answer = port.client.post("/ui/session", json={"token": TOKENS["oncall"]})
    assert answer.json()["roles"] == ["operate"]
    assert port.get("/status") == 200  # by its cookie
    port.section = AdminSection(token=hashed("admin"), tokens=ROLES[:1])
    assert (port.get("/status"), port.get("/status", "oncall")) == (401, 401)
    assert port.get("/status", "reader") == 200


def test_a_session_has_the_roles_of_its_token():
    port = Port(tokens=ROLES)
    csrf = port.client.post("/ui/session", json={"token": TOKENS["reader"]}).json()["csrf"]
    headers = {"origin": HERE, "x-holdfast-csrf": csrf}
    assert port.post(DRAIN, **headers) == 403
    assert port.client.request("DELETE", "/ui/session", headers=headers).status_code == 200


@pytest.mark.parametrize("host", ["x/livez?", "x/livez#", "x/ui/session?", "x:1/readyz?"])
def test_no_host_makes_another_path_of_a_request(host):
    port = Port(peer=("10.1.2.3", 1), listen="0.0.0.0:8001", token=hashed("admin"))
    answer = port.client.get("/status", headers={"host": host})
    assert answer.status_code == 401
    assert port.client.post(DRAIN, headers={"host": host}).status_code == 401
    assert port.facts.orders == []
    assert port.rows()[-1][1] == f"POST {DRAIN}"


def test_no_sign_in_a_path_makes_another_role_of_an_order():
    port = Port(tokens=ROLES)
    for sign in ("%3F", "%23"):
        assert port.post(f"/replicas/m{sign}/disturb", "oncall", DETOUR) == 403


def test_a_path_that_is_new_needs_a_role_for_orders():
    assert roles_for("POST", "/anything") == {Role.OPERATE}
    assert roles_for("DELETE", "/replicas/x") == {Role.OPERATE}
    assert roles_for("GET", "/anything") == {Role.READ}
    assert roles_for("POST", "/readyz") == {Role.OPERATE}


# --- wrong tokens ---------------------------------------------------------------------------------


def test_sixty_wrong_tokens_are_limited_counted_and_logged_once():
    port = Port(token=hashed("admin"))
    with capture_logs() as logs:
        found = [port.get("/status", f"wrong-{n}") for n in range(60)]
    assert found == [401] * 5 + [429] * 55
    (line,) = logs
    assert (line["event"], line["address"], line["log_level"]) == (
        "wrong admin tokens",
        "127.0.0.1",
        "warning",
    )
    assert port.access.metrics()[0]["admin_sign_ins_failed_total"] == 5
    assert port.access.metrics()[0]["admin_sign_ins_limited_total"] == 55
    answer = port.client.get("/status", headers=bearer("admin"))
    assert (answer.status_code, int(answer.headers["retry-after"]) >= 1) == (429, True)
    assert port.get("/status", "own") == 200  # nobody locks this machine's operator out
    assert port.get("/livez", "wrong-61") == 200


@contextlib.asynccontextmanager
async def served(app, **config):
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_config=None, lifespan="off", ws="none", **config)
    )
    server.capture_signals = contextlib.nullcontext
    task = asyncio.create_task(server.serve())
    try:
        while not server.started:  # noqa: ASYNC110 uvicorn has no event for it
            await asyncio.sleep(0.005)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task


async def sign_in(port, forwarded):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = b'{"token": "wrong"}'
    head = (
        f"POST /ui/session HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nx-forwarded-for: {forwarded}\r\n"
        "content-type: application/json\r\nconnection: close\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    status = int((await asyncio.wait_for(reader.readline(), 30)).split()[1])
    writer.close()
    return status


@pytest.mark.parametrize(
    ("proxies", "expected"),
    [([], [401] * 5 + [429] * 3), (["127.0.0.0/8"], [401] * 8)],
)
def test_an_invented_address_evades_no_limit_unless_its_proxy_is_trusted(proxies, expected):
    port = Port(token=hashed("admin"), trusted_proxies=proxies)

    async def main():
        async with served(port.app, proxy_headers=False) as number:
            return [await sign_in(number, f"10.0.0.{n}") for n in range(8)]

    assert asyncio.run(main()) == expected


def test_of_a_chain_of_proxies_the_last_untrusted_address_counts():
    port = Port(token=hashed("admin"), trusted_proxies=["127.0.0.1", "10.0.0.0/8"])
    forged = {"x-forwarded-for": "1.2.3.4, 203.0.113.9, 10.0.0.7"}
    port.client.post("/ui/session", json={"token": "wrong"}, headers=forged)
    assert port.rows() == [("nobody", "POST /ui/session", "203.0.113.9", 401)]


# --- the audit trail ------------------------------------------------------------------------------


def test_every_order_leaves_a_row_with_who_what_from_where_and_result():
    port = Port(tokens=ROLES)
    port.post(DRAIN, "oncall")
    port.post(DRAIN, "reader")
    port.post(DRAIN)
    port.post("/models/org/m/scale", "oncall", {"replicas": "many"})
    port.get("/status", "reader")
    assert port.rows() == [
        ("oncall", f"POST {DRAIN}", "127.0.0.1", 202),
        ("reader", f"POST {DRAIN}", "127.0.0.1", 403),
        ("nobody", f"POST {DRAIN}", "127.0.0.1", 401),
        ("oncall", "POST /models/org/m/scale", "127.0.0.1", 400),
    ]
    first, second, *_ = port.store.orders()
    assert (first.result, first.not_let_in) == ("org/m-1: begun", False)
    assert ("needs the role operate" in second.result, second.not_let_in) == (True, True)
    assert TOKENS["oncall"] not in repr(port.store.orders())
    found = port.client.get("/audit?limit=2", headers=bearer("reader")).json()["orders"]
    assert [(row["who"], row["status"]) for row in found] == [("nobody", 401), ("oncall", 400)]
    assert port.get("/audit?limit=9999", "reader") == 400
    assert port.get("/audit") == 401


def test_signing_in_is_told_with_the_name_of_the_token():
    port = Port(tokens=ROLES)
    port.client.post("/ui/session", json={"token": TOKENS["oncall"]})
    port.client.cookies.clear()
    port.client.post("/ui/session", json={"token": "wrong"})
    assert [(row[0], row[3]) for row in port.rows()] == [("oncall", 200), ("nobody", 401)]


def test_reports_are_no_orders_and_refused_ones_are_told():
    assert not audit_module.belongs("/facts", 202)
    assert audit_module.belongs("/facts", 401)
    assert not audit_module.belongs("/agents/gpu-1", 202)
    assert not audit_module.belongs("/whatif", 200)


def test_an_order_of_another_page_or_host_is_told_too():
    port = Port()
    port.post(DRAIN, "own", origin="http://evil.example")
    port.client.post(DRAIN, headers={**bearer("own"), "host": "evil.example"})
    assert [(row[0], row[3]) for row in port.rows()] == [("local", 403), ("nobody", 421)]


def test_control_characters_and_length_of_a_path_are_bounded_in_the_trail():
    port = Port()
    port.post("/replicas/%1b[2J" + "x" * 5_000 + "/drain")
    ((_, what, _, _),) = port.rows()
    assert "\x1b" not in what
    assert len(what) <= 300


def test_a_store_that_fails_costs_no_order(monkeypatch):
    port = Port()
    monkeypatch.setattr(port.store, "add_order", lambda _: False)
    assert port.post(DRAIN, "own") == 202
    assert port.access.metrics()[0]["admin_orders_unrecorded_total"] == 1
