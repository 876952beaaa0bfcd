"""A replica that reads a huge prompt is busy; one that hangs beside such a prompt is found."""

from random import Random

import pytest

from holdfast.core.canary import CanaryConfig, CanaryVerdict
from holdfast.core.engine_work import EnginePage, EngineWork, PromptReading, WorkWatch
from holdfast.core.health.fleet import Fleet
from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.messages import (
    CallBackCanary,
    CanaryResult,
    EngineLoads,
    HurryCanary,
    Joined,
    LoadReported,
    Move,
    Notice,
    RunCanary,
    Seen,
    Stop,
    Summary,
    Tally,
    Tick,
)
from holdfast.core.types import MILLISECOND, SECOND, Replica, State

STEP = 200 * MILLISECOND
START = 1_000 * SECOND
LONG = 100_000  # tokens of the prompt


class Story:
    """Two replicas behind one gateway; ``r1`` gets one request and answers nobody for a while.

    Canaries are timed out and read in the light of users as control's prober does it.
    """

    def __init__(self, *, slots: int = 0, seed: int = 0) -> None:
        self.fleet = Fleet(FleetConfig(), lambda name: Random(f"{name}/{seed}"))
        self.now = START
        self.asked: dict[str, tuple[int, RunCanary]] = {}  # until when, by replica
        self.stuck_since: int | None = None
        self.unread = 0
        self.explained_s: float | None = None  # as gateways of today say it
        self.idle = False  # it is stuck, and no user is there
        self.behind = 0  # short requests of others that wait behind the prompt
        self.page = None  # from seconds since the prompt came to EnginePage
        self.told: list = []
        for name in ("r1", "r2"):
            self.tell(Joined(Replica(name, "m", slots=slots), True, CanaryConfig()))
        self.play(40)

    def tell(self, event) -> None:
        for action in self.fleet.handle(event, self.now):
            self.told.append(action)
            if isinstance(action, RunCanary):
                self.asked[action.replica_id] = (self.now + action.deadline, action)
            elif isinstance(action, HurryCanary) and action.replica_id in self.asked:
                asked = self.asked[action.replica_id][1]
                self.asked[action.replica_id] = (self.now + action.deadline, asked)
            elif isinstance(action, CallBackCanary):
                self.asked.pop(action.replica_id, None)

    def begin(self, unread: int, page=None) -> None:
        """A user's request comes to ``r1``, and from now on nothing comes out of it."""
        self.stuck_since, self.unread, self.page = self.now, unread, page
        self.told.clear()

    def end(self) -> None:
        """The first token comes."""
        self.stuck_since = None
        self._tally(Tally("m", "r1", 1, 0, 0, 0, LONG))

    def play(self, seconds: float) -> None:
        until = self.now + round(seconds * SECOND)
        while self.now < until:
            self.now += STEP
            if self.now % SECOND == 0:
                self._each_second()
            self.tell(Tick())
            for name, (due, action) in list(self.asked.items()):
                self._canary(name, due, action)

    def _each_second(self) -> None:
        if self.stuck_since is None or self.idle:
            return
        long = {"unread": self.unread, "explained_s": self.explained_s}
        self._tally(Tally("m", "r1", 0, 0, 0, 1 + self.behind, 0, **long))
        if self.page is not None:
            page = self.page((self.now - self.stuck_since) / SECOND)
            waiting = int("r1" in self.asked)  # a canary waits behind the prompt
            row = ("m", "r1", None, waiting, page.kv_used)
            work = (page.running, page.generated, page.steps)
            self.tell(EngineLoads((LoadReported(*row, *work),)))

    def _tally(self, tally: Tally) -> None:
        self.tell(Seen((Summary((tally,)),), "g"))

    def _canary(self, name: str, due: int, action: RunCanary) -> None:
        began = due - action.deadline
        life = action.incarnation
        if name == "r1" and self.stuck_since is not None:
            if self.now < due:
                return
            del self.asked[name]
            beside = self.fleet.users_beside(name, began, self.now)
            told = {"running": beside.running, "progress": beside.progress}
            timeout = CanaryVerdict.TIMEOUT
            self.tell(CanaryResult(name, timeout, self.now - began, incarnation=life, **told))
        else:
            del self.asked[name]
            passed = CanaryVerdict.PASS
            self.tell(CanaryResult(name, passed, 50 * MILLISECOND, incarnation=life))

    @property
    def state(self) -> State:
        return self.fleet.members["r1"].health.state

    def harm(self) -> list:
        """What was done or said against ``r1`` since the request came."""
        kinds = (Stop, Move)
        return [one for one in self.told if isinstance(one, kinds)] + [
            one.what for one in self.told if isinstance(one, Notice) and one.replica_id == "r1"
        ]


def vllm(seconds: float) -> EnginePage:
    """Chunks of a prompt fill the cache every other second; no token comes out."""
    return EnginePage(1, kv_used=(seconds // 2) * 0.004, generated=500)


def llamacpp(seconds: float) -> EnginePage:
    """No word on tokens; each batch of the prompt is one more step."""
    return EnginePage(1, steps=300 + int(seconds // 3))


def frozen(_seconds: float) -> EnginePage:
    """The page of an engine that hangs: it answers, and shows the same for ever."""
    return EnginePage(1, kv_used=0.3, generated=500, steps=40)


def silent(_seconds: float) -> EnginePage:
    """A page without any figure of work."""
    return EnginePage(1)


# --- must not fire --------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [None, vllm, llamacpp, silent])
@pytest.mark.parametrize("slots", [0, 1, 4])
def test_a_prompt_of_100_000_tokens_makes_nobody_ill(page, slots):
    """Sixty seconds without a token, canaries waiting behind it, with and without a page."""
    story = Story(slots=slots)
    story.begin(LONG, page)
    story.play(60)
    assert (story.state, story.harm()) == (State.READY, [])
    story.end()
    story.play(30)
    assert (story.state, story.harm()) == (State.READY, [])


@pytest.mark.parametrize("page", [None, vllm, llamacpp, silent])
def test_a_prompt_of_100_000_tokens_of_one_tenant_makes_nobody_ill_though_others_wait(page):
    story = Story(slots=4)
    story.explained_s, story.behind = 100.0, 3
    story.begin(LONG, page)
    story.play(80)
    assert (story.state, story.harm()) == (State.READY, [])
    story.end()
    story.play(30)
    assert (story.state, story.harm()) == (State.READY, [])


def test_a_slow_engine_whose_pace_is_known_has_the_time_that_it_takes():
    """100,000 tokens at 500 a second, without a page; a millisecond a token is half of that."""
    story = Story()
    story.explained_s = 400.0
    story.begin(LONG)
    story.play(200)
    assert (story.state, story.harm()) == (State.READY, [])


def test_a_second_prompt_explains_what_follows_the_first_ones_token():
    """The first is read for 60 s and answered; then the second, of another size, for 80 s."""
    story = Story()
    story.explained_s = 70.0
    story.begin(70_000)
    story.play(60)
    story.explained_s, story.unread = 100.0, 170_000
    story.play(5)
    story._tally(Tally("m", "r1", 0, 0, 0, 1, 70_000, unread=LONG, explained_s=100.0))
    story.unread = LONG
    story.play(80)
    assert (story.state, story.harm()) == (State.READY, [])


def test_a_page_that_shows_steps_needs_no_word_of_gateways():
    """Users who come by another way, and gateways of an earlier version, tell of no prompt."""
    story = Story(slots=1)
    story.begin(0, llamacpp)
    story.play(60)
    assert (story.state, story.harm()) == (State.READY, [])


@pytest.mark.parametrize("page", [vllm, llamacpp])
def test_a_page_that_shows_work_excuses_for_longer_than_the_prompt_alone(page):
    story = Story()
    story.begin(10_000, page)  # ten seconds by its length
    story.play(60)
    assert (story.state, story.harm()) == (State.READY, [])


# --- must fire ------------------------------------------------------------------------------------


def found_after(story, limit_s) -> float:
    for passed in range(1, 5 * limit_s):
        story.play(0.2)
        if story.state is State.QUARANTINED:
            return passed / 5
    raise AssertionError(f"still {story.state} after {limit_s} s")


@pytest.mark.parametrize("page", [None, frozen, silent])
def test_a_hang_beside_an_ordinary_prompt_is_found_as_soon_as_ever(page):
    """Twenty seconds where a page says that requests wait: canaries give way to users once."""
    story = Story()
    story.begin(0, page)
    assert found_after(story, 60) <= (20 if page else 15)


def test_a_frozen_page_ends_the_excuse_of_a_long_prompt():
    story = Story()
    story.begin(LONG, frozen)
    assert 30 <= found_after(story, 120) <= 45


def test_without_a_page_a_hang_beside_a_long_prompt_is_found_when_the_prompt_explains_no_more():
    story = Story()
    story.begin(LONG)
    assert 100 <= found_after(story, 200) <= 120


@pytest.mark.parametrize(("explained_s", "within_s"), [(100.0, 120), (50.0, 70), (0.0, 20)])
def test_a_hang_beside_a_tenants_many_long_prompts_is_found_when_its_largest_explains_no_more(
    explained_s, within_s
):
    """A million tokens in ten prompts and ever more of them; 0: the tenant is not believed."""
    story = Story(slots=4)
    story.explained_s, story.behind = explained_s, 9
    story.begin(10 * LONG)
    for _ in range(within_s):
        story.play(1)
        story.unread += LONG
        if story.state is State.QUARANTINED:
            return
    raise AssertionError(f"still {story.state} after {within_s} s")


@pytest.mark.parametrize("page", [None, frozen, silent])
def test_prompts_that_come_after_the_silence_began_excuse_nothing(page):
    """An engine hangs beside a short request; from the fourth second on long prompts come."""
    story = Story()
    story.begin(0, page)
    story.play(4)
    story.unread, story.explained_s = LONG, 100.0
    assert found_after(story, 60) <= 20


def test_a_long_prompt_for_an_idle_replica_that_did_not_answer_its_canary_excuses_nothing():
    story = Story()
    story.begin(0)
    story.stuck_since, story.idle = story.now, True
    story.play(7)
    member = story.fleet.members["r1"]
    assert member.silent_from
    told = Tally("m", "r1", 0, 0, 0, 1, 0, unread=LONG, explained_s=100.0)
    member.users("g", told, story.now)
    assert not member.may_read_prompts(story.now)


def test_the_same_tenant_behind_many_gateways_explains_no_more():
    reading = PromptReading()
    for number in range(8):
        reading.told(f"g{number}", LONG, 100 * SECOND)
    assert reading.explains(99 * SECOND)
    assert not reading.explains(101 * SECOND)


def test_a_gateway_that_does_not_weigh_is_believed_by_the_length_of_its_prompts():
    reading = PromptReading()
    reading.told("g", 20_000)
    assert reading.explains(19 * SECOND)
    assert not reading.explains(21 * SECOND)


def test_a_page_that_reads_is_told_and_one_that_emits_tokens_or_stands_is_not():
    reading = PromptReading()
    shown = []
    for steps, generated in ((1, 5), (2, 5), (3, 6), (3, 6), (4, 6)):
        reading.look(EnginePage(1, steps=steps, generated=generated), START)
        shown.append(reading.reads)
    assert shown == [False, True, False, False, True]


def test_an_engine_that_stops_in_the_middle_of_a_prompt_is_found():
    story = Story()
    story.begin(LONG, lambda seconds: vllm(min(seconds, 20)))
    assert 50 <= found_after(story, 120) <= 65


def test_no_prompt_explains_more_than_five_minutes():
    story = Story()
    story.begin(10_000_000)
    assert 300 <= found_after(story, 400) <= 320


def test_a_gateway_that_is_gone_excuses_nobody():
    story = Story()
    member = story.fleet.members["r1"]
    member.users("g", Tally("m", "r1", 0, 0, 0, 1, 0, unread=LONG), story.now)
    assert member.may_read_prompts(story.now)
    member.users("g", Tally("m", "r1", 0, 0, 0, 0, 0), story.now)
    assert not member.may_read_prompts(story.now)


def test_an_idle_hour_before_the_prompt_takes_nothing_from_its_excuse():
    reading = PromptReading()
    for second in range(3_600):
        reading.look(EnginePage(0, 0.0, generated=5), second * SECOND)
    reading.told("g", LONG)
    for second in range(3_600, 3_625):
        reading.look(EnginePage(1, 0.1, generated=5), second * SECOND)
    assert reading.explains(25 * SECOND)
    for second in range(3_625, 3_635):
        reading.look(EnginePage(1, 0.1, generated=5), second * SECOND)
    assert not reading.explains(35 * SECOND)


# --- what a page shows ----------------------------------------------------------------------------


def works(*pages: EnginePage) -> list[EngineWork]:
    watch = WorkWatch()
    return [watch.look(page) for page in pages]


TOKENS, STEPS, FILLING = EngineWork.TOKENS, EngineWork.STEPS, EngineWork.FILLING
NOTHING, UNKNOWN = EngineWork.NOTHING, EngineWork.UNKNOWN


def test_tokens_that_come_out_are_tokens_whatever_the_cache_does():
    filling = [EnginePage(2, 0.1 + n / 100, generated=10 * n) for n in range(5)]
    assert works(*filling) == [UNKNOWN, TOKENS, TOKENS, TOKENS, TOKENS]


def test_a_cache_that_fills_beside_the_same_requests_is_a_prompt_from_the_third_rise_on():
    used = (0.1, 0.2, 0.2, 0.3, 0.4, 0.4, 0.5)
    pages = [EnginePage(1, one, generated=5) for one in used]
    assert works(*pages) == [UNKNOWN, UNKNOWN, NOTHING, UNKNOWN, FILLING, NOTHING, FILLING]


def test_requests_that_come_and_go_at_an_engine_that_hangs_are_no_work():
    counts = ((1, 0.1), (2, 0.2), (3, 0.3), (3, 0.25), (3, 0.3), (4, 0.35), (4, 0.4), (4, 0.3))
    pages = [EnginePage(running, used, generated=5) for running, used in counts]
    assert set(works(*pages)) == {UNKNOWN, NOTHING}


def test_steps_without_tokens_are_steps_and_a_counter_that_begins_anew_is_work():
    pages = [EnginePage(1, steps=9), EnginePage(1, steps=10), EnginePage(1, steps=2)]
    assert works(*pages) == [UNKNOWN, STEPS, STEPS]
    idle = [EnginePage(0, steps=9), EnginePage(0, steps=10)]
    assert works(*idle) == [UNKNOWN, NOTHING]


def test_what_an_engine_does_not_tell_neither_accuses_nor_excuses():
    counted = EnginePage(1, steps=9)
    pages = (counted, EnginePage(), EnginePage(1), counted, EnginePage(1, steps=10))
    assert works(*pages) == [UNKNOWN, UNKNOWN, UNKNOWN, NOTHING, STEPS]
    assert set(works(*[EnginePage(1, 0.5)] * 5)) == {UNKNOWN}
