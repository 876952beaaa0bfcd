"""Where an answer could as well have gone on otherwise, and who is excused for it."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.canary import NearTie, TokenChoice
from holdfast.core.health.answers.near_ties import near_ties, parts_at_tie

ANSWER = "One, two, three"


def token(text, *others, own=-0.1):
    """A token, and others as (text, how many nats less likely)."""
    return TokenChoice(text, own, ((text, own), *((other, own - less) for other, less in others)))


def ties(*choices, answer=ANSWER):
    return near_ties(answer, choices)


def test_only_what_is_nearly_as_likely_is_a_tie():
    found = ties(
        token("One", ("1", 0.6)), token(",", (" and", 0.4), (" or", 0.5), (";", 3)), token(" two")
    )
    assert found == (NearTie(3, (" and", " or")),)
    assert ties(token("One"), token(", two, three")) == ()


def test_a_token_that_was_not_the_likeliest_has_a_tie_with_those_that_are():
    assert ties(token("One", ("1", -0.2), ("I", -3.0))) == (NearTie(0, ("I",)),)


def test_blanks_in_front_are_not_compared():
    known = (NearTie(3, (" and",)),)
    assert (
        ties(token("\n\n"), token(" One"), token(",", (" and", 0.1)), answer="  One, two\n")
        == known
    )
    assert ties(token(" One", (" 1", 0.1)), token(", two")) == (NearTie(0, ("1",)),)


def test_an_answer_that_takes_the_other_branch_tells_of_the_known_one_up_to_there():
    assert ties(token("One"), token(" and", (",", 0.1)), token(" two", (" no", 0.1))) == (
        NearTie(3, (" and",)),
    )
    assert ties(token("One"), token(" and", (",", 2.0))) is None
    assert ties(token("1", ("I", 0.0))) is None


def test_the_end_of_an_answer_may_be_a_branch():
    found = ties(token("One", own=-0.3), token(",", ("<|im_end|>", 0.2)))
    assert found == (NearTie(3, ("",)),)
    assert parts_at_tie(found, ANSWER, "One") == 3
    assert parts_at_tie(found, ANSWER, "One and") is None
    assert ties(token("One"), token("</s>", (",", 0.2))) == (NearTie(3, ("",)),)


@pytest.mark.parametrize(
    "choices",
    [
        (),
        (token("Two"),),
        (token(" \n"),),
        (TokenChoice("", -0.1),),
    ],
)
def test_tokens_of_something_else_tell_nothing(choices):
    assert near_ties(ANSWER, choices) is None


@pytest.mark.parametrize("odd", [nan, -inf, inf])
def test_odd_numbers_make_no_tie(odd):
    assert ties(TokenChoice("One", -0.1, (("1", odd),))) == ()


def test_of_an_answer_that_was_cut_the_beginning_tells():
    assert ties(token("One", ("1", 0.1)), token(", two", (" x", 9))) == (NearTie(0, ("1",)),)


def test_parts_at_tie_looks_at_the_first_difference():
    known = (NearTie(3, (" and", "ly")), NearTie(8, (" 3",)))
    assert parts_at_tie(known, ANSWER, "One and two") == 3
    assert parts_at_tie(known, ANSWER, " One and anything at all") == 3
    assert parts_at_tie(known, ANSWER, "Only") is None, "it parts before the tie"
    assert parts_at_tie(known, ANSWER, "One, two 3") == 8
    assert parts_at_tie(known, ANSWER, "One, two four") is None
    assert parts_at_tie(known, ANSWER, "One, too") is None, "it parts between the ties"
    assert parts_at_tie(known, ANSWER, "One, two, thirty") is None, "it parts behind them"
    assert parts_at_tie((), ANSWER, "1") is None


def test_another_token_that_is_part_of_the_known_text_excuses_nothing_behind_it():
    known = (NearTie(4, (" tw",)),)  # of " two" in the answer
    assert parts_at_tie(known, ANSWER, "One, two, thirty") is None
    assert parts_at_tie((NearTie(4, (" twelve",)),), ANSWER, "One, twelve") == 4


WORDS = st.lists(st.sampled_from(["One", ",", " two", " 2", " and", "."]), min_size=1, max_size=8)


@given(words=WORDS, others=WORDS, where=st.integers(0, 7))
def test_a_branch_at_a_tie_is_excused_and_the_same_answer_never_needs_it(words, others, where):
    where %= len(words)
    other = others[0]
    if other == words[where] or not "".join(words).strip():
        return
    answer = "".join(words)
    choices = [token(word) for word in words]
    choices[where] = token(words[where], (other, 0.2))
    found = near_ties(answer, choices)
    assert found is not None
    assert parts_at_tie(found, answer, answer) is None
    branch = "".join([*words[:where], other, " x"])
    if not branch.strip().startswith(answer.strip()[: len("".join(words[:where]).strip()) + 1]):
        assert parts_at_tie(found, answer, branch) is not None
