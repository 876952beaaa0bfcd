"""How replicas settle what the right answer is, and what the book keeps of it."""

import json
from math import inf, nan

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.core.canary import AnswerKey, CanaryConfig, Rule, Said, TokenChoice
from holdfast.core.health.answers.answer_book import (
    AnswerBook,
    Judgement,
)
from holdfast.core.types import ConfigError
from sampling import examples

CONFIG = CanaryConfig()
KEY = AnswerKey("m", "1", "vllm")
RIGHT = "One, two, three, four"
OTHER = "I am a language model"
THIRD = "Sure! Here you go then"
quick = settings(max_examples=examples(100))


def text(value):
    return Said(text=value)


def vector(*numbers):
    return Said(vector=numbers)


def tensors(**named):
    return Said(tensors=tuple((name, tuple(values)) for name, values in named.items()))


def judge(book, replica, said, key=KEY, config=CONFIG, which=Rule.EXACT):
    said = text(said) if isinstance(said, str) else said
    return book.judge(key, config, which, replica, said)


# The book: answers that were given


@pytest.mark.parametrize(
    ("which", "said", "verdict"),
    [
        (Rule.EXACT, "four", "pass"),
        (Rule.EXACT, " 4 ", "pass"),
        (Rule.EXACT, "four.", "wrong"),
        (Rule.CONTAINS, "It is four.", "pass"),
        (Rule.CONTAINS, "It is five.", "wrong"),
        (Rule.SIMILAR, "Four!", "pass"),
        (Rule.SIMILAR, "", "wrong"),
    ],
)
def test_expected_answers_decide_alone_and_teach_nothing(which, said, verdict):
    book = AnswerBook()
    config = CanaryConfig(expect=("four", "4"))
    found = judge(book, "r1", said, config=config, which=which)
    assert (found.verdict, found.learned) == (verdict, False)
    assert book.known(KEY) == ()


def test_an_expected_answer_may_look_degenerate():
    config = CanaryConfig(expect=("1111",))
    assert judge(AnswerBook(), "r1", "1111", config=config).verdict == "pass"
    wrong = judge(AnswerBook(), "r1", "1112", config=config)
    assert wrong.verdict == "wrong"
    assert wrong.reason.startswith("not the expected answer")


def test_a_check_of_the_users_decides_alone_in_a_bounded_reason():
    book = AnswerBook()
    verdicts = [
        judge(book, "r1", Said(check=check, note=note), which=Rule.CHECK)
        for check, note in ((True, ""), (False, "no\nscores " * 100), (None, ""))
    ]
    assert [each.verdict for each in verdicts] == ["pass", "wrong", "unsettled"]
    assert verdicts[1].reason.startswith("no scores")
    assert len(verdicts[1].reason) <= 200
    assert book.export() == AnswerBook().export()


# The book: answers that are learned


def test_the_first_answer_admits_and_says_that_nobody_confirmed_it():
    book = AnswerBook()
    first = judge(book, "r1", RIGHT)
    assert first.verdict == "pass"
    assert first.learned
    assert "no peer has confirmed it" in first.reason
    assert book.known(KEY) == (text(RIGHT),)
    assert not book.is_confirmed(KEY)
    again = judge(book, "r1", RIGHT)
    assert (again.verdict, again.learned) == ("pass", False)
    assert not book.is_confirmed(KEY)


def test_a_second_replica_that_agrees_confirms_it():
    book = AnswerBook()
    judge(book, "r1", RIGHT)
    second = judge(book, "r2", f" {RIGHT}\n")
    assert (second.verdict, second.learned) == ("pass", True)
    assert "r1 and r2" in second.reason
    assert book.is_confirmed(KEY)
    assert book.known(KEY) == (text(RIGHT),)
    assert judge(book, "r3", RIGHT) == judge(book, "r1", RIGHT)
    for liar in ("r1", "r2", "r4"):
        wrong = judge(book, liar, OTHER)
        assert (wrong.verdict, wrong.learned) == ("wrong", False)


@pytest.mark.parametrize(("third", "liar", "honest"), [(RIGHT, "r2", "r1"), (OTHER, "r1", "r2")])
def test_two_that_disagree_are_settled_by_a_third(third, liar, honest):
    book = AnswerBook()
    said = {"r1": RIGHT, "r2": OTHER}
    judge(book, "r1", RIGHT)
    for _ in range(3):
        newcomer = judge(book, "r2", OTHER)
        assert newcomer.verdict == "unsettled"
        assert "r1" in newcomer.reason
        assert judge(book, "r1", RIGHT).verdict == "pass"  # nobody is condemned
    assert judge(book, "r3", third).verdict == "pass"
    assert book.known(KEY) == (text(third),)
    assert judge(book, honest, said[honest]).verdict == "pass"
    assert judge(book, liar, said[liar]).verdict == "wrong"


def test_a_third_opinion_of_its_own_settles_nothing():
    book = AnswerBook()
    assert judge(book, "r1", RIGHT).verdict == "pass"
    assert judge(book, "r2", OTHER).learned
    assert not judge(book, "r2", OTHER).learned
    assert judge(book, "r3", THIRD).verdict == "unsettled"
    assert not book.is_confirmed(KEY)
    assert judge(book, "r4", THIRD).verdict == "pass"
    assert judge(book, "r1", RIGHT).verdict == "wrong"


def test_a_replica_alone_that_changes_its_mind_is_seen_for_ever():
    book = AnswerBook()
    judge(book, "r1", RIGHT)
    changed = judge(book, "r1", OTHER)
    assert (changed.verdict, changed.learned) == ("unsettled", True)
    assert "its own earlier" in changed.reason
    assert judge(book, "r1", OTHER) == Judgement("unsettled", changed.reason, False)
    back = judge(book, "r1", RIGHT)
    assert (back.verdict, back.learned) == ("pass", True)
    assert not judge(book, "r1", RIGHT).learned
    assert not book.is_confirmed(KEY)


@pytest.mark.parametrize("settled", [RIGHT, OTHER])
def test_a_changed_mind_is_settled_by_a_second_replica_either_way(settled):
    book = AnswerBook()
    judge(book, "r1", RIGHT)
    judge(book, "r1", OTHER)
    assert judge(book, "r2", settled).verdict == "pass"
    assert book.known(KEY) == (text(settled),)
    assert book.is_confirmed(KEY)
    assert judge(book, "r1", OTHER).verdict == ("pass" if settled == OTHER else "wrong")


def test_a_newcomer_speaks_with_its_last_voice_only():
    book = AnswerBook()
    for replica, said in (("r1", RIGHT), ("r2", OTHER), ("r2", THIRD)):
        judge(book, replica, said)
    assert judge(book, "r3", OTHER).verdict == "unsettled"
    assert judge(book, "r2", OTHER).verdict == "pass"


def test_a_tolerant_rule_confirms_what_is_alike_and_keeps_what_came_first():
    book = AnswerBook()
    judge(book, "r1", "147 coins.", which=Rule.SIMILAR)
    assert judge(book, "r2", "147.", which=Rule.SIMILAR).learned
    assert book.known(KEY) == (text("147 coins."),)
    assert judge(book, "r3", "147 coins!", which=Rule.SIMILAR).verdict == "pass"
    assert judge(book, "r3", "148 coins.", which=Rule.SIMILAR).verdict == "wrong"
    assert judge(book, "r3", OTHER, which=Rule.SIMILAR).verdict == "wrong"


@pytest.mark.parametrize(
    ("which", "said"),
    [
        (Rule.EXACT, Said()),
        (Rule.EXACT, text(" \n")),
        (Rule.EXACT, text("!!!!!!!!")),
        (Rule.SIMILAR, text(" the the the the the ")),
        (Rule.SIMILAR, text("\ufffd" * 8)),
        (Rule.EXACT, text("Well, that is " + "!" * 400)),
        (Rule.COSINE, vector()),
        (Rule.COSINE, vector(0.0, 0.0)),
        (Rule.COSINE, vector(1.0, nan)),
        (Rule.TENSOR, Said()),
        (Rule.TENSOR, tensors(y=[])),
        (Rule.TENSOR, tensors(y=[1.0, nan])),
        (Rule.TENSOR, tensors(y=[1.0, inf])),
    ],
)
def test_what_is_no_answer_is_wrong_and_never_learned_however_many_agree(which, said):
    book = AnswerBook()
    for replica in ("r1", "r2", "r3"):
        found = judge(book, replica, said, which=which)
        assert (found.verdict, found.learned) == ("wrong", False)
        assert found.reason
    assert book.known(KEY) == ()


def test_numbers_are_learned_like_words():
    book = AnswerBook()
    for which, right, wrong in (
        (Rule.COSINE, vector(1.0, 2.0), vector(2.0, -1.0)),
        (Rule.TENSOR, tensors(y=[1.0]), tensors(y=[2.0])),
    ):
        key = AnswerKey("m", which, "triton", "fp16")
        for replica, said, verdict in (
            ("r1", right, "pass"),
            ("r2", wrong, "unsettled"),
            ("r3", right, "pass"),
            ("r2", wrong, "wrong"),
        ):
            assert judge(book, replica, said, key, which=which).verdict == verdict


def test_an_answer_too_long_to_keep_is_not_learned_and_says_what_to_do():
    book = AnswerBook()
    long = tensors(y=[float(n) for n in range(70_000)])
    found = judge(book, "r1", long, which=Rule.TENSOR)
    assert (found.verdict, found.learned) == ("unsettled", False)
    assert "ask for less" in found.reason
    assert book.export() == AnswerBook().export()


def test_every_key_begins_anew():
    book = AnswerBook()
    for replica in ("r1", "r2"):
        judge(book, replica, RIGHT)
    for key in (
        AnswerKey("m", "2", "vllm"),
        AnswerKey("m", "1", "sglang"),
        AnswerKey("m", "1", "vllm", "fp8"),
        AnswerKey("n", "1", "vllm"),
    ):
        assert judge(book, "r1", OTHER, key).verdict == "pass"
    assert judge(book, "r1", OTHER).verdict == "wrong"


def test_another_question_begins_anew_or_a_new_prompt_would_condemn_a_fleet():
    book = AnswerBook()
    for replica in ("r1", "r2"):
        judge(book, replica, RIGHT)
    asked = CanaryConfig(prompt="Who are you?")
    assert judge(book, "r1", OTHER, config=asked).verdict == "pass"
    assert book.known(KEY) == (text(OTHER),)
    assert not book.is_confirmed(KEY)


def test_another_bar_does_not_begin_anew():
    book = AnswerBook()
    for replica in ("r1", "r2"):
        judge(book, replica, RIGHT)
    judge(book, "r1", OTHER, config=CanaryConfig(similarity=0.9), which=Rule.SIMILAR)
    assert book.is_confirmed(KEY)


def test_reasons_and_errors_hold_no_word_of_an_answer():
    book = AnswerBook()
    secret, other = "quetzal alpha beta", "quetzal gamma delta"
    for replica, said in (("r1", secret), ("r2", other), ("r1", other), ("r3", "quetzal")):
        for which in (Rule.EXACT, Rule.SIMILAR):
            found = judge(book, replica, said, which=which)
            assert not set(found.reason.split()) & set(f"{secret} {other}".split())


# Forgetting and bounds


def test_who_leaves_takes_its_unconfirmed_answer_with_it():
    book = AnswerBook()
    judge(book, "r1", RIGHT)
    judge(book, "r2", OTHER)
    assert book.forget_replica("r1")
    assert not book.forget_replica("r1")
    assert book.known(KEY) == (text(OTHER),)
    assert judge(book, "r2", OTHER).verdict == "pass"
    assert judge(book, "r3", RIGHT).verdict == "unsettled"
    assert book.forget_replica("r2")
    assert book.forget_replica("r3")
    assert book.export() == AnswerBook().export()
    assert not book.is_confirmed(KEY)


def test_who_leaves_takes_back_nothing_that_is_confirmed():
    book = AnswerBook()
    for replica in ("r1", "r2"):
        judge(book, replica, RIGHT)
    assert not book.forget_replica("r1")
    assert book.is_confirmed(KEY)


def test_the_key_that_was_judged_longest_ago_goes_first():
    book = AnswerBook(keys_max=2)
    keys = [AnswerKey("m", str(n), "vllm") for n in range(3)]
    for key in keys[:2]:
        for replica in ("r1", "r2"):
            judge(book, replica, RIGHT, key)
    judge(book, "r1", RIGHT, keys[0])
    judge(book, "r1", RIGHT, keys[2])
    assert [bool(book.known(key)) for key in keys] == [True, False, True]


@pytest.mark.parametrize("candidates_max", [2, 3, 5])
def test_voices_are_bounded_and_the_provisional_one_stays(candidates_max):
    book = AnswerBook(candidates_max=candidates_max)
    for n in range(10):
        judge(book, f"r{n}", f"answer {n}")
    voices = book.export()["pages"][0]["voices"]
    assert len(voices) == candidates_max
    assert voices[0][0] == "r0"
    assert voices[-1][0] == "r9"
    assert judge(book, "new", "answer 9").verdict == "pass"


@pytest.mark.parametrize("bounds", [{"keys_max": 0}, {"candidates_max": 1}])
def test_a_book_without_room_is_refused(bounds):
    with pytest.raises(ConfigError):
        AnswerBook(**bounds)


# Persistence


def full_book():
    book = AnswerBook()
    for replica, said in (("r1", RIGHT), ("r2", RIGHT)):
        judge(book, replica, said)
    for replica, said in (("r1", RIGHT), ("r2", OTHER), ("r1", THIRD)):
        judge(book, replica, said, AnswerKey("m", "2", "vllm"))
    judge(book, "r1", vector(0.1, 1 / 3), AnswerKey("e", "1", "tei"), which=Rule.COSINE)
    judge(book, "r1", tensors(y=[1.0], z=[2]), AnswerKey("t", "1", "triton"), which=Rule.TENSOR)
    return book


def test_a_book_comes_back_as_it_was_and_holds_only_what_is_compared():
    plain = full_book().export()
    again = AnswerBook.restore(json.loads(json.dumps(plain)))
    assert again.export() == plain
    key = AnswerKey("x", "1", "vllm")
    judge(again, "r1", Said(text="yes", note="secret", tokens=3, prompt_tokens=9), key)
    assert again.known(key) == (text("yes"),)


def test_a_smaller_book_keeps_what_was_judged_last():
    plain = full_book().export()
    assert len(AnswerBook.restore(plain, keys_max=1).export()["pages"]) == 1
    small = AnswerBook.restore(plain, candidates_max=2)
    voices = small.export()["pages"][1]["voices"]
    assert [who for who, _ in voices] == ["r1", "r1"]


PLAIN = text("a"), {"text": "a", "vector": [], "tensors": [], "near_ties": None}
PAGE = {"key": ["m", "1", "e", ""], "question": "q", "confirmed": PLAIN[1], "voices": []}


def pages(*several, **changes):
    return {"version": 2, "pages": [*several, PAGE | changes]}


def saying(**changes):
    return pages(confirmed=PLAIN[1] | changes)


def test_the_good_page_below_is_good():
    assert AnswerBook.restore(pages()).known(AnswerKey("m", "1", "e")) == (PLAIN[0],)


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"version": 3, "pages": []},
        {"version": 2, "pages": {}},
        {"version": 2, "pages": [], "more": 1},
        {"version": 2, "pages": [3]},
        {"version": 1, "pages": [PAGE]},
        pages(PAGE),
        pages(key=["m", "1", "e"]),
        pages(key=["m", 1, "e", ""]),
        pages(key="m1e-"),
        pages(question=None),
        pages(confirmed="a"),
        pages(confirmed=None),
        pages(voices=[["r1", PLAIN[1]]]),
        pages(confirmed=None, voices=[["r1"]]),
        pages(confirmed=None, voices=[[1, PLAIN[1]]]),
        pages(confirmed=None, voices="r1"),
        saying(text=3),
        saying(vector=None),
        saying(vector=["1"]),
        saying(vector=[True]),
        saying(vector=[nan]),
        saying(vector=[10**400]),
        saying(tensors=[["y"]]),
        saying(tensors=[["y", [None]]]),
        saying(more=1),
        saying(near_ties="a"),
        saying(near_ties=[[1]]),
        saying(near_ties=[["1", ["b"]]]),
        saying(near_ties=[[-1, ["b"]]]),
        saying(near_ties=[[1, "b"]]),
        saying(near_ties=[[1, [2]]]),
    ],
)
def test_a_book_that_was_not_exported_is_refused(data):
    with pytest.raises(ValueError, match="book of answers"):
        AnswerBook.restore(data)


def test_a_book_of_the_first_version_is_read_and_knows_no_near_ties():
    old = {name: value for name, value in PLAIN[1].items() if name != "near_ties"}
    book = AnswerBook.restore({"version": 1, "pages": [PAGE | {"confirmed": old}]})
    assert book.known(AnswerKey("m", "1", "e")) == (PLAIN[0],)
    assert book.export() == pages()


# Near ties

COUNTED = "One, two, three, four"
CHOICES = [
    TokenChoice("One", -0.1, (("One", -0.1), ("1", -4.0))),
    TokenChoice(",", -0.7, ((",", -0.7), (" two", -0.8))),
    TokenChoice(" two", -0.2, ((" two", -0.2), (" 2", -3.0))),
    TokenChoice(", three, four", -0.1),
]


def told_book(*, confirmed=True):
    book = AnswerBook()
    for replica in ("r1", "r2")[: 1 + confirmed]:
        assert judge(book, replica, COUNTED).verdict == "pass"
    assert book.wants_choices(KEY, CONFIG)
    assert book.take_choices(KEY, CHOICES)
    assert not book.wants_choices(KEY, CONFIG)
    return book


def test_who_parts_at_a_near_tie_is_right_and_who_parts_elsewhere_is_not():
    book = told_book()
    told = judge(book, "r3", "One two three and so on")
    assert (told.verdict, told.learned) == ("pass", False)
    assert "nearly as likely" in told.reason
    assert judge(book, "r3", "1, two, three, four").verdict == "wrong"
    assert judge(book, "r3", "One; two, three, four").verdict == "wrong"
    assert judge(book, "r3", "One, 2, three, four").verdict == "wrong"
    assert book.known(KEY)[0].text == COUNTED, "the known answer stays the known one"


def test_a_near_tie_is_known_before_a_second_replica_answers_and_beyond_a_restart():
    book = AnswerBook.restore(json.loads(json.dumps(told_book(confirmed=False).export())))
    assert judge(book, "r1", "One two three").verdict == "pass", "its own other branch"
    assert judge(book, "r2", "One two three").verdict == "pass"
    assert book.is_confirmed(KEY)
    assert not book.wants_choices(KEY, CONFIG)
    assert judge(book, "r3", "One two, at last").verdict == "pass"


def test_an_engine_that_cannot_tell_is_asked_three_times():
    book = AnswerBook()
    assert not book.wants_choices(KEY, CONFIG), "nothing is known of which it could tell"
    assert not book.take_choices(KEY, CHOICES)
    judge(book, "r1", COUNTED)
    for _ in range(3):
        assert book.wants_choices(KEY, CONFIG)
        assert not book.take_choices(KEY, [])
    assert not book.wants_choices(KEY, CONFIG)
    assert judge(book, "r2", "One two three").verdict == "unsettled"


def test_numbers_and_another_question_have_no_near_ties():
    book = AnswerBook()
    judge(book, "r1", vector(1.0), which=Rule.COSINE)
    assert not book.wants_choices(KEY, CONFIG)
    judge(book, "r1", COUNTED, AnswerKey("n", "1", "vllm"))
    other = CanaryConfig(prompt="Something else")
    assert not book.wants_choices(AnswerKey("n", "1", "vllm"), other)


# The book told anything in any order

REPLICAS = st.sampled_from(["r1", "r2", "r3", "r4"])
KEYS = tuple(AnswerKey("m", revision, "vllm") for revision in "12")
KEY_OF = st.sampled_from(KEYS)
# Of each pair the second is the first after a prefix-cache hit; no pair agrees with another.
SAYINGS = ("147 coins.", "147.", "148 coins.", "148.", "Sure, here you go", "Sure, here")
NOTHING = ("", "!!!!!!!!", "no no no no no no")


def family(said):
    return SAYINGS.index(said) // 2


class BookUnderFire(RuleBasedStateMachine):
    """Kept beside it: who ever said what, and what was once confirmed."""

    def __init__(self):
        super().__init__()
        self.book = AnswerBook(candidates_max=3)
        self.heard = {key: set() for key in KEYS}  # (replica, family)
        self.confirmed = {}

    def told(self, key, replica, said):
        before = self.book.export()["pages"]
        judged = judge(self.book, replica, said, key, which=Rule.SIMILAR)
        after = self.book.export()["pages"]
        for page in before, after:
            page.sort(key=lambda each: each["key"])
        assert judged.learned == (before != after), "learned says whether to persist"
        assert judged.reason
        return judged

    @rule(key=KEY_OF, replica=REPLICAS, said=st.sampled_from(SAYINGS))
    def answer(self, key, replica, said):
        known, settled = self.book.known(key), self.book.is_confirmed(key)
        judged = self.told(key, replica, said)
        self.heard[key].add((replica, family(said)))
        agrees = bool(known) and family(known[0].text) == family(said)
        if settled:
            assert judged.verdict == ("pass" if agrees else "wrong")
            assert not judged.learned
        elif self.book.is_confirmed(key):
            assert judged.verdict == "pass"
            assert judged.learned
            (answer,) = self.book.known(key)
            assert family(answer.text) == family(said)
            voices = {who for who, what in self.heard[key] if what == family(said)}
            assert len(voices) >= 2, "nobody confirms itself"
            self.confirmed[key] = answer
        else:
            assert judged.verdict == ("pass" if agrees or not known else "unsettled")

    @rule(key=KEY_OF, replica=REPLICAS, said=st.sampled_from(NOTHING))
    def answer_nothing(self, key, replica, said):
        judged = self.told(key, replica, said)
        assert (judged.verdict, judged.learned) == ("wrong", False)

    @rule(replica=REPLICAS)
    def leave(self, replica):
        before = self.book.export()
        assert self.book.forget_replica(replica) == (before != self.book.export())
        for key in KEYS:
            self.heard[key] = {each for each in self.heard[key] if each[0] != replica}

    @rule()
    def restart(self):
        plain = self.book.export()
        self.book = AnswerBook.restore(json.loads(json.dumps(plain)), candidates_max=3)
        assert self.book.export() == plain

    @invariant()
    def what_is_confirmed_stays(self):
        for key, answer in self.confirmed.items():
            assert self.book.is_confirmed(key)
            assert self.book.known(key) == (answer,)

    @invariant()
    def it_is_bounded(self):
        found = self.book.export()["pages"]
        assert len(found) <= len(KEYS)
        assert all(len(page["voices"]) <= 3 for page in found)


BookUnderFire.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=30)
TestBookUnderFire = BookUnderFire.TestCase
