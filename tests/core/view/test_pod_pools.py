"""Pools of pods that a platform names: who belongs to one, and what is said where none fits."""

import pytest

from holdfast.core.view.pod_pools import PodPool, PodPools, choose_pool, pod_of_key, pool_keys

LLAMA = PodPool("a/llama", (("app", "llama"),), (8000,))


@pytest.mark.parametrize(
    ("pod", "labels", "belongs"),
    [
        ("a/p", (("app", "llama"), ("x", "y")), True),
        ("b/p", (("app", "llama"),), False),  # pools are of one namespace
        ("a/p", (("app", "qwen"),), False),
        ("a/p", (), False),
    ],
)
def test_a_pod_of_the_namespace_with_all_labels_belongs(pod, labels, belongs):
    assert LLAMA.has(pod, labels) is belongs


def test_all_labels_are_needed_and_none_selects_nobody():
    both = PodPool("a/x", (("app", "llama"), ("tier", "gold")), (8000,))
    assert not both.has("a/p", (("app", "llama"),))
    assert both.has("a/p", (("tier", "gold"), ("app", "llama")))
    assert not PodPool("a/x", (), (8000,)).has("a/p", (("app", "llama"),))


def test_a_pool_is_found_by_its_name_in_one_namespace():
    pools = PodPools((LLAMA,), known=True)
    assert choose_pool(pools, "llama").pool is LLAMA
    assert choose_pool(pools, "llama", "a").pool is LLAMA
    missing = choose_pool(pools, "llama", "b")
    assert missing.pool is None
    assert missing.problem == "there is no inference pool b/llama (there are a/llama)"
    nothing = choose_pool(PodPools(known=True), "llama")
    assert nothing.problem == "there is no inference pool llama (there is none at all)"


def test_a_name_of_two_namespaces_is_not_guessed_at():
    pools = PodPools((LLAMA, PodPool("b/llama", LLAMA.labels, (8000,))), known=True)
    choice = choose_pool(pools, "llama")
    assert choice.pool is None
    assert "is in the namespaces a, b: name one as discover.namespace" in choice.problem
    assert choose_pool(pools, "llama", "b").pool.id == "b/llama"


def test_what_is_not_listed_yet_is_no_problem_and_what_is_refused_is():
    assert choose_pool(PodPools(), "llama").problem == ""
    assert choose_pool(PodPools(problem="403 Forbidden"), "llama").problem == (
        "inference pools cannot be read: 403 Forbidden"
    )


def test_a_pool_that_cannot_be_called_says_why():
    odd = PodPool("a/odd", LLAMA.labels, (8000,), "its appProtocol is kubernetes.io/h2c")
    choice = choose_pool(PodPools((odd,), known=True), "odd")
    assert choice.pool is None
    assert choice.problem == "inference pool a/odd: its appProtocol is kubernetes.io/h2c"


def test_each_port_has_a_key_and_the_lowest_is_the_pod_s_own():
    assert list(pool_keys("a/p", [8001, 8000, 8001])) == [("a/p", 8000), ("a/p:8001", 8001)]
    assert list(pool_keys("a/p", [9000])) == [("a/p", 9000)]
    assert {pod_of_key(key) for key, _ in pool_keys("a/p", [1, 2, 3])} == {"a/p"}


def test_it_is_described_for_people():
    assert LLAMA.describe() == "a/llama: pods with app=llama at port 8000"
    two = PodPool("a/x", (("app", "x"), ("t", "u")), (8000, 8001))
    assert two.describe() == "a/x: pods with app=x,t=u at ports 8000, 8001"
