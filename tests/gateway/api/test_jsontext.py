import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw, UnsetType

from holdfast.gateway.api.errors import ApiError
from holdfast.gateway.api.jsontext import depth, open_object, with_members


class Sample(msgspec.Struct, gc=False):
    model: str | UnsetType | None = UNSET
    n: int | UnsetType | None = UNSET
    messages: list[Raw] | UnsetType | None = UNSET
    rest: Raw | UnsetType = UNSET


decode = msgspec.json.Decoder(Sample).decode
FIXES = {"n": "a whole number"}


def opened(text: bytes, depth_max: int = 64):
    return open_object(decode, text, FIXES, depth_max)


def refusal(text: bytes, depth_max: int = 64) -> ApiError:
    with pytest.raises(ApiError) as caught:
        opened(text, depth_max)
    assert caught.value.status == 400
    return caught.value


def test_a_clean_text_is_kept_byte_by_byte():
    text = b'{"rest":[{"a":1.50}],"n":1,"model":"m","messages":[{"x" : 1},2]}'
    members, kept, extras, _ = opened(text)
    assert kept is text
    assert (members.model, members.n, extras) == ("m", 1, {})
    assert bytes(members.messages[0]) == b'{"x" : 1}'


@pytest.mark.parametrize(
    "text",
    [
        b'{"model": "m", "n": 1}',
        b'\n{ "model" :\t"m" ,\r\n"n":1 } \n',
        b'{"model":"m","n":1}\n',
    ],
)
def test_blanks_are_taken_out(text):
    members, kept, extras, _ = opened(text)
    assert kept == b'{"model":"m","n":1}'
    assert (members.model, members.n, extras) == ("m", 1, {})


def test_members_that_are_not_known_pass_as_they_came():
    text = b'{"model":"m","min_p":0.10,"vendor":{"x" : 1e2}}'
    _, kept, extras, _ = opened(text)
    assert kept == text
    assert {name: bytes(raw) for name, raw in extras.items()} == {
        "min_p": b"0.10",
        "vendor": b'{"x" : 1e2}',
    }


@pytest.mark.parametrize(
    "text",
    [
        b'{"model":"a","model":"b"}',
        b'{"model":"a","mod\\u0065l":"b"}',
        b'{"mod\\u0065l":"b"}',
        b'{"model":"a","x":1,"model":"b","x":2}',
        b'{"model": "a", "model": "b"}',
        b'{"model":null,"model":"b"}',
        # As long as one without the second member would be if the user's breaks were escapes.
        b'{"model":"\\b\\b\\b","n":1,"n":2,"model":"b"}',
    ],
)
def test_a_member_named_twice_or_in_escapes_is_written_anew(text):
    members, kept, _, _ = opened(text)
    assert members.model == "b"
    pairs = json.loads(kept, object_pairs_hook=list)
    assert len({name for name, _ in pairs}) == len(pairs)
    assert dict(pairs)["model"] == "b"
    assert b"\\u" not in kept


def test_doubles_deep_inside_are_written_anew_only_with_their_parents():
    text = b'{"model":"m","rest":{"a":1,"a":2}}'
    assert opened(text)[1] is text


@pytest.mark.parametrize("name", ["Model", "MODEL", "me\u017f\u017fages", "N", "\\u004dodel"])
def test_a_name_that_go_would_take_for_ours_is_refused(name):
    text = f'{{"model":"m","{name}":"other"}}'.encode()
    error = refusal(text)
    assert error.param in {"model", "messages", "n"}


@pytest.mark.parametrize(
    "name",
    [
        "api_base",
        "base_url",
        "api_key",
        "custom_llm_provider",
        "API_BASE",
        "litellm_params",
        "kv_transfer_params",
        "custom_logit_processor",
        "priority",
        "aws_region_name",
        "ap\\u0069_key",
    ],
)
def test_what_a_client_must_not_choose_is_stripped(name):
    text = f'{{"model":"m","{name}":"http://evil","min_p":0.1}}'.encode()
    _, kept, extras, _ = opened(text)
    assert kept == b'{"model":"m","min_p":0.1}'
    assert set(extras) == {"min_p"}


def test_inside_a_prompt_such_words_are_only_words():
    text = b'{"model":"m","messages":[{"content":"\\"api_key\\": \\"model\\": MODEL"}]}'
    assert opened(text)[1] == text


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"\x00",
        b"{",
        b"}",
        b"{}}",
        b'{"a"}',
        b'{"a":}',
        b'{"a":1,}',
        b'{,"a":1}',
        b"{'a':1}",
        b"{a:1}",
        b'{"a":1 "b":2}',
        b'{"rest":[1,]}',
        b'{"rest":[1 2]}',
        b'{"rest":NaN}',
        b'{"rest":Infinity}',
        b'{"rest":-Infinity}',
        b'{"rest":01}',
        b'{"rest":1.}',
        b'{"rest":.5}',
        b'{"rest":+1}',
        b'{"rest":0x1}',
        b'{"rest":tru}',
        b'{"rest":True}',
        b'{"rest":undefined}',
        b'{"rest":"\\ud800"}',
        b'{"rest":"\\udc00\\ud800"}',
        b'{"rest":"\\q"}',
        b'{"rest":"\\u12"}',
        b'{"rest":"a\nb"}',
        b'{"rest":"\x00"}',
        b'{"rest":"\x1f"}',
        b'{"rest":"\xff"}',
        b'{"rest":"\xc0\xaf"}',
        b'{"rest":"\xed\xa0\x80"}',
        b'{"\xff":1}',
        b'\xef\xbb\xbf{"model":"m"}',
        '{"model":"m"}'.encode("utf-16"),
        b'{"model":"m"} x',
        b'{"model":"m"}{"model":"m"}',
        b'{"model":"m"}\x00',
        b'{"model":"m"}\x0b',
        b'{"model":"m" /* c */}',
        b"[" * 100_000,
        b'{"rest":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"x":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"rest": ' + b"[" * 100_000,
    ],
    ids=lambda text: repr(text[:24]),
)
def test_what_is_not_json_is_refused(text):
    error = refusal(text)
    assert error.code == "invalid_json"
    assert "evil" not in error.message


@pytest.mark.parametrize("text", [b"[]", b'"model"', b"1", b"null", b"true", b'[{"model":"m"}]'])
def test_only_objects_are_requests(text):
    assert "object" in refusal(text).message


def test_a_wrong_type_names_the_member_and_the_fix():
    error = refusal(b'{"n":"my secret"}')
    assert (error.param, error.message) == ("n", "n must be a whole number.")


@pytest.mark.parametrize(
    "text",
    [
        b'{"rest":1e999}',
        b'{"rest":123456789012345678901234567890}',
        b'{"rest":-0}',
        b'{"rest":""}',
        b'{"":1}',
        b'{"rest":"\x7f\xe2\x80\xa8"}',
        b"{}",
        b'{"rest":"\\u0000\\ud83d\\ude00\\/"}',
    ],
)
def test_what_is_odd_and_valid_passes(text):
    assert opened(text)[1] == text


def test_a_number_that_no_float_holds_is_refused_when_it_must_be_written_anew():
    refusal(b'{"rest":1e999,"rest":1e999}')


def test_more_members_than_any_api_has_are_refused():
    text = b"{" + b",".join(b'"x%d":1' % index for index in range(300)) + b"}"
    assert "256" in refusal(text).message


def test_more_elements_than_fit_into_memory_are_refused_before_they_are_made():
    text = b'{"messages":[' + b"1," * 1_100_000 + b"1]}"
    assert "elements" in refusal(text).message
    text = b'{"rest":"' + b"x" * 2_500_000 + b'"}'
    assert opened(text)[1] is text


# --- depth ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"1", 0),
        (b"[]", 1),
        (b'{"a":[{"b":[]}]}', 4),
        (b'["[[[["]', 1),
        (b'["\\"[[[["]', 1),
        (b'["\\\\",[[]]]', 3),
        (b'["\\\\\\"[[[",[]]', 2),
    ],
)
def test_depth_is_counted_outside_of_strings(text, expected):
    assert depth(text) == expected


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def behind_commas(levels: int) -> bytes:
    """Objects that each stand behind a comma in a list of the one around it."""
    begin, end = b'{"a":[1,' * (levels // 2), b"]}" * (levels // 2)
    return begin + (b"{}" if levels % 2 else b"1") + end


@pytest.mark.parametrize(
    "deep",
    [
        lambda levels: b'{"rest":%b}' % nested(levels - 1),
        lambda levels: b'{"messages":[%b]}' % nested(levels - 2),
        lambda levels: b'{"messages":[1,%b,%b]}' % (b"{}," * 99 + b"{}", nested(levels - 2)),
        lambda levels: b'{"unknown":%b}' % nested(levels - 1),
        lambda levels: b'{"rest":%b}' % behind_commas(levels - 1),
        lambda levels: b'{"messages":[1,%b]}' % behind_commas(levels - 2),
        lambda levels: b'{"rest":["%b",%b]}' % (b"[{" * 100, nested(levels - 2)),
        lambda levels: b'{"messages":[{"c":"%b"},%b]}' % (b"[{" * 100, nested(levels - 2)),
        lambda levels: (
            b'{"rest": %b, "messages": [%b]}' % (nested(levels - 1), b"{}," * 99 + b"{}")
        ),
    ],
)
def test_the_limit_of_depth_is_exact(deep):
    opened(deep(64))
    assert "deep" in refusal(deep(65)).message
    opened(deep(10), 10)
    refusal(deep(11), 10)


def test_a_long_conversation_is_not_deep():
    message = b'{"role":"user","content":[{"type":"text","text":"a [1] {2}"}]}'
    text = b'{"messages":[%b]}' % b",".join([message] * 500)
    assert opened(text)[1] is text


trees = st.recursive(
    st.sampled_from([1, None, "", ",{", "[", '":[', "}{", '\\",{']),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=25,
)


@given(st.lists(trees, max_size=4), trees, st.integers(2, 9), st.booleans())
def test_what_is_too_deep_is_refused_and_nothing_else(messages, rest, depth_max, spaced):
    separators = (", ", ": ") if spaced else (",", ":")
    text = json.dumps({"messages": messages, "rest": rest}, separators=separators).encode()
    if depth(text) > depth_max:
        refusal(text, depth_max)
    else:
        opened(text, depth_max)


def test_lists_that_are_values_and_objects_are_counted():
    def counts(text, depth_max=64):
        return opened(text, depth_max)[3]

    assert counts(b'{"messages":[{"content":"[1] and [2]: {"}]}') == (1, 3)
    assert counts(b'{"messages":[{"content":[{"text":"a"}]}]}') == (2, 3)
    assert counts(b'{"messages":[{"content": [{"text":"a"}]}]}') == (2, 3)
    assert counts(b'{"messages":["\\":[", [1], [2]]}') == (1, 1)
    assert counts(b'{"rest":[]}') == (1, 1)
    many = b",".join([b'{"content":[]}'] * 100)
    assert counts(b'{"messages":[%b]}' % many) == (65, 101)
    prose = b'{"messages":[{"content":"%b"}]}' % (b"[1] " * 100)
    assert counts(prose) == (65, 2)  # not known, and more than one


# --- members set ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "members", "expected"),
    [
        (b"{}", {"a": 1}, {"a": 1}),
        (b'{"b":2}', {"a": [1]}, {"b": 2, "a": [1]}),
        (b'{"a":1,"b":2}', {"a": 3}, {"a": 3, "b": 2}),
        (b'{"b":{"a":1}}', {"a": 3}, {"b": {"a": 1}, "a": 3}),
        (b'{"b":2} ', {"a": 3}, {"b": 2, "a": 3}),
        (b'{"b":2}', {}, {"b": 2}),
        (b'{"b":2}', {"a": Raw(b'{"x":1}')}, {"b": 2, "a": {"x": 1}}),
    ],
)
def test_members_are_set_or_replaced(text, members, expected):
    pairs = json.loads(with_members(text, members), object_pairs_hook=lambda pairs: pairs)
    assert len(pairs) == len(expected)
    assert json.loads(with_members(text, members)) == expected


def test_members_cannot_be_set_in_what_is_no_object():
    with pytest.raises(ApiError):
        with_members(b'["a"]', {"a": 1})
    with pytest.raises(ApiError):
        with_members(b'{"a"', {"a": 1})


# --- the promise ----------------------------------------------------------------------------------

names = st.sampled_from(["model", "n", "x", "mod\\u0065l", "rest", "", "api_key", "\\u006e", "y"])
values = st.sampled_from(
    ['"a"', '"b"', '"\\b\\n\\u0041"', "1", "2", "null", "[1, 2]", "{}", "1.50", '"{\\"n\\":1}"']
)
blanks = st.sampled_from(["", "", "", " ", "\n", "\t  "])
pairs_of = st.lists(st.tuples(blanks, names, blanks, blanks, values, blanks), max_size=7)


@given(pairs_of, blanks, blanks)
def test_every_parser_reads_the_same_members_as_the_gateway(pairs, before, after):
    inside = ",".join(f'{a}"{name}"{b}:{c}{value}{d}' for a, name, b, c, value, d in pairs)
    text = f"{before}{{{inside}}}{after}".encode()
    try:
        members, kept, _, _ = opened(text)
    except ApiError:
        return  # a wrong type
    found = json.loads(kept, object_pairs_hook=lambda pairs: pairs)
    assert len({name.casefold() for name, _ in found}) == len(found)
    read = dict(found)
    assert "api_key" not in read
    last = {json.loads(f'"{pair[1]}"'): json.loads(pair[4]) for pair in pairs}
    last.pop("api_key", None)
    assert read == last or any(isinstance(value, dict | list) for value in last.values())
    for name in ("model", "n"):
        value = getattr(members, name)
        assert value == (read.get(name, UNSET))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_opened_or_refused(text):
    for body in (text, b'{"model":"m","rest":' + text + b"}", b'{"' + text + b'":1}'):
        try:
            _, kept, _, _ = opened(body)
        except ApiError:
            continue  # the only exception there is
        json.loads(kept)
