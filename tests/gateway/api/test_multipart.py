import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.gateway.api import multipart
from holdfast.gateway.api.errors import ApiError
from holdfast.gateway.api.multipart import Field

FORM = (
    b"--XX\r\n"
    b'Content-Disposition: form-data; name="model"\r\n\r\n'
    b"whisper\r\n"
    b"--XX\r\n"
    b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n'
    b"Content-Type: audio/wav\r\n\r\n"
    b"RIFF\r\n--X\r\n\x00\xff\r\n"
    b"--XX--\r\n"
)


def part(head: bytes, value: bytes = b"v") -> bytes:
    return b"--XX\r\n" + head + b"\r\n\r\n" + value + b"\r\n--XX--\r\n"


def refusal(body: bytes, fields_max: int = 64) -> ApiError:
    with pytest.raises(ApiError) as caught:
        multipart.parse(body, b"XX", fields_max)
    assert caught.value.status == 400
    return caught.value


def test_fields_and_files_are_read():
    model, file = multipart.parse(FORM, b"XX", 64)
    assert (model.name, model.text(), model.filename) == ("model", "whisper", None)
    assert (file.name, file.filename, file.content_type) == ("file", "a.wav", b"audio/wav")
    assert bytes(file.value) == b"RIFF\r\n--X\r\n\x00\xff"


def test_contents_are_not_copied():
    file = multipart.parse(FORM, b"XX", 64)[1]
    assert isinstance(file.value, memoryview)
    assert file.value.obj is FORM


def test_a_form_may_end_without_a_line_break_and_be_empty():
    assert len(multipart.parse(FORM[:-2], b"XX", 64)) == 2
    assert multipart.parse(b"--XX--\r\n", b"XX", 64) == []


def test_an_empty_value_is_a_value():
    (field,) = multipart.parse(part(b'content-disposition: form-data; name="a"', b""), b"XX", 1)
    assert field.text() == ""


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        (b"multipart/form-data; boundary=XX", b"XX"),
        (b"Multipart/Form-Data;boundary=XX", b"XX"),
        (b'multipart/form-data; boundary="a:b=c"', b"a:b=c"),
        (
            b"multipart/form-data; boundary=----WebKitFormBoundaryAbC1",
            b"----WebKitFormBoundaryAbC1",
        ),
    ],
)
def test_the_boundary_is_found(content_type, boundary):
    assert multipart.boundary_of(content_type) == boundary
    assert multipart.boundary_of(multipart.content_type_of(boundary)) == boundary


@pytest.mark.parametrize(
    "content_type",
    [
        b"",
        b"application/json",
        b"multipart/form-data",
        b"multipart/form-data; boundary=",
        b'multipart/form-data; boundary=""',
        b"multipart/form-data; boundary=a b",
        b"multipart/form-data; boundary=a; boundary=b",
        b"multipart/form-data; charset=utf-8; boundary=a",
        b"multipart/form-data; boundary=" + b"a" * 71,
        b"multipart/mixed; boundary=a",
        b"multipart/form-data; boundary=a\r\nx: y",
    ],
)
def test_without_a_plain_boundary_it_is_no_form(content_type):
    with pytest.raises(ApiError) as caught:
        multipart.boundary_of(content_type)
    assert caught.value.status == 415


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--",
        b"--XX",
        b"--XX\r\n",
        b"--XX\n",
        b"preamble\r\n" + FORM,
        FORM + b"epilogue",
        FORM.replace(b"--XX--\r\n", b""),
        FORM.replace(b"--XX\r\n", b"--XX \r\n"),
        FORM.replace(b"\r\n", b"\n"),
        b'--XX\r\ncontent-disposition: form-data; name="a"\r\n\r\n--XX--\r\n',
        b"--XX\r\n\r\nvalue\r\n--XX--\r\n",
        part(b"content-type: text/plain"),
        part(b"content-disposition: form-data"),
        part(b'content-disposition: form-data; name=""'),
        part(b"content-disposition: form-data; name=a"),
        part(b'content-disposition: attachment; name="a"'),
        part(b'content-disposition: form-data; name="a"; name="b"'),
        part(
            b'content-disposition: form-data; name="a"\r\ncontent-disposition: form-data; name="b"'
        ),
        part(b'content-disposition : form-data; name="a"'),
        part(b'content-disposition: form-data; name="a"\r\n folded: x'),
        part(b'content-disposition: form-data; name="a\x00"'),
        part(b'content-disposition: form-data; name="\xff"'),
        part(b'content-disposition: form-data; name="' + b"a" * 65 + b'"'),
        part(b'content-disposition: form-data; name="a"; filename="' + b"a" * 256 + b'"'),
        part(b'content-disposition: form-data; name="a"\r\ncontent-transfer-encoding: base64'),
        part(b'content-disposition: form-data; name="a"\r\ncontent-type: \x01'),
        part(b'content-disposition: form-data; name="a"\r\nno colon'),
        part(b'content-disposition: form-data; name="a"\r\nx: ' + b"y" * 4000),
        part(b'content-disposition: form-data; name="a"\r\n: nameless'),
        part(
            b'content-disposition: form-data; name="a"\r\n'
            + b"\r\n".join(b"x%d: y" % index for index in range(9))
        ),
    ],
)
def test_what_parsers_disagree_on_is_refused(body):
    refusal(body)


def test_bytes_behind_the_last_boundary_are_refused_without_a_copy():
    body = FORM + b"\n" * 20_000_000
    tracemalloc.start()
    refusal(body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_the_number_of_fields_is_bounded():
    form = multipart.encode([Field(f"f{index}", b"v") for index in range(5)], b"XX")
    assert len(multipart.parse(form, b"XX", 5)) == 5
    assert "4" in refusal(form, 4).message


def test_a_form_is_written_as_it_was_read():
    again = multipart.encode(multipart.parse(FORM, b"XX", 64), b"XX")
    fields = multipart.parse(again, b"XX", 64)
    assert [(f.name, f.filename, f.content_type, bytes(f.value)) for f in fields] == [
        ("model", None, b"", b"whisper"),
        ("file", "a.wav", b"audio/wav", b"RIFF\r\n--X\r\n\x00\xff"),
    ]


def test_a_quote_in_a_name_cannot_end_it():
    escaped = part(b'content-disposition: form-data; name="a"; filename="x\\"; name=\\"model\\\\"')
    (field,) = multipart.parse(escaped, b"XX", 1)
    assert '"' in (field.filename or "")
    written = multipart.encode([field], b"XX")
    (again,) = multipart.parse(written, b"XX", 1)
    assert again.name == "a"
    assert b"\\" not in written


def test_a_field_that_is_not_text_reads_as_nothing():
    assert Field("a", b"\xff").text() == ""


def test_a_field_encoded_for_other_languages_keeps_its_plain_name():
    head = b'content-disposition: form-data; name="f"; filename="e.wav"; filename*=UTF-8\'\'%C3%A9'
    assert multipart.parse(part(head), b"XX", 1)[0].filename == "e.wav"


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_fields_or_refused(body):
    for form in (body, b"--XX\r\n" + body, FORM[:40] + body + FORM[40:]):
        try:
            fields = multipart.parse(form, b"XX", 4)
        except ApiError:
            continue  # the only exception there is
        assert len(fields) <= 4


names = st.text(
    st.characters(min_codepoint=32, max_codepoint=0x2FF), min_size=1, max_size=20
).filter(lambda name: not set(name) & set('"\\\x7f'))


@given(st.lists(st.tuples(names, st.binary(max_size=50), st.none() | names), max_size=5))
def test_what_is_written_is_read_again(parts):
    fields = [Field(name, value, filename) for name, value, filename in parts]
    again = multipart.parse(multipart.encode(fields, b"b0undary"), b"b0undary", 5)
    assert [(f.name, bytes(f.value), f.filename) for f in again] == parts
