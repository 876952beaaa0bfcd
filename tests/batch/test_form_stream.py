"""An upload form is the same form however its bytes are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.batch.api_errors import ApiRefusalError
from holdfast.batch.form_stream import FileBegun, FileData, FileEnded, FormField, FormStream

TYPE = "multipart/form-data; boundary=xyz"


def form(content, name="in.jsonl"):
    return (
        b'--xyz\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="%b"\r\n'
        b"content-type: application/jsonl\r\n\r\n%b\r\n--xyz--\r\n" % (name.encode(), content)
    )


def read(data, cuts):
    stream = FormStream(TYPE)
    events, begin = [], 0
    for cut in [*sorted(cuts), len(data)]:
        events += stream.feed(data[begin:cut])
        begin = cut
    return stream, events


@given(
    st.binary(max_size=300).filter(lambda data: b"\r\n--xyz" not in data),
    st.lists(st.integers(0, 400), max_size=12),
)
def test_any_cut_gives_the_same_file(content, cuts):
    data = form(content)
    stream, events = read(data, [cut for cut in cuts if cut <= len(data)])
    assert stream.complete
    assert [event for event in events if isinstance(event, FormField)] == [
        FormField("purpose", "batch")
    ]
    assert FileBegun("file", "in.jsonl") in events
    assert b"".join(e.data for e in events if isinstance(e, FileData)) == content
    assert events[-1] == FileEnded()


def test_a_byte_at_a_time_holds_back_no_more_than_a_boundary():
    stream = FormStream(TYPE)
    for byte in form(b"x" * 5_000):
        stream.feed(bytes([byte]))
        assert len(stream._held) < 200
    assert stream.complete


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_nothing_but_a_line_break_stands_around_the_boundaries(size):
    data = b"\r\n" + form(b"abc")
    stream, events = read(data, range(size, len(data), size))
    assert stream.complete
    assert FileData(b"abc") in events or size == 1
    endless = FormStream(TYPE)
    endless.feed(form(b"abc"))
    with pytest.raises(ApiRefusalError):
        endless.feed(b"\n" * size)


def test_what_precedes_the_first_boundary_is_refused_before_it_is_much():
    stream = FormStream(TYPE)
    with pytest.raises(ApiRefusalError):
        stream.feed(b"\r\n" * 100)


def test_an_incomplete_form_is_not_complete():
    stream, events = read(form(b"abc")[:-20], [])
    assert not stream.complete
    assert FileEnded() not in events


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"garbage\r\n--xyz\r\n", "precede"),
        (b"--xyzMORE\r\n", "follow a boundary"),
        (b"--xyz\r\ncontent-type: x\r\n\r\nabc", "no name"),
        (b"--xyz\r\n" + b"a" * 5_000, "no end of its headers"),
        (form(b"1")[:-8] + b"--xyz\r\n" + form(b"2")[7:], "one file"),
        (form(b"1") + b"x", "follow its last boundary"),
        (form(b"1")[:-2] + b"\n", "follow its last boundary"),
        (form(b"1") + b"\r\n", "follow its last boundary"),
        (b"\r\n" * 2 + form(b"1"), "precede"),
    ],
)
def test_malformed_forms_are_refused_with_the_reason(data, said):
    with pytest.raises(ApiRefusalError) as refused:
        read(data, [])
    assert said in refused.value.message


def test_another_type_is_refused():
    with pytest.raises(ApiRefusalError) as refused:
        FormStream("application/json")
    assert refused.value.status == 415
