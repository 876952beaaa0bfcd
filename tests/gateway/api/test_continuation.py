"""Continuation: the second request, and a seam that nobody sees."""

import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.engines.dialect import Continuation
from holdfast.gateway.api.chunks import DONE, StreamApi, read_chunk
from holdfast.gateway.api.continuation import (
    ECHO_CHARS_MIN,
    CannotContinueError,
    Seam,
    can_continue,
    continued_body,
    said_again,
    text_of,
)
from holdfast.gateway.http.sse import MalformedStreamError

CHAT, COMPLETIONS = StreamApi.CHAT, StreamApi.COMPLETIONS
FINAL, PREFILL = Continuation.FINAL_MESSAGE, Continuation.PREFILL
ASKED = {"role": "user", "content": "Tell me."}


def compact(value):
    return json.dumps(value, separators=(",", ":")).encode()


def chat_body(**members):
    return compact({"model": "m", "messages": [ASKED], "stream": True, **members})


def prompt_body(**members):
    return compact({"model": "m", "prompt": "Once", "stream": True, **members})


def continued(body, api=CHAT, how=FINAL, said="so far", tokens=3, **more):
    return json.loads(continued_body(body, api, how, said, tokens, **more))


# --- the request ----------------------------------------------------------------------------------


def test_a_chat_goes_on_behind_a_message_of_the_assistant():
    body = continued(chat_body(temperature=0.1))
    assert body["messages"] == [ASKED, {"role": "assistant", "content": "so far"}]
    assert body["continue_final_message"] is True
    assert body["add_generation_prompt"] is False
    assert (body["model"], body["stream"], body["temperature"]) == ("m", True, 0.1)


def test_a_prefill_needs_no_flags():
    body = continued(chat_body(), how=PREFILL)
    assert body["messages"][-1] == {"role": "assistant", "content": "so far"}
    assert "continue_final_message" not in body
    assert "add_generation_prompt" not in body


def test_completions_go_on_from_a_longer_prompt_blanks_and_all():
    body = continued(prompt_body(), COMPLETIONS, Continuation.NONE, " upon\n")
    assert body["prompt"] == "Once upon\n"


def test_blanks_at_the_end_of_a_chat_are_not_sent_back():
    assert continued(chat_body(), said="Well.\n\n")["messages"][-1]["content"] == "Well."
    blank = continued(chat_body(max_tokens=9), said="\n\n", tokens=1)
    assert blank["messages"] == [ASKED]
    assert "continue_final_message" not in blank
    assert blank["max_tokens"] == 8


@pytest.mark.parametrize(
    ("name", "value", "left"),
    [
        ("max_tokens", 10, 7),
        ("max_completion_tokens", 10, 7),
        ("n_predict", 10, 7),
        ("max_tokens", 4, 1),
        ("max_tokens", 3, 1),
        ("max_tokens", 1, 1),
        ("max_tokens", None, None),
        ("n_predict", -1, -1),
        ("min_tokens", 10, 7),
        ("min_tokens", 2, 0),
        ("min_tokens", 0, 0),
    ],
)
def test_limits_shrink_by_what_was_said(name, value, left):
    assert continued(chat_body(**{name: value}))[name] == left
    assert continued(prompt_body(**{name: value}), COMPLETIONS)[name] == left


def test_what_is_not_ours_to_change_goes_out_as_it_came():
    asked = b'{"role":"user","content":"\\u00e4", "y":1.50}'
    members = b'"x":1.10,"big":123456789012345678901234567890'
    body = b'{"model":"m",%b,"messages":[%b]}' % (members, asked)
    out = continued_body(body, CHAT, PREFILL, "a", 1)
    added = b'{"role":"assistant","content":"a"}'
    assert out == b'{"model":"m",%b,"messages":[%b,%b]}' % (members, asked, added)


@pytest.mark.parametrize(
    ("content", "extended"),
    [
        ("Sure: ", "Sure: so far"),
        ("", "so far"),
        ([{"type": "text", "text": "Sure: "}], [{"type": "text", "text": "Sure: so far"}]),
    ],
)
def test_a_prefill_of_the_client_is_extended(content, extended):
    began = {"role": "assistant", "content": content, "name": "a"}
    body = chat_body(messages=[ASKED, began])
    wanted = [ASKED, {**began, "content": extended}]
    assert continued(body, how=PREFILL)["messages"] == wanted
    flagged = chat_body(messages=[ASKED, began], continue_final_message=True)
    assert continued(flagged)["messages"] == wanted


def test_where_the_engine_began_a_message_of_its_own_another_one_is_added():
    earlier = {"role": "assistant", "content": "Before."}
    body = continued(chat_body(messages=[ASKED, earlier]))
    assert body["messages"] == [ASKED, earlier, {"role": "assistant", "content": "so far"}]


REFUSED = [
    ({"n": 2}, "more than one choice"),
    ({"best_of": 3}, "more than one choice"),
    ({"use_beam_search": True}, "beam"),
    ({"logprobs": True}, "log prob"),
    ({"logprobs": 0}, "log prob"),
    ({"top_logprobs": 5}, "log prob"),
    ({"prompt_logprobs": 1}, "log prob"),
    ({"tool_choice": "required"}, "forced"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "forced"),
    ({"function_call": {"name": "f"}}, "forced"),
    ({"response_format": {"type": "json_object"}}, "guided"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "guided"),
    ({"guided_json": {}}, "guided"),
    ({"guided_regex": "a*"}, "guided"),
    ({"guided_choice": ["a"]}, "guided"),
    ({"guided_grammar": "x"}, "guided"),
    ({"structured_outputs": {"regex": "a"}}, "guided"),
    ({"grammar": "root ::= x"}, "guided"),
    ({"json_schema": {}}, "guided"),
    ({"regex": "a"}, "guided"),
    ({"ebnf": "x"}, "guided"),
    ({"modalities": ["text", "audio"]}, "not text alone"),
    ({"audio": {"voice": "v"}}, "not text alone"),
    ({"add_generation_prompt": False}, "own way"),
    ({"continue_final_message": True}, "not the assistant's"),
    ({"messages": []}, "no messages"),
    ({"messages": ["x"]}, "not an object"),
]
ALLOWED = [
    {},
    {"n": 1, "best_of": None, "logprobs": False, "top_logprobs": 0, "echo": False},
    {"tools": [{"type": "function"}]},
    {"tools": [{"type": "function"}], "tool_choice": "auto"},
    {"tool_choice": "none"},
    {"response_format": {"type": "text"}},
    {"response_format": None, "guided_json": None, "grammar": ""},
    {"modalities": ["text"], "audio": None},
    {"stop": ["a"], "seed": 1, "stream_options": {"include_usage": True}},
    {"add_generation_prompt": True, "continue_final_message": False},
]


@pytest.mark.parametrize(("members", "why"), REFUSED)
def test_what_cannot_be_continued_is_refused_with_its_reason(members, why):
    decision = can_continue(chat_body(**members), CHAT, FINAL)
    assert not decision
    assert why in decision.reason
    with pytest.raises(CannotContinueError, match=why):
        continued_body(chat_body(**members), CHAT, FINAL, "x", 1)


@pytest.mark.parametrize("members", ALLOWED)
def test_plain_text_can_be_continued(members):
    for how in (FINAL, PREFILL):
        assert can_continue(chat_body(**members), CHAT, how)
    assert can_continue(prompt_body(**members), COMPLETIONS, Continuation.NONE)


@pytest.mark.parametrize(
    "last",
    [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": []},
        {"role": "assistant", "content": [{"type": "image_url"}]},
    ],
)
def test_a_prefill_that_is_not_text_cannot_be_extended(last):
    assert "plain text" in can_continue(chat_body(messages=[ASKED, last]), CHAT, PREFILL).reason


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"prompt": [1, 2, 3]}, "not one text"),
        ({"prompt": ["a", "b"]}, "not one text"),
        ({"prompt": None}, "not one text"),
        ({"echo": True}, "echoed"),
        ({"suffix": "end"}, "inserted"),
        ({"logprobs": 0}, "log prob"),
        ({"prompt_embeds": "AAAA"}, "not text"),
    ],
)
def test_a_prompt_that_cannot_be_extended_is_refused(members, why):
    assert why in can_continue(prompt_body(**members), COMPLETIONS, FINAL).reason


def test_engines_that_cannot_are_not_asked():
    assert "chat" in can_continue(chat_body(), CHAT, Continuation.NONE).reason
    assert "prompt" in can_continue(prompt_body(), COMPLETIONS, FINAL, False).reason
    with pytest.raises(CannotContinueError):
        continued_body(prompt_body(), COMPLETIONS, FINAL, "x", 1, continues_prompt=False)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"messages":7}', b'{"x":' + b"[" * 99_999])
def test_a_body_that_cannot_be_read_is_refused(body):
    assert not can_continue(body, CHAT, FINAL)
    with pytest.raises(CannotContinueError) as caught:
        continued_body(body, CHAT, FINAL, "secret", 1)
    assert "secret" not in str(caught.value)


def test_a_limit_that_is_no_number_is_refused_too():
    with pytest.raises(CannotContinueError, match="cannot be read"):
        continued_body(b'{"prompt":"a","max_tokens":1e999}', COMPLETIONS, FINAL, "x", 1)


# --- streams --------------------------------------------------------------------------------------


def chunk(said=None, finish=None, *, api=CHAT, id="new", role=False, **members):  # noqa: A002
    if api is CHAT:
        delta = {"role": "assistant"} if role else {}
        delta |= {} if said is None else {"content": said}
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        kind = "chat.completion.chunk"
    else:
        choice = {"index": 0, "text": said or "", "finish_reason": finish}
        kind = "text_completion"
    head = {"id": id, "object": kind, "created": len(id), "model": id}
    return compact({**head, "choices": [choice], **members})


def first(api=CHAT, **members):
    return chunk("", api=api, id="first", role=True, **members)


def seam(said="", tokens=3, stop=(), number=1, api=CHAT, **members):
    return Seam(first(api, **members), said, tokens, stop, number)


def through(joint, payloads):
    return [out for payload in payloads for out in joint.rewrite(payload)]


def usage(prompt, completion):
    total = prompt + completion
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}


def counted(payloads, api):
    """The tokens so far, by the engine's own count."""
    usages = [read_chunk(payload, api).usage for payload in payloads if payload != DONE]
    return [usage.completion_tokens for usage in usages if usage is not None][-1]


def test_a_continuation_ends_where_the_clients_own_limit_is():
    """It was given more, as the tokens said so far were counted at the least."""
    joint = Seam(first(), "one two", 9, (), 1, 5, 2)
    out = through(joint, [chunk(" three"), chunk(" four"), chunk(" five"), chunk(" six", "stop")])
    assert text_of(out, CHAT) == " three four"
    assert [read_chunk(one, CHAT).finish_reason for one in out] == [None, None, "length"]
    assert joint.finished
    (told,) = through(joint, [compact({"choices": [], "usage": usage(12, 4)})])
    assert read_chunk(told, CHAT).usage.completion_tokens == 5  # by estimate it would be 13


def test_an_answer_that_had_reached_its_limit_gets_no_word_more_and_ends_as_the_engine_says():
    cut = through(Seam(first(), "one two", 2, (), 1, 2, 0), [chunk(" three", "stop")])
    assert (text_of(cut, CHAT), read_chunk(cut[0], CHAT).finish_reason) == ("", "length")
    ended = through(Seam(first(), "one two", 2, (), 1, 2, 0), [chunk(None, "stop")])
    assert read_chunk(ended[0], CHAT).finish_reason == "stop"


def test_blanks_that_are_said_again_do_not_count_against_the_limit():
    joint = Seam(first(), "one\n\n", 3, (), 1, 4, 1)
    out = through(joint, [chunk("\n"), chunk("\n"), chunk("two"), chunk("three")])
    assert text_of(out, CHAT) == "two"
    assert read_chunk(out[-1], CHAT).finish_reason == "length"


def test_without_a_limit_nothing_is_cut():
    out = through(Seam(first(), "one", 1, (), 1), [chunk(" a"), chunk(" b"), chunk(" c", "stop")])
    assert text_of(out, CHAT) == " a b c"


def test_text_is_gathered_from_what_was_kept():
    kept = [first(), chunk("a"), chunk(" b"), chunk(None, "stop"), DONE]
    assert text_of(kept, CHAT) == "a b"
    assert text_of([chunk("x", api=COMPLETIONS)], COMPLETIONS) == "x"
    assert text_of([], CHAT) == ""


def test_tokens_of_blanks_that_are_not_sent_back_are_said_again():
    said = [first(), chunk("Well"), chunk(",\n"), chunk("\n"), chunk(None), chunk("  ")]
    assert said_again(said, CHAT) == 2  # the first of the line ends belongs to the comma's token
    assert said_again([*said, chunk("so"), DONE], CHAT) == 0
    assert said_again([first(), chunk("\n"), DONE], CHAT) == 1  # the blanks are all there is
    assert said_again([chunk("\n", api=COMPLETIONS)], COMPLETIONS) == 0  # sent exactly
    assert said_again([], CHAT) == 0


@pytest.mark.parametrize("api", list(StreamApi))
def test_the_second_stream_goes_by_the_names_of_the_first(api):
    joint = seam("Hello", api=api, system_fingerprint="f1")
    out = through(joint, [chunk(" you", api=api, system_fingerprint="f2", service_tier="x")])
    told = json.loads(out[0])
    assert (told["id"], told["created"], told["model"]) == ("first", 5, "first")
    assert told["system_fingerprint"] == "f1"
    assert "service_tier" not in told  # the first stream had none
    assert text_of(out, api) == " you"


def test_there_is_one_role():
    joint = seam("Hello")
    assert through(joint, [chunk("", role=True), chunk(None, role=True)]) == []
    (out,) = joint.rewrite(chunk(" you", role=True))
    assert json.loads(out)["choices"][0]["delta"] == {"content": " you"}


@pytest.mark.parametrize("api", list(StreamApi))
def test_the_last_chunk_says_that_it_was_continued(api):
    joint = seam("Hello", number=2, api=api)
    out = through(joint, [chunk(" you", api=api), chunk(None, "length", api=api)])
    assert [json.loads(one).get("holdfast") for one in out] == [None, {"continued": 2}]
    assert read_chunk(out[1], api).finish_reason == "length"
    assert joint.finished
    assert not joint.stopped


def test_nothing_is_said_behind_the_finish():
    joint = seam("Hello")
    late = [chunk(None, "stop"), chunk("more"), chunk(None, "stop"), DONE]
    assert len(through(joint, late)) == 2  # the finish and the end


def test_tokens_are_summed():
    joint = seam("Hello", tokens=7)
    details = {**usage(27, 5), "prompt_tokens_details": {"cached_tokens": 3}}
    (out,) = joint.rewrite(compact({"id": "x", "choices": [], "usage": details}))
    told = json.loads(out)
    assert told["usage"] == {**usage(20, 12), "prompt_tokens_details": {"cached_tokens": 3}}
    assert told["id"] == "first"
    (out,) = joint.rewrite(chunk(" you", usage=usage(3, 1)))
    assert json.loads(out)["usage"] == usage(0, 8)
    (out,) = joint.rewrite(chunk(" you", usage=None, timings={"predicted_n": 2}))
    assert json.loads(out)["timings"] == {"predicted_n": 9}
    (out,) = joint.rewrite(chunk(" you", timings="?"))
    assert json.loads(out)["timings"] == "?"


def test_an_error_is_not_relayed():
    assert seam("Hello").rewrite(b'{"error":{"code":500}}') == []


@pytest.mark.parametrize(
    "payload", [b"", b"{}", b"x", b'{"choices":[{"delta":{"role":1e999,"content":"x"}}]}']
)
def test_bytes_that_are_no_chunk_are_malformed(payload):
    with pytest.raises(MalformedStreamError):
        seam("Hello").rewrite(payload)


@pytest.mark.parametrize("payload", [b"", b"[]", b'{"choices":1e999}'])
def test_a_first_chunk_that_cannot_be_read_is_malformed(payload):
    with pytest.raises(MalformedStreamError):
        Seam(payload, "", 0, (), 1)


def test_a_first_chunk_without_an_object_tells_the_api_by_its_choice():
    joint = Seam(b'{"choices":[{"text":""}]}', "a\n", 1, (), 1)
    assert text_of(joint.rewrite(chunk("\nb", api=COMPLETIONS)), COMPLETIONS) == "\nb"
    joint = Seam(b'{"choices":[]}', "a\n", 1, (), 1)
    assert text_of(joint.rewrite(chunk("\nb")), CHAT) == "b"


def test_a_tool_call_after_the_seam_passes_with_what_was_held():
    joint = seam("it ends with EN", stop=("ENDING",))
    assert joint.rewrite(chunk("D")) == []
    call = [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]
    delta = {"role": "assistant", "content": None, "tool_calls": call}
    (out,) = joint.rewrite(compact({"choices": [{"index": 0, "delta": delta}]}))
    assert json.loads(out)["choices"][0]["delta"] == {"content": "D", "tool_calls": call}


# --- nothing is said twice ------------------------------------------------------------------------

LONG = "The quick brown fox jumps over the lazy dog"


@pytest.mark.parametrize("api", list(StreamApi))
@pytest.mark.parametrize("piece", [1, 4, 40, 100])
def test_an_echo_of_what_was_said_is_dropped(piece, api):
    whole = LONG + " and sleeps."
    pieces = [whole[at : at + piece] for at in range(0, len(whole), piece)]
    joint = seam(LONG, api=api)
    out = through(joint, [*(chunk(one, api=api) for one in pieces), chunk(None, "stop", api=api)])
    assert text_of(out, api) == " and sleeps."


def test_what_only_begins_like_an_echo_is_kept():
    joint = seam(LONG)
    out = through(joint, [chunk("The "), chunk("quick "), chunk("answer"), chunk(".", "stop")])
    assert text_of(out, CHAT) == "The quick answer."
    joint = seam(LONG)
    out = through(joint, [chunk("The quick "), chunk(None, "stop")])
    assert text_of(out, CHAT) == "The quick "
    assert json.loads(out[-1])["choices"][0]["finish_reason"] == "stop"


def test_an_echo_that_is_cut_short_by_the_end_is_text():
    out = through(seam(LONG), [chunk(LONG[:30], "length")])
    assert text_of(out, CHAT) == LONG[:30]


@pytest.mark.parametrize("said", ["ha", "yes, ", "ha ha ha ha ha ha ", "0, " * 20])
def test_an_answer_that_repeats_itself_is_no_echo(said):
    assert len(said) < ECHO_CHARS_MIN or said in (said + said)[1:-1]
    out = through(seam(said, api=COMPLETIONS), [chunk(said * 2, "stop", api=COMPLETIONS)])
    assert text_of(out, COMPLETIONS) == said * 2


@pytest.mark.parametrize(
    ("said", "pieces", "rest"),
    [
        ("Well.\n\n", ["\n\n", "Next"], "Next"),
        ("Well.\n\n", ["\n\nNext"], "Next"),
        ("Well.\n\n", ["\n", "\n", "Next"], "Next"),
        ("Well.\n\n", ["\n", "Next"], "Next"),
        ("Well.\n\n", ["Next"], "Next"),
        ("Well. ", [" Next"], "Next"),
        ("Well. ", ["  Next"], " Next"),
        ("if x:\n", ["\n    return"], "    return"),
        ("Well.", [" Next"], " Next"),
        ("Well.\n", ["\n", "\n", "Next"], "\nNext"),
    ],
)
def test_blanks_that_a_chat_says_again_are_dropped(said, pieces, rest):
    out = through(seam(said), [*map(chunk, pieces), chunk(None, "stop")])
    assert text_of(out, CHAT) == rest


def test_blanks_of_completions_are_new():
    out = through(seam("Well.\n", api=COMPLETIONS), [chunk("\nNext", "stop", api=COMPLETIONS)])
    assert text_of(out, COMPLETIONS) == "\nNext"


# --- stop strings across the seam -----------------------------------------------------------------


@pytest.mark.parametrize("api", list(StreamApi))
@pytest.mark.parametrize("pieces", [["D rest"], ["D"], ["", "D", "x"]])
def test_a_stop_string_that_began_before_the_cut_stops(pieces, api):
    joint = seam("the EN", stop=("STOP", "END"), api=api)
    out = through(joint, [chunk(piece, api=api) for piece in pieces])
    assert text_of(out, api) == ""
    assert read_chunk(out[-1], api).finish_reason == "stop"
    assert json.loads(out[-1])["holdfast"] == {"continued": 1}
    assert joint.stopped
    assert joint.finished
    assert through(joint, [chunk("more", api=api), chunk(None, "length", api=api)]) == []
    last = compact({"choices": [], "usage": usage(20, 9)})
    assert json.loads(joint.rewrite(last)[0])["usage"] == usage(17, 12)


def test_text_that_may_be_part_of_a_stop_string_waits():
    joint = seam("the E", stop=("ENDING",))
    assert through(joint, [chunk("N"), chunk("DI")]) == []
    (out,) = joint.rewrite(chunk("VE in"))
    assert text_of([out], CHAT) == "NDIVE in"
    assert not joint.stopped


def test_text_that_waited_goes_out_with_the_finish():
    joint = seam("the E", stop=("ENDING",))
    out = through(joint, [chunk("N"), chunk("D", "length")])
    assert text_of(out, CHAT) == "ND"
    assert read_chunk(out[-1], CHAT).finish_reason == "length"


def test_of_several_stop_strings_the_first_that_is_complete_counts():
    joint = seam("abab", stop=("ababX", "abY", "bZZZ"))
    assert joint.rewrite(chunk("Z")) == []
    (out,) = joint.rewrite(chunk("ZQ"))
    assert text_of([out], CHAT) == "ZZQ"
    (out,) = seam("abab", stop=("ababX", "abY")).rewrite(chunk("Y more"))
    assert read_chunk(out, CHAT).finish_reason == "stop"


def test_a_stop_string_completed_by_an_echo_released_at_the_end_still_stops():
    joint = seam("A sentence of some length", stop=("lengthA",))
    out = through(joint, [chunk("A sen"), chunk(None, "length")])
    assert text_of(out, CHAT) == ""
    assert read_chunk(out[-1], CHAT).finish_reason == "stop"


def test_a_stop_string_wholly_behind_the_seam_is_the_engines_business():
    joint = seam("hello", stop=("END",))
    assert text_of(joint.rewrite(chunk(" the END")), CHAT) == " the END"


# --- any cut --------------------------------------------------------------------------------------

WORDS = st.lists(
    st.text("abcdefg.,!é谢", min_size=1, max_size=7).map(lambda word: word + " ")
    | st.sampled_from(["\n\n", " ", "the ", "yes, ", '"', "\\", "}\n"]),
    min_size=1,
    max_size=30,
)


def engine(words, start, api, *, echo="", role=True):
    """What a replica streams that goes on with the answer from here, counting as vLLM does."""
    tokens = 10 + start
    if role:
        yield chunk("", api=api, role=True, usage=usage(tokens, 0))
    if echo:
        yield chunk(echo, api=api, usage=usage(tokens, 0))
    for said, word in enumerate(words, 1):
        yield chunk(word, api=api, usage=usage(tokens, said))
    yield chunk(None, "stop", api=api, usage=usage(tokens, len(words)))


@settings(max_examples=150)
@given(
    WORDS,
    st.lists(st.integers(0, 100), min_size=1, max_size=3),
    st.sampled_from(list(StreamApi)),
    st.booleans(),
)
def test_wherever_it_is_cut_the_client_sees_one_answer(words, cuts, api, echoing):
    """Cut, continued, cut again: one text, one role, one id, one finish reason, one sum."""
    places = sorted(cut % (len(words) + 1) for cut in cuts)
    kept = list(engine(words, 0, api))[: places[0] + 1]
    kept = [part.replace(b'"new"', b'"first"') for part in kept]
    for number, following in enumerate([*places[1:], None], 1):
        said, place = text_of(kept, api), counted(kept, api)
        # Words that the seam held back when the next cut came were not said.
        assert said == "".join(words[:place])
        assert place == places[number - 1] or number > 1
        sent = said.rstrip() if api is CHAT else said
        blanks = said[len(sent) :]
        honest = (blanks + "".join(words[place:])).startswith(sent)  # it repeats itself
        echoable = len(sent) >= ECHO_CHARS_MIN and sent not in (sent + sent)[1:-1]
        assume(not (honest and echoable))
        stream = list(engine(words[place:], place, api, echo=sent if echoing and echoable else ""))
        if blanks:
            stream.insert(-1 - len(words[place:]), chunk(blanks, api=api))
        if following is not None:
            stream = stream[: len(stream) - 1 - (len(words) - following)]
        kept += through(Seam(kept[0], said, place, (), number), stream)
    assert text_of(kept, api) == "".join(words)
    told = [json.loads(part) for part in kept]
    assert {part["id"] for part in told} == {"first"}
    assert [part["choices"][0]["finish_reason"] for part in told].count("stop") == 1
    assert told[-1]["choices"][0]["finish_reason"] == "stop"
    assert told[-1]["holdfast"] == {"continued": len(places)}
    assert told[-1]["usage"] == usage(10, len(words))
    assert sum("role" in part["choices"][0].get("delta", {}) for part in told) == (api is CHAT)


@settings(max_examples=150)
@given(
    st.text("abE N", max_size=12),
    st.text("abENDX ", max_size=20),
    st.lists(st.integers(1, 4), min_size=1, max_size=8),
    st.lists(st.text("abEND", min_size=1, max_size=5), max_size=3),
)
def test_a_stop_string_is_honoured_wherever_the_cut_falls(said, rest, sizes, stops):
    """As if one engine had looked for the stop strings that begin before the cut and end behind."""
    ends = [
        len(stop) - k
        for stop in stops
        for k in range(1, len(stop))
        if said.endswith(stop[:k]) and rest.startswith(stop[k:])
    ]
    pieces, at = [], 0
    for size in sizes * 20:
        pieces.append(rest[at : at + size])
        at += size
        if at >= len(rest):
            break
    joint = seam(said, stop=tuple(stops), api=COMPLETIONS)
    payloads = [chunk(piece, api=COMPLETIONS) for piece in pieces]
    out = through(joint, [*payloads, chunk(None, "length", api=COMPLETIONS)])
    finishes = [read_chunk(part, COMPLETIONS).finish_reason for part in out]
    assert [reason for reason in finishes if reason] == ["stop" if ends else "length"]
    assert text_of(out, COMPLETIONS) == ("" if ends else rest)


@settings(max_examples=150)
@given(st.binary(max_size=60), st.text(max_size=20))
def test_arbitrary_payloads_are_rewritten_or_malformed(payload, said):
    joint = seam(said)
    try:
        joint.rewrite(payload)
    except MalformedStreamError:
        assert not joint.finished
