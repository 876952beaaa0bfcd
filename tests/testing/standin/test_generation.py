import orjson
import pytest

from holdfast.testing.standin.generation import (
    AnswerStyle,
    RequestRefused,
    plan_chat,
    plan_completion,
    read_generate,
    sample,
)
from holdfast.testing.standin.options import Like, Options
from holdfast.testing.standin.text import expected_text

USER = {"role": "user", "content": "Tell me all"}


def chat(options=None, mood=AnswerStyle.SOUND, **body):
    asked = read_generate(orjson.dumps({"model": "m", "messages": [USER], **body}))
    return plan_chat(asked, options or Options(), mood)


def completion(prompt, options=None, mood=AnswerStyle.SOUND, **body):
    asked = read_generate(orjson.dumps({"model": "m", "prompt": prompt, **body}))
    return plan_completion(asked, options or Options(), mood)


def text(plan, choice=0):
    return "".join(plan.choices[choice].tokens)


def test_a_chat_gets_the_expected_words_and_stops():
    plan = chat()
    assert text(plan) == expected_text("m", [USER])
    assert plan.choices[0].finish == "stop"
    assert plan.prompt_tokens == 3


def test_a_limit_cuts_and_says_so():
    plan = chat(max_tokens=5)
    assert text(plan) == expected_text("m", [USER], 5)
    assert plan.choices[0].finish == "length"
    assert chat(max_completion_tokens=4, max_tokens=9).longest() == 4
    assert chat(max_tokens=20).choices[0].finish == "length"
    assert chat(max_tokens=21).choices[0].finish == "stop"


def test_without_an_end_of_text_the_limit_decides():
    plan = chat(max_tokens=300, ignore_eos=True)
    assert text(plan) == expected_text("m", [USER], 300)
    assert plan.choices[0].finish == "length"


def test_stop_strings_end_the_text_before_them():
    words = expected_text("m", [USER]).split()
    plan = chat(stop=["never there", f" {words[4]}"])
    assert text(plan) == " ".join(words[:4])
    assert plan.choices[0].finish == "stop"
    inside = chat(stop=words[2][1:])
    assert text(inside) == " ".join(words[:2]) + f" {words[2][0]}"


@pytest.mark.parametrize("said", [1, 8, 20])
def test_vllm_goes_on_with_exactly_the_missing_words(said):
    words = expected_text("m", [USER]).split()
    messages = [USER, {"role": "assistant", "content": " ".join(words[:said])}]
    how = {"continue_final_message": True, "add_generation_prompt": False}
    plan = chat(messages=messages, **how)
    assert " ".join(words[:said]) + text(plan) == expected_text("m", [USER])
    assert plan.prompt_tokens == 3 + said
    limited = chat(messages=messages, max_tokens=3, **how)
    assert limited.longest() == min(3, 20 - said)


def test_going_on_without_an_end_of_text_counts_new_words_only():
    whole = expected_text("m", [USER], 60)
    messages = [USER, {"role": "assistant", "content": expected_text("m", [USER], 40)}]
    plan = chat(
        messages=messages,
        max_tokens=20,
        ignore_eos=True,
        continue_final_message=True,
        add_generation_prompt=False,
    )
    assert messages[1]["content"] + text(plan) == whole


def test_vllm_takes_an_assistant_message_for_a_turn_unless_told_otherwise():
    messages = [USER, {"role": "assistant", "content": "bolun"}]
    assert text(chat(messages=messages)) == expected_text("m", messages)


def test_vllm_refuses_to_continue_and_to_begin_at_once():
    with pytest.raises(RequestRefused, match="both"):
        chat(continue_final_message=True)


def test_llamacpp_goes_on_behind_an_assistant_message_and_repeats_it_in_a_whole_answer():
    said = expected_text("m", [USER], 6)
    messages = [USER, {"role": "assistant", "content": said}]
    plan = chat(Options(like=Like.LLAMACPP), messages=messages)
    assert said + text(plan) == expected_text("m", [USER])
    assert plan.choices[0].said == said


def test_foreign_words_are_continued_with_something():
    messages = [USER, {"role": "assistant", "content": "I think"}]
    plan = chat(messages=messages, continue_final_message=True, add_generation_prompt=False)
    assert text(plan).startswith(" ")
    assert plan.longest() == 20


def test_a_longer_prompt_is_continued():
    said = expected_text("m", "Once upon", 9)
    plan = completion(f"Once upon{said}")
    assert said + text(plan) == expected_text("m", "Once upon")
    assert plan.prompt_tokens == 11
    told = expected_text("m", "Once upon", 50)
    longer = completion(f"Once upon{told}", max_tokens=10, ignore_eos=True)
    assert told + text(longer) == expected_text("m", "Once upon", 60)


def test_several_prompts_and_several_choices_each_get_their_answer():
    plan = completion(["a", "b"], n=2)
    assert [text(plan, number) for number in range(4)] == [
        expected_text("m", "a"),
        expected_text("m", "a", choice=1),
        expected_text("m", "b"),
        expected_text("m", "b", choice=1),
    ]


def test_prompts_may_be_token_numbers():
    assert completion([1, 2, 3]).prompt_tokens == 3
    assert len(completion([[1, 2], [3]]).choices) == 2


@pytest.mark.parametrize("mood", [AnswerStyle.WRONG, AnswerStyle.EMPTY, AnswerStyle.GARBAGE])
def test_a_bad_mood_shows_in_chats_and_completions(mood):
    for plan, good in (
        (chat(mood=mood), expected_text("m", [USER])),
        (completion("a", mood=mood), expected_text("m", "a")),
    ):
        assert text(plan) != good
        if mood is AnswerStyle.WRONG:
            assert len(text(plan).split()) == 20
            assert plan.choices[0].finish == "stop"


def test_a_forced_tool_is_called_with_arguments_that_fit():
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "n": {"type": "integer"}},
    }
    tools = [{"type": "function", "function": {"name": "weather", "parameters": schema}}]
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        plan = chat(tools=tools, tool_choice=choice)
        assert plan.choices[0].tool == "weather"
        assert plan.choices[0].finish == "tool_calls"
        assert len(plan.choices[0].tokens) > 1
        arguments = orjson.loads(text(plan))
        assert isinstance(arguments["city"], str)
        assert arguments["n"] == 7
    assert chat(tools=tools, tool_choice="required", max_tokens=1).choices[0].finish == "length"


@pytest.mark.parametrize("choice", [None, "auto", "none"])
def test_tools_that_are_not_forced_get_a_text(choice):
    tools = [{"type": "function", "function": {"name": "weather"}}]
    assert text(chat(tools=tools, tool_choice=choice)) == expected_text("m", [USER])


def test_json_is_json_unless_it_is_cut():
    plan = chat(response_format={"type": "json_object"})
    assert orjson.loads(text(plan)) == {"answer": expected_text("m", [USER])}
    cut = chat(response_format={"type": "json_object"}, max_tokens=3)
    assert cut.choices[0].finish == "length"
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(text(cut))
    schema = {"type": "object", "properties": {"yes": {"type": "boolean"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert orjson.loads(text(chat(response_format=wanted))) == {"yes": True}
    assert text(chat(response_format={"type": "text"})) == expected_text("m", [USER])


def test_a_sample_follows_the_schema_and_survives_a_strange_one():
    words = iter(["one"] * 50)
    schema = {
        "type": "object",
        "properties": {
            "pick": {"enum": ["red", "blue"]},
            "many": {"type": "array", "items": {"type": "number"}},
            "none": {"type": "null"},
            "odd": 3,
        },
    }
    assert sample(schema, words) == {"pick": "red", "many": [7.5], "none": None, "odd": "one"}
    deep = {"type": "array"}
    deep["items"] = deep
    assert sample(deep, words)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"model": 3}',
        b'{"messages": [{"role": 1}]}',
        b'{"max_tokens": 0}',
        b'{"n": 0, "max_tokens": -1}',
        b'{"n": 1000000000}',
    ],
)
def test_a_body_that_makes_no_sense_is_refused(body):
    with pytest.raises(RequestRefused) as refused:
        read_generate(body)
    assert refused.value.status == 400


def test_nothing_to_answer_is_refused():
    with pytest.raises(RequestRefused):
        chat(messages=[])
    for prompt in (None, []):
        with pytest.raises(RequestRefused):
            completion(prompt)
    with pytest.raises(RequestRefused):
        completion(["x"] * 1000)
