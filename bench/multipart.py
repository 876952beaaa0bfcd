"""Compares ``gateway/api/multipart.py`` with python-multipart: CPU time, and malformed forms.

    python bench/multipart.py          python-multipart is optional: without it, only our figures

Holdfast does not depend on python-multipart. Install it into an environment apart from the project
and put that on PYTHONPATH to get the second column; the script says so and skips it otherwise.

Timed are a typical upload to /v1/audio/transcriptions (200 KB of audio, four fields), a form of
two short fields, and an upload of 30 MB; the result is the list of fields with names, types and
values. python-multipart is called as cheaply as its API allows: the whole body in one ``write``,
values as views of the body, header values read by its own ``parse_options_header``.

The malformed forms are those that ``tests/gateway/api/test_multipart.py`` requires to be refused. A
form that python-multipart reads without an exception counts as refused all the same if its end was
not reported, or if a part has no name: a caller would have to check both.
"""

import logging
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from random import Random
from typing import Any, Final

from holdfast.gateway.api import multipart
from holdfast.gateway.api.errors import ApiError
from holdfast.gateway.api.multipart import Field

TESTS: Final = Path(__file__).parents[1] / "tests" / "gateway" / "api" / "test_multipart.py"
BOUNDARY: Final = b"----WebKitFormBoundary7MA4YWxkTrZu0gW"
FIELDS_MAX: Final = 64


def upload(audio_bytes: int) -> bytes:
    """Return a form of four plain fields and a file of so many random bytes."""
    audio = Random(1).randbytes(audio_bytes)
    fields = [
        Field("model", b"whisper-large-v3"),
        Field("language", b"en"),
        Field("response_format", b"json"),
        Field("temperature", b"0"),
        Field("file", audio, "speech.mp3", b"audio/mpeg"),
    ]
    return multipart.encode(fields, BOUNDARY)


def small() -> bytes:
    """Return a form of two short fields."""
    fields = [Field("model", b"whisper-large-v3"), Field("language", b"en")]
    return multipart.encode(fields, BOUNDARY)


class Collector:
    """Collects the fields that python-multipart's streaming parser reports for one form."""

    def __init__(self, library: Any, body: bytes, boundary: bytes) -> None:
        self.fields: list[Field] = []
        self.ended = False
        self._options_of = library.parse_options_header
        self._headers: dict[bytes, bytes] = {}
        self._name = self._value = b""
        self._pieces: list[memoryview] = []
        callbacks = {
            "on_part_begin": self._begin_part,
            "on_part_data": self._add_data,
            "on_part_end": self._end_part,
            "on_header_field": self._add_name,
            "on_header_value": self._add_value,
            "on_header_end": self._end_header,
            "on_end": self._end,
        }
        parser = library.MultipartParser(boundary, callbacks)
        parser.write(body)
        parser.finalize()

    def _begin_part(self) -> None:
        self._headers, self._pieces = {}, []

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        self._pieces.append(memoryview(data)[start:end])

    def _add_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name = self._value = b""

    def _end_part(self) -> None:
        _, options = self._options_of(self._headers.get(b"content-disposition"))
        filename = options.get(b"filename")
        pieces = self._pieces
        field = Field(
            options.get(b"name", b"").decode(),
            pieces[0] if len(pieces) == 1 else b"".join(pieces),
            None if filename is None else filename.decode(),
            self._headers.get(b"content-type", b""),
        )
        self.fields.append(field)

    def _end(self) -> None:
        self.ended = True


def cpu_us(call: Callable[[], object], times: int) -> float:
    """Return the CPU time of one call in microseconds, the best of seven rounds."""
    rounds = []
    for _ in range(7):
        began = time.process_time()
        for _ in range(times):
            call()
        rounds.append((time.process_time() - began) / times)
    return min(rounds) * 1e6


def malformed_forms() -> list[bytes]:
    """Return the forms that the tests require to be refused; their boundary is ``XX``."""
    spec = spec_from_file_location("test_multipart", TESTS)
    assert spec is not None
    assert spec.loader is not None
    tests = module_from_spec(spec)
    spec.loader.exec_module(tests)
    mark = tests.test_what_parsers_disagree_on_is_refused.pytestmark[0]
    return list(mark.args[1])


def refused_by_us(form: bytes) -> bool:
    """Whether ``gateway/api/multipart.py`` refuses a form."""
    try:
        multipart.parse(form, b"XX", FIELDS_MAX)
    except ApiError:
        return True
    return False


def accepted_by_library(library: Any, form: bytes) -> list[Field] | None:
    """Return the fields that python-multipart reads from a form, or None if it is refused."""
    try:
        collector = Collector(library, form, b"XX")
    except (library.FormParserError, UnicodeDecodeError):
        return None
    if not collector.ended or not all(field.name for field in collector.fields):
        return None
    return collector.fields


def main() -> None:
    """Print the CPU time of both parsers, and the malformed forms that the library accepts."""
    library = None
    logging.disable()  # python-multipart warns of every malformed form
    if find_spec("python_multipart") is None:
        print("python-multipart is not installed (it is optional): only our figures follow")
    else:
        library = import_module("python_multipart.multipart")
    for name, form, times in (
        ("audio upload, 200 KB", upload(200_000), 2_000),
        ("form of two short fields", small(), 5_000),
        ("audio upload, 30 MB", upload(30_000_000), 10),
    ):
        ours = cpu_us(partial(multipart.parse, form, BOUNDARY, FIELDS_MAX), times)
        line = f"{name:<26} ours {ours:9,.1f} µs"
        if library is not None:
            same = Collector(library, form, BOUNDARY).fields
            assert same == multipart.parse(form, BOUNDARY, FIELDS_MAX), "both read the same form"
            theirs = cpu_us(partial(Collector, library, form, BOUNDARY), times)
            line += f"   python-multipart {theirs:9,.1f} µs"
        print(line)
    forms = malformed_forms()
    print(f"malformed forms: {len(forms)}, refused by us: {sum(map(refused_by_us, forms))}")
    if library is None:
        return
    accepted = [(form, accepted_by_library(library, form)) for form in forms]
    passed = [(form, fields) for form, fields in accepted if fields is not None]
    print(f"accepted by python-multipart: {len(passed)}")
    for form, fields in passed:
        read = ", ".join(f"{field.name[:12]!r}" for field in fields)
        shown = repr(form) if len(form) < 100 else f"{form[:70]!r} … {form[-20:]!r}"
        print(f"  reads {read or 'no field'} from {shown}")


if __name__ == "__main__":
    main()
