"""What every store of the leadership promises: one holder at a time, terms that only rise."""

import asyncio
import os
import sqlite3
import uuid

import pytest

from fakekube import FakeKube
from holdfast.core.health.leadership import LeaseAnswer
from holdfast.ports import LeadershipStoreError
from holdfast.sources.kubernetes.api import KubernetesApi
from holdfast.sources.kubernetes.config import KubernetesConfig
from holdfast.sources.kubernetes.leadership import KubernetesLeadership
from holdfast.storage.leadership.postgres import PostgresLeadership
from holdfast.storage.leadership.sqlite import SqliteLeadership
from holdfast.testing.store_servers import PostgresServer

LEASE_S = 6.0
SERVERS = ["postgres"] if os.environ.get("HOLDFAST_STORES") else []


class Clock:
    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now

    async def passes(self, seconds):
        self.now += seconds


class RealClock:
    async def passes(self, seconds):
        await asyncio.sleep(seconds)


class Stores:
    """Two stores of one lease, as two machines open them, and the time that they go by."""

    def __init__(self, open_one, clock, lease_s=LEASE_S):
        self.first, self.second = open_one(), open_one()
        self.clock = clock
        self.lease_s = lease_s


@pytest.fixture(scope="module")
def database():
    """A real PostgreSQL server."""
    with PostgresServer() as server:
        yield server.url


@pytest.fixture(params=["sqlite", "kubernetes", *SERVERS])
def play(request, tmp_path):
    """Run a scene with two stores of one lease."""

    def run(scene):
        async def main(stores):
            try:
                await scene(stores)
            finally:
                await stores.first.close()
                await stores.second.close()

        clock = Clock()
        if request.param == "sqlite":
            path = tmp_path / "lease.sqlite"
            asyncio.run(main(Stores(lambda: SqliteLeadership(path, clock), clock)))
        elif request.param == "kubernetes":
            with FakeKube() as kube:
                config = KubernetesConfig(api_url=kube.url)

                def open_one():
                    return KubernetesLeadership(KubernetesApi(config), "ops", "fleet", clock)

                asyncio.run(main(Stores(open_one, clock)))
        else:
            url, name = request.getfixturevalue("database"), uuid.uuid4().hex
            stores = Stores(lambda: PostgresLeadership(url, name), RealClock(), 1.0)
            asyncio.run(main(stores))

    return run


def test_the_first_gets_it_and_keeps_it_by_renewing(play):
    async def scene(stores):
        lasts = stores.lease_s
        assert await stores.first.claim("a", lasts) == LeaseAnswer("a", 1, held=True)
        for _ in range(3):
            assert await stores.second.claim("b", lasts) == LeaseAnswer("a", 1, held=False)
            await stores.clock.passes(lasts / 2)
            assert await stores.first.claim("a", lasts) == LeaseAnswer("a", 1, held=True)

    play(scene)


def test_after_its_end_another_one_gets_it_in_a_new_term(play):
    async def scene(stores):
        lasts = stores.lease_s
        await stores.first.claim("a", lasts)
        await stores.second.claim("b", lasts)  # from now on it has seen the record
        await stores.clock.passes(lasts * 1.1)
        assert await stores.second.claim("b", lasts) == LeaseAnswer("b", 2, held=True)
        assert await stores.first.claim("a", lasts) == LeaseAnswer("b", 2, held=False)

    play(scene)


def test_a_lease_that_was_given_back_is_free_at_once(play):
    async def scene(stores):
        lasts = stores.lease_s
        await stores.first.claim("a", lasts)
        await stores.second.release("b")  # not its own: nothing happens
        assert not (await stores.second.claim("b", lasts)).held
        await stores.first.release("a")
        assert await stores.second.claim("b", lasts) == LeaseAnswer("b", 2, held=True)

    play(scene)


def test_a_process_that_was_started_anew_is_another_holder(play):
    async def scene(stores):
        lasts = stores.lease_s
        await stores.first.claim("a:1", lasts)
        assert await stores.first.claim("a:2", lasts) == LeaseAnswer("a:1", 1, held=False)

    play(scene)


def test_of_many_that_ask_at_once_one_gets_it(play):
    async def scene(stores):
        lasts = stores.lease_s
        await stores.first.claim("z", lasts)
        await stores.second.claim("y", lasts)
        await stores.clock.passes(lasts * 1.1)
        asked = [
            (stores.first if number % 2 else stores.second).claim(f"n{number}", lasts)
            for number in range(12)
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        held = [one for one in answers if isinstance(one, LeaseAnswer) and one.held]
        lost = [one for one in answers if isinstance(one, Exception)]
        assert all(isinstance(one, LeadershipStoreError) for one in lost), lost
        assert len(held) <= 1  # of Kubernetes perhaps none yet: each store looks for itself
        assert all(one.term == 2 for one in held)

    play(scene)


def test_a_file_that_is_no_database_is_said_so(tmp_path):
    path = tmp_path / "lease.sqlite"
    path.write_bytes(b"no database at all, but long enough to be looked at as one" * 20)
    with pytest.raises(LeadershipStoreError, match=r"lease\.sqlite"):
        asyncio.run(SqliteLeadership(path).claim("a", LEASE_S))


def test_after_a_restart_of_the_machine_an_old_lease_binds_nobody(tmp_path):
    clock = Clock()
    store = SqliteLeadership(tmp_path / "lease.sqlite", clock)
    asyncio.run(store.claim("a", LEASE_S))
    clock.now = 3.0  # it began anew
    assert asyncio.run(store.claim("b", LEASE_S)) == LeaseAnswer("b", 2, held=True)


def test_a_server_that_refuses_leaves_the_claim_unknown():
    with FakeKube() as kube:
        api = KubernetesApi(KubernetesConfig(api_url=kube.url))
        store = KubernetesLeadership(api, "ops", "fleet")

        async def scene():
            kube.refuse("leases", 403)
            with pytest.raises(LeadershipStoreError, match="403"):
                await store.claim("a", LEASE_S)
            kube.refuse("leases", 0)
            assert (await store.claim("a", LEASE_S)).held
            await store.close()

        asyncio.run(scene())


def test_the_file_is_readable_by_its_owner_alone(tmp_path):
    path = tmp_path / "lease.sqlite"
    asyncio.run(SqliteLeadership(path).claim("a", LEASE_S))
    assert path.stat().st_mode & 0o777 == 0o600
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT holder, term FROM leadership").fetchall() == [("a", 1)]
