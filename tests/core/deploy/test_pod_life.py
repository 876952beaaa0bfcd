"""The lives of a launched replica's container, read off what a platform says of its pods."""

from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.core.deploy.pod_life import (
    LifeBegan,
    LifeEnded,
    LifeLeaving,
    PodEnd,
    PodLife,
    PodSight,
    ReplicaLives,
)

RUNS = PodSight("m-1", "m-1-a", "uid-a", 1.0, running=True, address="10.0.0.1", node="n1")
EXIT = PodEnd(code=3, reason="exited with code 3")


def begun(pod=RUNS):
    lives = ReplicaLives()
    lives.begin()
    (news,) = lives.take([pod])
    assert isinstance(news, LifeBegan)
    return lives


def test_a_pod_that_runs_is_told_only_where_a_start_was_asked_for():
    lives = ReplicaLives()
    assert lives.take([RUNS]) == []
    lives.begin()
    assert lives.take([RUNS]) == [LifeBegan(PodLife("uid-a", 0), RUNS)]
    assert lives.take([RUNS]) == []


def test_a_pod_that_waits_is_no_life_yet():
    lives = ReplicaLives()
    lives.begin()
    assert lives.take([replace(RUNS, running=False, waits="no node for it")]) == []
    assert len(lives.take([RUNS])) == 1


def test_a_container_that_the_kubelet_started_again_has_ended_and_stays_unseen_until_a_start():
    lives = begun()
    again = replace(RUNS, number=1, before=EXIT)
    assert lives.take([again]) == [LifeEnded(PodLife("uid-a", 0), EXIT, asked=False)]
    assert lives.take([again]) == []
    lives.begin()
    assert lives.take([again]) == [LifeBegan(PodLife("uid-a", 1), again)]


def test_one_that_ended_before_anybody_looked_began_and_ended():
    lives = ReplicaLives()
    lives.begin()
    over = replace(RUNS, running=False, ended=EXIT)
    life = PodLife("uid-a", 0)
    assert lives.take([over]) == [LifeBegan(life, over), LifeEnded(life, EXIT, asked=False)]
    lives.begin()
    assert lives.take([over]) == [], "the same end is no new life"
    assert lives.take([replace(over, backs_off=True)]) == []


def test_a_pod_that_is_gone_has_ended_and_says_so():
    lives = begun()
    (news,) = lives.take([])
    assert isinstance(news, LifeEnded)
    assert (news.end.code, news.asked) == (None, False)
    assert "deleted" in news.end.reason


def test_a_pod_that_others_delete_leaves_first_and_its_end_was_asked_for():
    lives = begun()
    told = replace(RUNS, leaving="its pod is being deleted: evicted")
    assert lives.take([told]) == [LifeLeaving(PodLife("uid-a", 0), told.leaving)]
    assert lives.take([told]) == []
    (news,) = lives.take([replace(told, running=False, ended=PodEnd(signal=15))])
    assert isinstance(news, LifeEnded)
    assert news.asked


def test_a_pod_that_control_stops_is_not_told_to_leave():
    lives = begun()
    lives.end()
    told = replace(RUNS, leaving="its pod is being deleted")
    assert lives.take([told]) == []
    (news,) = lives.take([])
    assert isinstance(news, LifeEnded)
    assert news.asked


def test_a_leaving_pod_is_no_start_and_the_next_one_is():
    lives = ReplicaLives()
    lives.begin()
    leaving = replace(RUNS, leaving="its pod is being deleted")
    assert lives.take([leaving]) == []
    other = replace(RUNS, uid="uid-b", name="m-1-b", created_at=2.0)
    assert lives.take([leaving, other]) == [LifeBegan(PodLife("uid-b", 0), other)]


def test_a_life_whose_end_was_told_by_an_earlier_control_does_not_begin_again():
    lives = ReplicaLives(last=PodLife("uid-a", 0))
    lives.begin()
    assert lives.take([replace(RUNS, running=False, ended=EXIT)]) == []
    assert len(lives.take([replace(RUNS, number=1, before=EXIT)])) == 1


@pytest.mark.parametrize("more", [2, 5])
def test_ends_that_nobody_saw_are_one_end(more):
    lives = begun()
    (news,) = lives.take([replace(RUNS, number=more, before=EXIT)])
    assert isinstance(news, LifeEnded)


def test_an_end_that_was_counted_as_a_restart_already_is_told_once():
    lives = begun()
    waits = replace(RUNS, number=1, running=False, ended=EXIT, backs_off=True)
    assert lives.take([waits]) == [LifeEnded(PodLife("uid-a", 0), EXIT, asked=False)]
    lives.begin()
    assert lives.take([waits]) == []


class Lives(RuleBasedStateMachine):
    """A replica with a kubelet and a controller that do what they like, seen now and then."""

    def __init__(self):
        super().__init__()
        self.lives = ReplicaLives()
        self.pods = {}
        self.made = 0
        self.open = None  # the life that was told to begin and not to end
        self.told = []

    @rule()
    def make_pod(self):
        self.made += 1
        uid = f"uid-{self.made}"
        self.pods[uid] = PodSight("m-1", uid, uid, float(self.made), running=True, address="x")

    def any_pod(self):
        return next(iter(self.pods))

    @precondition(lambda self: self.pods)
    @rule(restarts=st.booleans())
    def end_container(self, restarts):
        pod = self.pods[self.any_pod()]
        if not pod.running:
            return
        if restarts:
            self.pods[pod.uid] = replace(pod, number=pod.number + 1, before=EXIT)
        else:
            self.pods[pod.uid] = replace(pod, running=False, ended=EXIT)

    @precondition(lambda self: self.pods)
    @rule()
    def tell_to_end(self):
        uid = self.any_pod()
        self.pods[uid] = replace(self.pods[uid], leaving="its pod is being deleted")

    @precondition(lambda self: self.pods)
    @rule()
    def remove(self):
        del self.pods[self.any_pod()]

    @rule()
    def start(self):
        self.lives.begin()

    @rule()
    def stop(self):
        self.lives.end()

    @rule()
    def look(self):
        for news in self.lives.take(self.pods.values()):
            if isinstance(news, LifeBegan):
                assert self.open is None, "at most one runs"
                assert news.life not in self.told, "no life begins twice"
                assert not news.pod.leaving
                self.open = news.life
                self.told.append(news.life)
            else:
                assert news.life == self.open, "what leaves or ends has begun"
                if isinstance(news, LifeEnded):
                    self.open = None

    @invariant()
    def what_runs_is_what_was_told(self):
        assert self.lives.running == self.open

    def teardown(self):
        self.pods = {}
        self.look()
        assert self.open is None, "each life that began has ended"


TestLives = Lives.TestCase
