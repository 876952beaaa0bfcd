"""How fast prompts are read: learned per token, from healthy replicas, patient until then."""

import pytest

from holdfast.core.request.deadlines import DeadlineConfig, Deadlines
from holdfast.core.request.prompts.reading_pace import PACED_TOKENS, ReadingPace
from holdfast.core.types import MILLISECOND, SECOND, Request, nanos

NOW = 1_000 * SECOND


def taught(per_token_ms: float, samples: int = 200, tokens: int = 10_000) -> ReadingPace:
    pace = ReadingPace(0.999, 600.0)
    for number in range(samples):
        pace.observe(number % 4, tokens, round(per_token_ms * tokens * MILLISECOND))
    return pace


@pytest.mark.parametrize(
    ("tokens", "allowed_s"), [(2_048, 20.48), (6_000, 60), (60_000, 60), (100_000, 100)]
)
def test_until_learned_a_prompt_has_what_an_engine_without_a_gpu_takes_up_to_a_minute(
    tokens, allowed_s
):
    for pace in (taught(0.1, samples=0), taught(0.1, samples=99)):
        assert pace.allowance(tokens, NOW) == nanos(allowed_s)
        assert pace.explanation(tokens, NOW) == tokens * MILLISECOND


def test_once_learned_the_allowance_is_four_times_the_tail_and_the_explanation_twice():
    pace = taught(3.0)  # a CPU that reads 333 tokens a second
    assert pace.allowance(50_000, NOW) == pytest.approx(600 * SECOND, rel=0.06)
    assert pace.explanation(50_000, NOW) == pytest.approx(300 * SECOND, rel=0.06)
    assert pace.expected(50_000, NOW) == pytest.approx(150 * SECOND, rel=0.06)


def test_prompts_that_lie_in_a_cache_teach_nobody_that_others_are_read_at_once():
    pace = taught(0.001)
    assert pace.allowance(100_000, NOW) == 100 * SECOND
    assert pace.explanation(100_000, NOW) == 50 * SECOND


def test_one_slow_replica_does_not_teach_the_pool_that_slow_is_normal():
    pace = taught(1.0)
    for _ in range(20):
        pace.observe(7, 10_000, 10_000 * SECOND // 10)  # ten tokens a second
    assert pace.allowance(10_000, NOW) == pytest.approx(40 * SECOND, rel=0.06)


def test_below_twenty_samples_nothing_is_usual():
    assert taught(1.0, samples=19).expected(10_000, NOW) is None
    pace = taught(1.0)
    pace.allowance(10_000, NOW)
    pace.forget()
    assert pace.expected(10_000, NOW) is None
    assert pace.allowance(10_000, NOW) == 60 * SECOND


# --- what becomes of deadlines --------------------------------------------------------------------


def asked(prompt: int, *, tokens: int = 0, whole: bool = False) -> Request:
    return Request("q", "m", arrived=0, prompt_tokens=prompt, max_tokens=tokens, whole=whole)


def practised(size: int, took_s: float, *, whole: bool = False) -> Deadlines:
    """Deadlines that have learned what requests of one size take, and no pace of reading."""
    config = DeadlineConfig()
    subject = Deadlines(config.for_answers() if whole else config, answers=whole)
    for number in range(400):
        subject.observe_first_token(f"r{number % 4}", size, nanos(took_s), NOW)
    subject.first_token(size, None, NOW + 11 * SECOND)
    return subject


@pytest.mark.parametrize("prompt", [0, 1, 100, PACED_TOKENS - 1])
def test_short_prompts_have_the_deadlines_of_their_class(prompt):
    subject = practised(prompt, 0.5)
    usual = subject.first_token(prompt, None, NOW + 12 * SECOND)
    assert usual == pytest.approx(2 * SECOND, rel=0.06)
    assert subject.wait(asked(prompt), None, 0, NOW + 12 * SECOND) == usual


def test_the_last_class_has_no_end_and_its_longest_prompts_have_what_reading_them_takes():
    """A hundred prompts of 20,000 tokens come within a second; 200,000 tokens take ten times it."""
    subject = practised(20_000, 1.0)
    for number in range(200):
        subject.observe_prompt(f"r{number % 4}", 20_000, SECOND)
    now = NOW + 12 * SECOND
    assert subject.first_token(200_000, None, now) == pytest.approx(4 * SECOND, rel=0.06)
    assert subject.wait(asked(20_000), None, 0, now) == 20 * SECOND
    assert subject.wait(asked(200_000), None, 0, now) == 200 * SECOND
    assert subject.wait(asked(2_000_000), None, 0, now) == 600 * SECOND


def test_an_answer_in_one_piece_to_a_long_prompt_has_the_time_to_read_it():
    """Its class is that of the answer's length: two tokens, after 100,000 of prompt."""
    subject = practised(2, 0.5, whole=True)
    now = NOW + 12 * SECOND
    short = subject.wait(asked(100, tokens=2, whole=True), None, 0, now)
    assert short == 5 * SECOND
    long = subject.wait(asked(100_000, tokens=2, whole=True), None, 0, now)
    assert long == short + 100 * SECOND


def test_a_pool_that_made_all_that_was_learned_untrue_has_no_pace_either():
    subject = practised(20_000, 1.0)
    for number in range(200):
        subject.observe_prompt(f"r{number % 4}", 20_000, SECOND)
    now = NOW + 12 * SECOND
    assert subject.reading.expected(20_000, now) == pytest.approx(SECOND, rel=0.06)
    while subject.first_token(20_000, None, now) < 60 * SECOND:
        for name in ("r0", "r1", "r2", "r3"):
            subject.fired(name, 3, now)
        now += 11 * SECOND
        assert now < NOW + 600 * SECOND
    assert subject.reading.expected(20_000, now) is None
