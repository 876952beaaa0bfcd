import pytest

from holdfast.testing.standin.text import (
    WORDS,
    ChatMessage,
    behind,
    chat_seed,
    chat_tokens,
    expected_text,
    prompt_seed,
    said_within,
)

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]


def test_there_are_256_different_words_of_plain_letters():
    assert len(set(WORDS)) == 256
    assert all(word.isascii() and word.isalpha() for word in WORDS)


def test_an_answer_depends_on_the_model_and_on_every_message():
    answer = expected_text("m", ASKED)
    assert answer == expected_text("m", ASKED)
    assert len(answer.split()) == 20
    assert answer != expected_text("n", ASKED)
    assert answer != expected_text("m", ASKED[1:])
    assert answer != expected_text("m", ASKED, choice=1)


def test_a_longer_answer_begins_with_the_shorter_one():
    assert expected_text("m", ASKED, 200).startswith(expected_text("m", ASKED, 30) + " ")
    assert len(expected_text("m", ASKED, 200).split()) == 200


def test_words_stay_the_same_from_release_to_release():
    assert expected_text("m", "Once", 3) == " mivash merax mafim"
    assert expected_text("m", ASKED, 3) == "manolt bagur dolun"


def test_text_parts_count_like_the_text_they_hold():
    parts = [{"role": "user", "content": [{"type": "text", "text": "Why?"}]}]
    assert expected_text("m", parts) == expected_text("m", [{"role": "user", "content": "Why?"}])


def test_pictures_nothing_and_tool_results_change_the_answer():
    plain = [{"role": "user", "content": "Why?"}]
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    silent = [{"role": "user", "content": None}]
    result = [{"role": "tool", "content": "Why?", "tool_call_id": "c1"}]
    odd = [{"role": "user", "content": {"a": 1}}]
    answers = {expected_text("m", asked) for asked in (plain, picture, silent, result, odd)}
    assert len(answers) == 5


def test_lone_surrogates_are_words_too():
    assert expected_text("m", "\ud800", 2)


@pytest.mark.parametrize("said", [0, 1, 7, 19, 20])
def test_what_is_missing_behind_a_said_part_is_found(said):
    tokens = chat_tokens(chat_seed("m", [ChatMessage("user", "Why?")]), 20)
    assert behind(tokens, "".join(tokens[:said])) == tokens[said:]


def test_a_part_that_ends_inside_a_word_is_completed():
    tokens = chat_tokens(chat_seed("m", [ChatMessage("user", "Why?")]), 5)
    whole = "".join(tokens)
    for end in range(len(whole)):
        assert whole[:end] + "".join(behind(tokens, whole[:end])) == whole


def test_foreign_words_are_not_taken_for_our_own():
    assert behind(["bolun"], "Hello") is None


@pytest.mark.parametrize("said", [1, 2, 13, 20])
def test_a_longer_prompt_is_split_where_our_own_words_begin(said):
    prompt = "Tell me what to do"
    words = expected_text("m", prompt).split()
    longer = prompt + "".join(f" {word}" for word in words[:said])
    assert said_within("m", longer, 20) == (prompt_seed("m", prompt), longer[len(prompt) :])


def test_a_prompt_cut_inside_our_word_is_still_recognised():
    prompt = "Tell me what to do"
    said = expected_text("m", prompt, 3)[:-1]
    assert said_within("m", prompt + said, 20) == (prompt_seed("m", prompt), said)


@pytest.mark.parametrize("prompt", ["", " ", "do", "what to do", "be me", "a  b ", "x bolun kirax"])
def test_an_ordinary_prompt_is_a_prompt(prompt):
    assert said_within("m", prompt, 20) == (prompt_seed("m", prompt), "")
