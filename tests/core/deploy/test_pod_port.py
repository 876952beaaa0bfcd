"""Which port of a pod is its engine's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.deploy.pod_port import PORT_MAX, PodPort, checked_port, port_of
from holdfast.core.types import ConfigError

PORTS = (("metrics", 9400), ("http", 8001), ("http", 8002), ("", 7))


def test_the_pod_s_word_outranks_the_rule_and_a_name_is_looked_up():
    assert port_of("", 8000, PORTS) == PodPort(8000)
    assert port_of("", "http", PORTS) == PodPort(8001)  # the first of that name
    assert port_of("9000", "http", PORTS) == PodPort(9000)
    assert port_of("metrics", 8000, PORTS) == PodPort(9400)


@pytest.mark.parametrize(("said", "usual"), [("web", 8000), ("", "web"), ("0", 8000), ("a b", 1)])
def test_what_a_pod_does_not_have_is_a_problem_and_never_another_port(said, usual):
    found = port_of(said, usual, PORTS)
    assert found.number is None
    assert found.problem


@pytest.mark.parametrize("port", [1, 80, PORT_MAX, "http", "h2c", "a", "8080-tcp", "a" * 15])
def test_numbers_and_names_of_kubernetes_are_ports(port):
    assert checked_port(port) == port


def test_a_number_in_quotes_is_a_number():
    assert checked_port("8000") == 8000


@pytest.mark.parametrize(
    "port", [0, -1, PORT_MAX + 1, "", "0", "70000", "Http", "-a", "a-", "a--b", "a" * 16, "a_b"]
)
def test_what_is_neither_is_refused_with_the_fix(port):
    with pytest.raises(ConfigError, match=r"port: is .*; use a number from 1 to 65535"):
        checked_port(port)


@given(said=st.text(max_size=20), usual=st.one_of(st.integers(1, PORT_MAX), st.just("http")))
def test_whatever_a_pod_says_gives_a_port_or_a_problem(said, usual):
    found = port_of(said, usual, PORTS)
    assert (found.number is None) == bool(found.problem)
    assert found.number is None or 1 <= found.number <= PORT_MAX
