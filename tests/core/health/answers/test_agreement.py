"""Which answers count as the same, and by which rule they are compared."""

from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.canary import CanaryConfig, Rule, Said, Shape
from holdfast.core.health.answers.agreement import _common_words, agree, usual_rule
from sampling import examples

CONFIG = CanaryConfig()
RIGHT = "One, two, three, four"
OTHER = "I am a language model"
quick = settings(max_examples=examples(100))


def text(value):
    return Said(text=value)


def same(which, left, right, config=CONFIG):
    """Agreement in both directions, which must be the same one."""
    found = agree(which, config, left, right)
    assert agree(which, config, right, left).allowed == found.allowed
    return found


# exact


@pytest.mark.parametrize("other", ["a  b", " a b\n", "a\tb"])
def test_exact_forgives_blanks_only(other):
    assert same(Rule.EXACT, text("a b"), text(other))


@pytest.mark.parametrize("other", ["a b.", "A b", "ab", ""])
def test_exact_refuses_any_other_letter_and_says_where(other):
    found = agree(Rule.EXACT, CONFIG, text(other), text("a b"))
    assert not found
    assert "of" in found.reason


@pytest.mark.parametrize("which", [Rule.EXACT, Rule.SIMILAR, Rule.CONTAINS])
def test_an_answer_without_text_agrees_with_no_text(which):
    assert not same(which, Said(), text("a"))
    assert not same(which, Said(), Said())


# similar


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("147 coins.", "147."),  # what a prefix-cache hit made of it in a real engine
        ("147", "147 coins"),
        ("One, two, three, four,", "one two three four"),
        ("One, two, three, four, five", "One, two, three, four, six"),  # 4 of 5
        ("There are 147 coins in the chest", "There are 147 coins in that chest"),
        ("There are 147 coins in the chest 3", "There are 147 coins in the big chest"),  # cut
        ("It is -5 degrees", "It is -5"),
        ("10-5 is 5", "10 - 5 is 5"),
        ("水の沸点は百度です", "水の沸点は百度である"),
        ("...", " ..."),
    ],
)
def test_similar_forgives_what_engines_do_to_greedy_output(left, right):
    assert same(Rule.SIMILAR, text(left), text(right))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("147 coins.", "148 coins."),
        ("147.", "14."),
        ("147.", "coins."),
        ("So all in all there are 147 coins in it", "So all in all there are 148 coins in it"),
        ("So all in all there are 147 coins in it", "So all in all there are many coins in it"),
        ("The 1st one of the four is the one", "The 2nd one of the four is the one"),
        ("It is -5", "It is 5"),
        ("The capital of France is Paris", "The"),  # a beginning, but hardly anything of it
        ("147 coins were in the chest", "147"),
        (RIGHT, OTHER),
        (RIGHT, "Four, three, two, one"),
        ("The sum of all the coins is high", "The colour of all the walls is white"),
        ("水の沸点は百度です", "私は言語モデルです"),
        ("...", "!!!"),
        ("...", "a"),
    ],
)
def test_similar_refuses_other_text_however_fluent(left, right):
    found = same(Rule.SIMILAR, text(left), text(right))
    assert not found
    assert found.reason


def test_similarity_is_what_the_config_asks_for():
    left, right = text("a b c d e f g h i j"), text("a b c d e x g h i j")  # 9 of 10
    assert agree(Rule.SIMILAR, CanaryConfig(similarity=0.9), left, right)
    assert not agree(Rule.SIMILAR, CanaryConfig(similarity=0.91), left, right)


def longest_common(left, right):
    """The textbook's table."""
    table = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            longer = max(table[i][j + 1], table[i + 1][j])
            table[i + 1][j + 1] = table[i][j] + 1 if a == b else longer
    return table[-1][-1]


words = st.lists(st.sampled_from("abcde"), max_size=30)


@quick
@given(words, words)
def test_common_words_are_those_of_the_textbook(left, right):
    assert _common_words(left, right) == longest_common(left, right)


@quick
@given(st.text(max_size=40), st.text(max_size=40))
def test_agreement_of_texts_is_mutual_and_everything_agrees_with_itself(left, right):
    for which in (Rule.EXACT, Rule.SIMILAR):
        same(which, text(left), text(right))
        assert same(which, text(left), text(left))


# contains, check


def test_contains_looks_for_the_expected_text_in_the_answer():
    said, known = text("It is  Paris, of course."), text("Paris, of")
    assert agree(Rule.CONTAINS, CONFIG, said, known)
    assert not agree(Rule.CONTAINS, CONFIG, known, said)
    assert not agree(Rule.CONTAINS, CONFIG, said, text(" "))


def test_checks_agree_when_both_passed():
    passed, failed, silent = Said(check=True), Said(check=False), Said()
    assert same(Rule.CHECK, passed, passed)
    for other in (failed, silent):
        assert not same(Rule.CHECK, passed, other)
        assert not same(Rule.CHECK, other, other)


# numbers


def vector(*numbers):
    return Said(vector=numbers)


def test_a_vector_agrees_with_one_of_nearly_its_direction():
    assert same(Rule.COSINE, vector(1.0, 2.0, 3.0), vector(1.001, 2.0, 2.999))
    assert same(Rule.COSINE, vector(1e200, 1e200), vector(1e-200, 1e-200))
    third = vector(*([1 / 3] * 7))
    assert same(Rule.COSINE, third, third, CanaryConfig(cosine_min=1.0))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (vector(1.0, 0.0), vector(0.0, 1.0)),
        (vector(1.0, 0.0), vector(-1.0, 0.0)),
        (vector(1.0, 0.0), vector(1.0, 0.0, 0.0)),
        (vector(), vector()),
        (vector(0.0, 0.0), vector(0.0, 0.0)),
        (vector(nan, 1.0), vector(1.0, 1.0)),
        (vector(inf, 1.0), vector(inf, 1.0)),
    ],
)
def test_a_vector_of_another_or_no_direction_does_not_agree(left, right):
    found = agree(Rule.COSINE, CONFIG, left, right)
    assert not found
    assert not agree(Rule.COSINE, CONFIG, right, left)


def tensors(**named):
    return Said(tensors=tuple((name, tuple(values)) for name, values in named.items()))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (tensors(y=[1.0, 100.0]), tensors(y=[1.0005, 100.05])),
        (tensors(y=[10.0, 1e-7]), tensors(y=[10.0, -1e-7])),  # noise beside a larger number
        (tensors(a=[1.0], b=[2.0]), tensors(b=[2.0], a=[1.0])),
        (tensors(y=[0.0, 0.0]), tensors(y=[0.0, 0.0])),
        (tensors(y=[inf, 1.0]), tensors(y=[inf, 1.0])),
        (tensors(y=[]), tensors(y=[])),
    ],
)
def test_tensors_agree_number_by_number_within_the_tolerance(left, right):
    assert same(Rule.TENSOR, left, right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (tensors(y=[1.0, 3.0]), tensors(y=[1.0, 3.01])),
        (tensors(y=[1e6, 3.0]), tensors(y=[1e6, 3.01])),  # a large neighbour is no excuse
        (tensors(y=[1e-4, 2e-4]), tensors(y=[2e-4, 1e-4])),  # small ones are numbers too
        (tensors(y=[1e-4, 2e-4]), tensors(y=[0.0, 0.0])),
        (tensors(y=[1.0]), tensors(y=[1.0, 1.0])),
        (tensors(y=[1.0]), tensors(z=[1.0])),
        (tensors(y=[1.0]), tensors(y=[1.0], z=[1.0])),
        (tensors(y=[nan]), tensors(y=[nan])),
        (tensors(y=[1.0, inf]), tensors(y=[1.0, 1e300])),
        (tensors(y=[inf]), tensors(y=[-inf])),
        (Said(), Said()),
    ],
)
def test_tensors_with_another_number_name_or_length_do_not_agree(left, right):
    assert not same(Rule.TENSOR, left, right)


def test_a_tolerance_of_zero_means_equal():
    exact = CanaryConfig(tolerance=0.0)
    assert same(Rule.TENSOR, tensors(y=[1.0, 0.0]), tensors(y=[1.0, 0.0]), exact)
    assert not same(Rule.TENSOR, tensors(y=[1.0]), tensors(y=[1.0 + 1e-15]), exact)


@pytest.mark.parametrize(
    ("wish", "said", "bit_stable", "expected"),
    [
        ({}, Said(text="a"), True, Rule.EXACT),
        ({}, Said(text="a"), False, Rule.SIMILAR),
        ({"expect": ("a",)}, Said(text="a"), True, Rule.CONTAINS),
        ({"shape": Shape.EMBEDDING}, Said(vector=(1.0,)), False, Rule.COSINE),
        ({"shape": Shape.INFER, "body": "{}"}, Said(tensors=(("y", (1.0,)),)), False, Rule.TENSOR),
        ({"shape": Shape.INFER, "body": "{}"}, Said(text="a"), False, Rule.EXACT),
        (
            {"shape": Shape.HTTP, "path": "/x", "body": "{}", "check": "a.b:c"},
            Said(check=True),
            False,
            Rule.CHECK,
        ),
    ],
)
def test_the_usual_rule_follows_what_was_asked(wish, said, bit_stable, expected):
    assert usual_rule(CanaryConfig(**wish), said, bit_stable=bit_stable) is expected
