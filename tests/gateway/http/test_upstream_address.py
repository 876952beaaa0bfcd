import asyncio

import pytest
import uvloop

from holdfast.core.types import ConfigError
from holdfast.gateway.http.upstream_address import ADDRESSES_MAX, Addresses, Endpoint


def test_an_endpoint_is_parsed_once():
    endpoint = Endpoint("http://10.0.0.7:8000")
    assert (endpoint.host, endpoint.port, endpoint.tls) == ("10.0.0.7", 8000, False)
    assert (endpoint.base, endpoint.authority, endpoint.literal) == (b"", b"10.0.0.7:8000", True)


@pytest.mark.parametrize(
    ("url", "port", "base", "authority"),
    [
        ("http://engine", 80, b"", b"engine"),
        ("HTTPS://Engine.Example/", 443, b"", b"engine.example"),
        ("https://engine:443/llm/", 443, b"/llm", b"engine"),
        ("http://engine:80/a/b", 80, b"/a/b", b"engine"),
        ("https://engine:80", 80, b"", b"engine:80"),
        ("http://[::1]:9", 9, b"", b"[::1]:9"),
    ],
)
def test_what_follows_from_a_url(url, port, base, authority):
    endpoint = Endpoint(url)
    assert (endpoint.port, endpoint.base, endpoint.authority) == (port, base, authority)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "not visible ASCII"),
        ("http://a b", "not visible ASCII"),
        ("http://a\r\nx: y", "not visible ASCII"),
        ("http://größe", "not visible ASCII"),
        ("engine:8000", "does not begin with http"),
        ("ftp://engine", "does not begin with http"),
        ("unix:///run/engine", "does not begin with http"),
        ("http://user:hunter2@engine", "has user information"),
        ("http://@engine", "has user information"),
        ("http://engine/?key=hunter2", "has a query or a fragment"),
        ("http://engine#hunter2", "has a query or a fragment"),
        ("http://engine?", "has a query or a fragment"),
        ("http://engine:0", "has port 0"),
        ("http://engine:65536", "has a bad host or port"),
        ("http://engine:x", "has a bad host or port"),
        ("http://[::1", "has a bad host or port"),
        ("http://", "has a bad host"),
        ("http://:8000", "has a bad host"),
        ("http://a..b", "has a bad host"),
        ("http://a,b", "has a bad host"),
        ("http://" + "a" * 64, "has a bad host"),
        ("http://[fe80::1%25eth0]", "with a zone"),
    ],
)
def test_an_endpoint_that_cannot_work_is_refused_without_repeating_it(url, problem):
    with pytest.raises(ConfigError) as caught:
        Endpoint(url)
    assert caught.value.field == "endpoint"
    assert problem in caught.value.problem
    assert caught.value.fix
    assert "hunter2" not in str(caught.value)


class Resolver:
    """Stands in for the loop's resolver; ``hangs`` until told otherwise."""

    def __init__(self, loop):
        self.create_task = loop.create_task
        self.answer = []
        self.fails = False
        self.hangs = False
        self.asked = 0

    async def getaddrinfo(self, host, port, *, type):  # noqa: A002
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails:
            raise OSError(-2, "Name or service not known")
        return [(2, type, 6, "", (address, port)) for address in self.answer]


def with_resolver(test):
    async def main():
        resolver = Resolver(asyncio.get_running_loop())
        addresses = Addresses(Endpoint("http://engine:8000"), resolver, 0.05)
        try:
            await asyncio.wait_for(test(resolver, addresses), 10)
        finally:
            addresses.close()

    uvloop.run(main())


def test_a_literal_address_is_not_looked_up():
    async def main():
        resolver = Resolver(asyncio.get_running_loop())
        addresses = Addresses(Endpoint("http://10.0.0.7"), resolver, 1.0)
        assert await addresses.current() == ("10.0.0.7",)
        assert resolver.asked == 0

    uvloop.run(main())


def test_the_last_addresses_are_used_when_the_resolver_fails():
    async def test(resolver, addresses):
        resolver.answer = ["10.0.0.1", "10.0.0.2", "10.0.0.1"]
        assert await addresses.current() == ("10.0.0.1", "10.0.0.2")
        resolver.fails = True
        assert await addresses.current() == ("10.0.0.1", "10.0.0.2")
        assert addresses.lookups_failed == 1
        resolver.fails = False
        resolver.answer = ["10.0.0.3"]
        assert await addresses.current() == ("10.0.0.3",)

    with_resolver(test)


def test_a_name_that_was_never_found_has_no_address():
    async def test(resolver, addresses):
        resolver.fails = True
        assert await addresses.current() == ()

    with_resolver(test)


def test_a_resolver_that_hangs_is_asked_once_and_not_waited_for():
    async def test(resolver, addresses):
        resolver.answer = ["10.0.0.1"]
        await addresses.current()
        resolver.hangs = True
        found = await asyncio.gather(*(addresses.current() for _ in range(5)))
        assert found == [("10.0.0.1",)] * 5
        assert resolver.asked == 2

    with_resolver(test)


def test_the_address_that_answered_comes_first_and_the_one_that_did_not_last():
    async def test(resolver, addresses):
        resolver.answer = ["a", "b", "c"]
        await addresses.current()
        addresses.prefer("b")
        assert await addresses.current() == ("b", "a", "c")
        addresses.demote("b")
        assert await addresses.current() == ("a", "c", "b")
        addresses.demote("unknown")
        assert await addresses.current() == ("a", "c", "b")

    with_resolver(test)


def test_the_number_of_addresses_is_bounded():
    async def test(resolver, addresses):
        resolver.answer = [f"10.0.0.{number}" for number in range(50)]
        assert len(await addresses.current()) == ADDRESSES_MAX
        addresses.prefer("10.0.0.99")
        assert (await addresses.current())[0] == "10.0.0.0"
        resolver.fails = True
        addresses.prefer("10.0.0.99")
        assert len(await addresses.current()) == ADDRESSES_MAX

    with_resolver(test)
