"""Text that others wrote: nothing in it moves a terminal, and JSON keeps its meaning."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.ui.terminal.untrusted_text import LogEscaper, clean, clean_lines, escape, escape_json

C1 = "".join(map(chr, range(0x80, 0xA0)))


@pytest.mark.parametrize("shown", [clean, clean_lines, escape])
def test_no_c1_control_character_is_shown_as_it_is(shown):
    told = shown(f"before{C1}\x7fafter, grün")
    assert not set(told) & set(C1 + "\x7f")
    assert told.startswith("before")
    assert told.endswith("after, grün")


def test_a_log_that_comes_in_pieces_is_escaped_too():
    escaper = LogEscaper()
    raw = f"a{C1}b\n".encode()
    told = "".join(escaper.feed(raw[i : i + 1]) for i in range(len(raw))) + escaper.close()
    assert not set(told) & set(C1)
    assert r"\x9b" in told


@given(st.text())
def test_json_means_the_same_and_has_no_control_characters(text):
    encoded = orjson.dumps({"text": text, "more": f"{text}{C1}\x7f"}).decode()
    told = escape_json(encoded)
    assert not set(told) & set(C1 + "\x7f")
    assert json.loads(told) == json.loads(encoded)
