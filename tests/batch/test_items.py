"""Names that no other names equal, and lines that stay lines whatever they repeat."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.batch.items import ItemQueue, answer_line, error_line, model_of, queue_of

NAMES = st.text("a/%2F5.", min_size=1, max_size=8)


@given(NAMES, NAMES)
def test_a_queues_name_tells_its_tenant_and_its_model(tenant, model):
    queue = ItemQueue(tenant, model)
    assert queue_of(queue.name) == queue
    assert model_of(queue.name, tenant) == model


def test_two_pairs_of_names_have_two_queues():
    assert ItemQueue("team/a", "m").name != ItemQueue("team", "a/m").name


def test_ordinary_names_are_what_they_were_and_earlier_ones_are_read():
    assert ItemQueue("red", "org/model").name == "batch/red/org/model"
    assert model_of("batch/team/a/m", "team/a") == "m"
    assert model_of("batch/team/a/m", "team") == "a/m"
    assert model_of("batch/50%/m", "50%") == "m"


@pytest.mark.parametrize(
    ("body", "read"),
    [
        (b'{\n  "a": 1,\r\n  "b": [\n2]\n}\n', {"a": 1, "b": [2]}),
        ('{"a": "x\u2028y\u2029z\x85"}'.encode(), {"a": "x\u2028y\u2029z\x85"}),
        (b'{"a": "\\n\\u2028"}', {"a": "\n\u2028"}),
        (b"upstream\nis away", None),
        (b'{"a": "\xff"}', None),
        (b"", None),
        (b"null", None),
        (b"[" * 100_000, None),
        (b'{"a":1}\n{"b":2}', None),
        (b'{"a": "' + b"x" * 2_000_000 + b'\\n"}', {"a": "x" * 2_000_000 + "\n"}),
    ],
)
def test_an_answer_is_one_line_whatever_the_engine_wrote(body, read):
    line = answer_line("batch_1/7", "c\u2028", 200, "req_1", body)
    told = line.decode()
    assert told.endswith("\n")
    assert len(told.splitlines()) == 1
    for loads in (json.loads, orjson.loads):
        assert loads(told)["response"]["body"] == read
        assert loads(told)["custom_id"] == "c\u2028"


def test_an_error_is_one_line():
    told = error_line("batch_1/7", "a\u2029b\nc\x85", "code", "line\u2028feed").decode()
    assert len(told.splitlines()) == 1
    assert json.loads(told)["error"]["message"] == "line\u2028feed"
