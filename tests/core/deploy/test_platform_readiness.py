"""Which pods are drained by their platform's word: at most half, and none without a word."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.deploy.platform_readiness import PodReadiness, drained_pods


def pods(*noticed, count):
    return [
        PodReadiness(str(index), True, True, drained=False, noticed=index in noticed)
        for index in range(count)
    ]


def test_a_pod_that_is_about_to_go_is_drained_and_others_are_not():
    assert drained_pods(pods(2, count=4)) == {"2"}
    assert drained_pods(pods(count=4)) == frozenset()


def test_a_notice_for_all_leaves_half_to_serve_until_they_are_told_to_end():
    assert len(drained_pods(pods(0, 1, 2, 3, count=4))) == 2
    assert drained_pods(pods(0, count=1)) == frozenset()  # nobody else could serve


def test_who_goes_comes_before_who_is_not_ready():
    unready = [PodReadiness(name, False, True, drained=False) for name in "abc"]
    goes = PodReadiness("d", True, True, drained=False, noticed=True)
    assert drained_pods([*unready, goes]) == {"d", "a"}


ROWS = st.lists(
    st.builds(
        PodReadiness,
        pod=st.integers(0, 50).map(str),
        ready=st.sampled_from([True, False, None]),
        was_ready=st.booleans(),
        drained=st.booleans(),
        noticed=st.booleans(),
    ),
    unique_by=lambda one: one.pod,
    max_size=12,
)


@given(ROWS)
def test_never_more_than_half_nor_anybody_without_a_word_of_the_platform(rows):
    wanted = drained_pods(rows)
    assert len(wanted) <= len(rows) // 2
    by_name = {one.pod: one for one in rows}
    for name in wanted:
        one = by_name[name]
        assert one.noticed or (one.was_ready and one.ready is False)


@given(ROWS)
def test_what_is_decided_is_decided_again(rows):
    """Replicas do not take turns: a decision that was carried out is the next one, too."""
    wanted = drained_pods(rows)
    later = [
        PodReadiness(one.pod, one.ready, one.was_ready, one.pod in wanted, one.noticed)
        for one in rows
    ]
    assert drained_pods(later) == wanted
