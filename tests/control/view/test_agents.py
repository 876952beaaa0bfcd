import asyncio
import contextlib
from dataclasses import replace

import orjson
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from holdfast.config.fleet_file import AdminSection
from holdfast.config.tenants import hash_key
from holdfast.control.access.admin_access import AdminAccess
from holdfast.control.access.guard import Guard
from holdfast.control.fetch import fetch
from holdfast.control.view.agent_claims import AgentGrant, claims_refused, grant_of
from holdfast.control.view.agents import (
    LATE_S,
    AgentDoor,
    AgentInbox,
    AgentsConfig,
    RefusedError,
    agent_routes,
    in_our_time,
)
from holdfast.core.diagnose.facts import GpuFault, HostSeen, LineSeen, Mark, PhaseSeen, ProcessEnded
from holdfast.core.types import ConfigError
from holdfast.core.view.layers import Disk, Group, Host, Part, Placed, Queue, Reading
from holdfast.core.view.reading_diff import ReadingDiff
from holdfast.core.view.staleness import HOSTS, PLACED, Freshness
from holdfast.sources.agent_report import (
    REPORT_BYTES_MAX,
    AgentReport,
    AgentStatus,
    ReportedGpuFault,
    ReportedLine,
    ReportedPhase,
    encode,
)

WALL = 1_790_000_000.0
TOKEN, ADMIN = "agents-" + "a" * 40, "admin-" + "b" * 40


class Desk:
    """An inbox and clocks that a test turns."""

    def __init__(self, replicas=None, **config):
        self.now, self.wall = 1_000.0, WALL
        self.seen = []
        self.inbox = AgentInbox(
            config=AgentsConfig(**config),
            saw=self.seen.append,
            replicas=replicas,
            clock=lambda: self.now,
            wall=lambda: self.wall,
        )

    def passes(self, seconds):
        self.now += seconds
        self.wall += seconds

    def take(self, name="gpu-1", **more):
        self.inbox.take(name, encode(self.report(name, **more)))

    def report(self, name="gpu-1", *, behind_s=0.0, life="one", rows=None, **more):
        at = self.wall - behind_s
        own = "r" if name == "gpu-1" else f"r-{name}"
        shown = {
            "parts": (Part("host", at),),
            "groups": (Group(name),),
            "hosts": (Host(name, group=name, launched_at=at - 100),),
            "placed": (Placed("r@1", "m", "running", replica=own, used_bytes=5, spoke_at=at - 2),),
        }
        reading = Reading("whatever", "local", at, **(shown | (rows or {})))
        return AgentReport(life, at, 5.0, reading, **more)

    def one(self, name="gpu-1"):
        return next((one for one in self.inbox.readings()[1:] if one.source == name), None)

    def merged(self):
        return asyncio.run(self.inbox.read())

    def notes(self):
        return self.inbox.readings()[0].notes


@pytest.fixture
def desk():
    return Desk()


# --- what is known --------------------------------------------------------------------------------


def test_an_agents_reading_is_told_under_its_own_name(desk):
    desk.take()
    reading = desk.one()
    assert (reading.source, reading.kind) == ("gpu-1", "agent")
    assert reading.hosts[0].id == "gpu-1"
    assert [part.name for part in reading.parts] == ["report", "host"]
    assert reading.parts[0].at == WALL


def test_all_agents_together_are_one_reading_of_a_source(desk):
    assert (desk.merged().hosts, desk.inbox.kind, desk.inbox.name) == ((), "agent", "agents")
    desk.take("gpu-1")
    desk.take("gpu-2")
    reading = desk.merged()
    assert [host.id for host in reading.hosts] == ["gpu-1", "gpu-2"]
    assert [group.name for group in reading.groups] == ["gpu-1", "gpu-2"]
    assert [part.name for part in reading.parts] == ["inbox", "gpu-1", "gpu-2"]
    assert len(reading.placed) == 2
    asyncio.run(desk.inbox.close())


def test_a_silent_agent_is_said_to_be_and_makes_no_other_look_old(desk):
    desk.take("gpu-1")
    desk.passes(10)
    desk.take("gpu-2")
    desk.passes(5.5)
    silent, well = desk.one("gpu-1"), desk.one("gpu-2")
    assert [part.error for part in silent.parts] == ["no report for 16 s"]
    assert silent.parts[0].failing_since == WALL
    assert silent.hosts[0].state == "silent"
    assert not Freshness(silent).fresh(HOSTS)
    assert not Freshness(silent).fresh(PLACED)
    assert Freshness(well).fresh(PLACED)
    merged = desk.merged()
    assert Freshness(merged).fresh(HOSTS)
    assert [host.state for host in merged.hosts] == ["silent", ""]
    assert [row.used_bytes for row in merged.placed] == [None, 5]
    assert [listed["silent"] for listed in desk.inbox.listing()] == [True, False]
    desk.take("gpu-1")
    assert not desk.one("gpu-1").parts[0].error


def test_one_lost_report_is_no_silence(desk):
    desk.take()
    desk.passes(14)
    assert not desk.one().parts[0].error


def test_an_agent_that_stays_away_leaves_with_a_note(desk):
    desk.take()
    desk.passes(600)
    assert desk.one() is not None
    desk.passes(1)
    assert desk.one() is None
    assert desk.notes() == ("gpu-1 has not reported since 14:13:20 UTC, and was taken out",)
    assert desk.inbox.listing() == []
    desk.passes(3601)
    assert desk.notes() == ()


def test_one_that_says_it_leaves_is_gone_at_once_and_may_come_back(desk):
    desk.take(leaving=True, lines=(ReportedLine(1, 0, "r", Mark.WATCHDOG),))
    assert desk.one() is None
    assert desk.notes() == ("gpu-1 was told to end at 14:13:20 UTC, and has left",)
    assert desk.seen == [LineSeen("r", Mark.WATCHDOG, reporter="agent gpu-1")]
    desk.take(life="two")
    assert desk.one() is not None


def test_a_part_that_fails_is_told(desk):
    failing = Part("gpus", WALL - 50, "the driver is silent", WALL - 40)
    desk.take(rows={"parts": (Part("host", WALL), failing)})
    assert desk.one().parts[2].error == "the driver is silent"
    assert desk.merged().parts[2].name == "gpu-1/gpus"


def test_a_shared_filesystem_is_one_and_its_throughput_the_sum(desk):
    def disk(rate, size=None):
        return {"disks": (Disk("filer:/m", "nfs4", read_bytes_s=rate, size_bytes=size),)}

    desk.take("gpu-1", rows=disk(10.0))
    desk.take("gpu-2", rows=disk(32.5, 700))
    desk.take("gpu-3", rows=disk(None))
    (together,) = desk.inbox.readings()[0].disks
    assert together == Disk("filer:/m", "nfs4", read_bytes_s=42.5, size_bytes=700, clients=3)
    assert desk.merged().disks == (together,)
    assert desk.one().disks == ()
    desk.passes(20)
    desk.take("gpu-1", rows=disk(10.0))
    assert desk.inbox.readings()[0].disks[0].read_bytes_s == 10.0


def test_the_agent_itself_is_listed_and_its_losses_are_notes(desk):
    desk.take(own=AgentStatus("1.2", 20 << 20, 0.002, 3, 4096))
    desk.passes(2)
    (listed,) = desk.inbox.listing()
    assert (listed["name"], listed["age_s"], listed["version"]) == ("gpu-1", 2.0, "1.2")
    assert (listed["rss_bytes"], listed["cpu_share"], listed["reports"]) == (20 << 20, 0.002, 1)
    assert any("3 things" in note for note in desk.one().notes)
    assert any("4096 bytes" in note for note in desk.one().notes)
    assert any(note.startswith("gpu-1: 3 things") for note in desk.merged().notes)


def test_an_agent_speaks_of_its_host_only(desk):
    desk.take(rows={"queues": (Queue("q", "m", visible=9),)})
    assert desk.one().queues == ()


# --- clocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("behind_s", "word"), [(3600.0, "behind"), (-3600.0, "ahead")])
def test_times_of_a_clock_that_differs_are_moved(desk, behind_s, word):
    desk.take(behind_s=behind_s)
    reading = desk.one()
    assert reading.hosts[0].launched_at == WALL - 100
    assert reading.placed[0].spoke_at == WALL - 2
    assert reading.parts[1].at == WALL
    assert any(f"3600 s {word}" in note for note in reading.notes)
    assert desk.inbox.listing()[0]["clock_differs_s"] == -behind_s


def test_delays_of_the_network_do_not_shake_the_times(desk):
    desk.take(behind_s=0.1)
    first = desk.one().hosts[0].launched_at
    desk.passes(5)
    report = desk.report(behind_s=0.7)
    host = replace(report.reading.hosts[0], launched_at=first - 0.1)
    desk.take(behind_s=0.7, rows={"hosts": (host,)})
    assert desk.one().hosts[0].launched_at == pytest.approx(first, abs=1e-3)


def test_a_clock_that_was_set_is_followed(desk):
    desk.take(behind_s=100.0)
    desk.passes(5)
    desk.take(behind_s=0.0)
    assert desk.inbox.listing()[0]["clock_differs_s"] == 0.0


def test_a_time_that_is_none_becomes_unknown():
    moved = in_our_time(Reading("a", "agent", 1, hosts=(Host("h", launched_at=7.0),)), 5.0)
    assert moved.hosts[0].launched_at is None


# --- what happened --------------------------------------------------------------------------------


def test_lines_phases_and_faults_are_told_once_and_in_order(desk):
    things = {
        "lines": (ReportedLine(2, 0, "r", Mark.TRANSFER_FAILED, "h:1"),),
        "phases": (ReportedPhase(1, 0, "r", "loading"),),
        "faults": (ReportedGpuFault(3, 0, "r", 79, True, "off the bus"),),
    }
    desk.take(**things)
    desk.take(**things)
    assert desk.seen == [
        PhaseSeen("r", "loading"),
        LineSeen("r", Mark.TRANSFER_FAILED, "h:1", "agent gpu-1"),
        GpuFault("r", 79, True, "off the bus", "agent gpu-1"),
    ]


def test_the_next_process_of_an_agent_counts_anew(desk):
    desk.take(lines=(ReportedLine(9, 0, "r", Mark.WATCHDOG),))
    desk.passes(5)
    desk.take(life="two", lines=(ReportedLine(1, 0, "r", Mark.WATCHDOG),))
    assert len(desk.seen) == 2


def test_old_news_and_news_of_strangers_are_counted_and_not_told():
    desk = Desk(replicas=lambda: {"r"})
    strange = Placed("s@1", "m", "running", replica="stranger")
    desk.take(
        rows={"placed": (*desk.report().reading.placed, strange)},
        lines=(
            ReportedLine(1, LATE_S + 1, "r", Mark.WATCHDOG),
            ReportedLine(2, 0, "stranger", Mark.WATCHDOG),
            ReportedLine(3, LATE_S - 1, "r", Mark.WATCHDOG),
        ),
    )
    assert desk.seen == [LineSeen("r", Mark.WATCHDOG, reporter="agent gpu-1")]
    assert (desk.inbox.late, desk.inbox.strange, desk.inbox.facts) == (1, 1, 1)


def test_an_oom_kill_on_another_host_is_one_end_and_names_its_witness(desk):
    sightings, facts = ReadingDiff(), []

    def look():
        facts.extend(sightings.take(desk.merged(), int(desk.now * 1e9), desk.wall))

    desk.take()
    look()
    row = Placed("r@1", "m", "stopped", replica="r", used_bytes=5, stopped_at=WALL, oom=True)
    desk.passes(5)
    desk.take(rows={"placed": (row,)})
    look()
    desk.passes(5)
    desk.take(rows={"placed": (row, Placed("r@2", "m", "running", replica="r"))})
    look()
    ends = [fact for fact in facts if isinstance(fact, ProcessEnded)]
    assert [(end.replica, end.oom) for end in ends] == [("r", True)]
    assert HostSeen("gpu-1", group="gpu-1") in facts


# --- of whom an agent may speak -------------------------------------------------------------------

FATAL = (ReportedGpuFault(1, 0, "r", 79, True),)
GRANTS = (
    AgentGrant("gpu-1", hash_key("one-" + "1" * 40), replicas=("r",)),
    AgentGrant("gpu-2", hash_key("two-" + "2" * 40), host="node-2", replicas=("r2",)),
)


def test_an_invented_host_says_nothing_of_another_hosts_replica(desk):
    desk.take("gpu-1")
    desk.take("invented", rows={"placed": ()}, life="x", faults=FATAL)
    row = Placed("r@9", "m", "stopped", replica="r", oom=True)
    desk.take("invented", rows={"placed": (row,), "hosts": (Host("gpu-1"),)}, life="x")
    assert desk.seen == []
    assert (desk.one("invented").placed, desk.one("invented").hosts) == ((), ())
    assert (desk.inbox.foreign, desk.inbox.metrics()["agent_claims_refused_total"]) == (3, 3)
    assert any("invented speaks of" in note for note in desk.notes())


def test_a_row_is_no_other_replicas_by_its_id_or_its_address(desk):
    desk.take("gpu-1")
    rows = (Placed("r", "m", "stopped"), Placed("x", "m", "stopped", endpoint="http://10.0.0.1:1"))
    desk.take("invented", rows={"placed": rows}, life="x")
    assert [(row.id, row.endpoint) for row in desk.one("invented").placed] == [("x", "")]


def test_replicas_that_control_launched_are_no_agents():
    desk = Desk()
    desk.inbox._launched = lambda: {"r"}
    desk.take(faults=FATAL)
    assert (desk.seen, desk.one().placed) == ([], ())


def test_a_replica_goes_to_the_next_agent_once_the_first_has_left(desk):
    desk.take("gpu-1")
    desk.take("gpu-1", leaving=True)
    row = Placed("r@9", "m", "running", replica="r")
    desk.take("gpu-9", rows={"placed": (row,)}, faults=FATAL)
    assert [fact.replica for fact in desk.seen] == ["r"]


def granted(desk, name, grant, **more):
    desk.inbox.take(name, encode(desk.report(name, **more)), grant)


def test_a_token_of_its_own_speaks_of_its_host_and_its_replicas_alone():
    desk = Desk(agents=GRANTS)
    granted(desk, "gpu-1", GRANTS[0], faults=FATAL)
    assert [fact.replica for fact in desk.seen] == ["r"]
    other = Placed("r2@1", "m", "running", replica="r2")
    foreign = (ReportedGpuFault(2, 0, "r2", 79, True), ReportedGpuFault(3, 0, "", 79, True))
    rows = {"placed": (other,), "hosts": (Host("gpu-1"), Host("node-2"))}
    with pytest.raises(RefusedError):
        granted(desk, "gpu-1", GRANTS[0], faults=(ReportedGpuFault(2, 0, "", 79, True),))
    granted(desk, "gpu-1", GRANTS[0], rows=rows, faults=foreign[:1])
    assert [fact.replica for fact in desk.seen] == ["r"]
    assert [host.id for host in desk.one().hosts] == ["gpu-1"]
    assert desk.one().placed == ()
    assert desk.inbox.foreign == 3
    mine = Placed("r2@1", "m", "running", host="node-2", replica="r2")
    granted(desk, "gpu-2", GRANTS[1], rows={"placed": (mine,), "hosts": (Host("node-2"),)})
    assert [row.replica for row in desk.one("gpu-2").placed] == ["r2"]


def claims(**rows):
    """Rows of groups and filesystems that belong to somebody else."""
    shown = {
        "groups": (Group("gpu-1"), Group("asg-inference", desired=0, maximum=0)),
        "hosts": (Host("gpu-1", group="asg-inference"),),
        "disks": (
            Disk("filer:/models", "nfs4", read_bytes_s=1e12, size_bytes=1, free_bytes=0),
            Disk("gpu-1:/mnt/scratch", "nfs4"),
        ),
    }
    return shown | rows


def test_groups_and_filesystems_of_others_are_left_out_of_an_agents_report():
    desk = Desk(agents=GRANTS)
    granted(desk, "gpu-1", GRANTS[0], rows=claims())
    reading = desk.one()
    assert reading.groups == (Group("gpu-1"),)
    assert [host.group for host in reading.hosts] == ["gpu-1"]
    assert [disk.id for disk in desk.merged().disks] == ["gpu-1:/mnt/scratch"]
    assert desk.inbox.foreign == 2
    (note,) = desk.notes()
    assert note == claims_refused("gpu-1")


def test_groups_and_filesystems_of_its_entry_are_an_agents_own():
    grant = replace(GRANTS[0], groups=("asg-inference",), disks=("filer:/models",))
    desk = Desk(agents=(grant,))
    granted(desk, "gpu-1", grant, rows=claims())
    reading = desk.one()
    # How many hosts it wants is for its platform to say.
    assert reading.groups == (Group("gpu-1"), Group("asg-inference"))
    assert [host.group for host in reading.hosts] == ["asg-inference"]
    assert [disk.id for disk in desk.merged().disks] == ["filer:/models", "gpu-1:/mnt/scratch"]
    assert desk.inbox.foreign == 0


def test_a_shared_token_has_no_groups_and_filesystems_of_agents_with_their_own():
    grant = replace(GRANTS[0], groups=("asg-inference",), disks=("filer:/models",))
    desk = Desk(agents=(grant,))
    rows = claims(hosts=(Host("gpu-9", group="asg-inference"),))
    rows["disks"] += (Disk("other:/models", "nfs4"),)
    desk.take("gpu-9", rows=rows)
    assert desk.one("gpu-9").groups == ()
    assert [host.group for host in desk.one("gpu-9").hosts] == ["gpu-9"]
    assert [disk.id for disk in desk.merged().disks] == ["other:/models"]


def test_a_token_of_its_own_cannot_report_as_another_nor_the_shared_one_as_it():
    desk = Desk(agents=GRANTS)
    for name in ("invented", "gpu-2"):
        with pytest.raises(RefusedError, match="that of the agent 'gpu-1'") as caught:
            granted(desk, name, GRANTS[0], faults=FATAL)
        assert caught.value.status == 403
    with pytest.raises(RefusedError, match="a token of its own") as caught:
        desk.take("gpu-1", faults=FATAL)
    assert (caught.value.status, desk.seen, desk.inbox.foreign) == (403, [], 3)


def test_each_token_opens_for_its_agent_and_no_wrong_one_does():
    assert grant_of("one-" + "1" * 40, None, GRANTS) == (True, GRANTS[0])
    assert grant_of("two-" + "2" * 40, hash_key(TOKEN), GRANTS) == (True, GRANTS[1])
    assert grant_of(TOKEN, hash_key(TOKEN), GRANTS) == (True, None)
    assert grant_of(TOKEN, None, GRANTS) == (False, None)
    assert grant_of("", None, ()) == (False, None)
    assert "one-" not in repr(GRANTS)


def test_a_shared_token_is_warned_of_once(desk):
    with capture_logs() as logs:
        desk.take("gpu-1")
        desk.take("gpu-2")
        granted(Desk(agents=GRANTS), "gpu-1", GRANTS[0])
    assert [line["event"] for line in logs] == ["agents share a token"]


# --- what is refused ------------------------------------------------------------------------------


def refused(desk, name="gpu-1", body=b"{}"):
    with pytest.raises(RefusedError) as error:
        desk.inbox.take(name, body)
    return error.value


@pytest.mark.parametrize("name", ["", "a/b", "x" * 64, "-a", "a b", "é"])
def test_a_name_that_is_none_is_refused(desk, name):
    assert refused(desk, name).status == 400


def test_a_mistake_is_named_and_what_was_known_stays(desk):
    desk.take()
    error = refused(desk, body=b'{"life": "one", "at": "noon"}')
    assert (error.status, "$.at" in str(error)) == (400, True)
    assert desk.one() is not None
    assert (desk.inbox.taken, desk.inbox.refused) == (1, 1)


def test_too_many_reports_of_one_are_refused_and_others_are_not_hurt():
    desk = Desk(reports_per_s=1.0)
    for _ in range(11):
        desk.take()
    error = refused(desk, body=encode(desk.report()))
    assert (error.status, error.wait_s) == (429, 5.0)
    desk.take("gpu-2")
    desk.passes(1.5)
    desk.take()


def test_too_many_agents_are_refused():
    desk = Desk(agents_max=2)
    desk.take("a")
    desk.take("b")
    assert refused(desk, "c", encode(desk.report())).status == 503
    desk.take("a")


def test_two_agents_of_one_name_are_told_apart(desk):
    desk.take(life="one")
    desk.take(life="two")
    error = refused(desk, body=encode(desk.report(life="one")))
    assert (error.status, "--name" in str(error)) == (409, True)
    desk.take(life="two")
    assert any("another agent reports as 'gpu-1'" in note for note in desk.notes())


@pytest.mark.parametrize(
    "wrong",
    [{"silent_periods": 1}, {"leaves_after_s": 1}, {"agents_max": 0}, {"reports_per_s": 0}],
)
def test_a_config_that_cannot_be_is_refused(wrong):
    with pytest.raises(ConfigError):
        AgentsConfig(**wrong)


# --- over HTTP ------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def served(inbox, token=None, routes=None):
    routes = routes or agent_routes(inbox)
    app = Starlette(routes=routes)
    section = AdminSection(token=hash_key(ADMIN))
    app.add_middleware(Guard, access=AdminAccess(lambda: section))
    hashed = hash_key(token) if token else None
    app.add_middleware(AgentDoor, token=lambda: hashed, routes=routes)
    config = uvicorn.Config(app, port=0, log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext
    task = asyncio.create_task(server.serve())
    try:
        while not server.started:  # noqa: ASYNC110 uvicorn has no event for it
            await asyncio.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


def test_a_control_whose_config_takes_no_agents_any_more_says_so(desk):
    taking = [desk.inbox]

    async def main():
        routes = agent_routes(lambda: taking[0])
        statuses = []
        async with served(desk.inbox, TOKEN, routes) as url:
            for _ in range(2):
                body = encode(desk.report())
                answer = await fetch(url, "/agents/gpu-1", 30.0, bearer=TOKEN, body=body)
                listed = await fetch(url, "/agents", 30.0, bearer=ADMIN)
                statuses.append((answer.status, listed.status))
                taking[0] = None
        return statuses

    assert asyncio.run(main()) == [(202, 200), (404, 404)]


def test_over_http_one_agents_token_reports_as_nobody_else():
    desk = Desk(agents=GRANTS)
    routes = agent_routes(desk.inbox)
    app = Starlette(routes=routes)
    section = AdminSection(token=hash_key(ADMIN))
    app.add_middleware(Guard, access=AdminAccess(lambda: section))
    app.add_middleware(AgentDoor, token=None, routes=routes, agents=lambda: GRANTS)
    with TestClient(app, base_url="http://127.0.0.1:8001") as client:
        bearer = {"authorization": "Bearer one-" + "1" * 40}
        body = encode(desk.report(faults=FATAL))
        found = [
            client.post(f"/agents/{name}", content=body, headers=bearer).status_code
            for name in ("gpu-1", "invented", "gpu-2")
        ]
        assert client.get("/status", headers=bearer).status_code == 401
    assert found == [202, 403, 403]
    assert len(desk.seen) == 1


def post(desk, body, *, bearer=TOKEN, token=TOKEN, path="/agents/gpu-1", method="POST"):
    async def main():
        async with served(desk.inbox, token) as url:
            return await fetch(url, path, 30.0, bearer=bearer, body=body, method=method)

    return asyncio.run(main())


def test_a_report_is_taken_over_http_and_who_reports_can_be_listed(desk):
    answer = post(desk, encode(desk.report()))
    assert (answer.status, orjson.loads(answer.body)) == (202, {"taken": True})
    listed = post(desk, None, bearer=ADMIN, path="/agents", method="GET")
    assert [one["name"] for one in orjson.loads(listed.body)["agents"]] == ["gpu-1"]


@pytest.mark.parametrize(
    ("bearer", "token", "status"),
    [
        (TOKEN, TOKEN, 202),
        (ADMIN, TOKEN, 202),
        (ADMIN, None, 202),
        (TOKEN, None, 401),
        ("wrong", TOKEN, 401),
        (None, TOKEN, 401),
    ],
)
def test_the_agents_token_or_the_admins_opens(desk, bearer, token, status):
    assert post(desk, encode(desk.report()), bearer=bearer, token=token).status == status


@pytest.mark.parametrize(
    ("path", "method"),
    [("/agents", "GET"), ("/status", "GET"), ("/agents/gpu-1/x", "POST"), ("/reload", "POST")],
)
def test_the_agents_token_opens_nothing_else(desk, path, method):
    assert post(desk, None, path=path, method=method).status == 401


def test_a_report_that_is_too_large_is_refused(desk):
    answer = post(desk, b" " * (REPORT_BYTES_MAX + 1))
    assert answer.status == 413
    assert b"larger than" in answer.body


def test_garbage_is_refused_with_the_field(desk):
    assert post(desk, b"\x00\xff").status == 400
    answer = post(desk, b'{"life": 3}')
    assert (answer.status, b"$.life" in answer.body) == (400, True)


def test_whoever_is_too_fast_is_told_when_to_come_again():
    desk = Desk(reports_per_s=0.1)
    for _ in range(11):
        desk.take()
    answer = post(desk, encode(desk.report()))
    assert (answer.status, answer.headers["retry-after"]) == (429, "5")


def test_a_body_in_pieces_is_counted_too(desk):
    async def main():
        async with served(desk.inbox, TOKEN) as url:
            port = int(url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = (
                f"POST /agents/gpu-1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}"
            )
            writer.write(f"{head}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
            for _ in range(5):
                writer.write(piece)
            first = await asyncio.wait_for(reader.readline(), 30.0)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            return first

    assert b" 413 " in asyncio.run(main())
