"""Numbers in answers of rankings, tensors and classifiers: what is measured, what is left out."""

import json
import struct
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.gateway.telemetry.output_numbers import BYTES_MAX, measured_score, measured_tensors
from sampling import examples


def answer(*outputs):
    return json.dumps({"model_name": "m", "outputs": list(outputs)}).encode()


def tensor(data, shape=(1, 4), datatype="FP32", name="y", **more):
    return {"name": name, "datatype": datatype, "shape": list(shape), "data": data, **more}


# --- rankings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b'{"results":[{"index":1,"relevance_score":0.2},{"index":0,"relevance_score":0.9}]}',
        b'{"data":[{"score":0.9},{"score":-3}]}',
        b' [{"index":0,"score":0.9}]',
    ],
)
def test_a_ranking_is_measured_by_its_best_score_whatever_the_engine_calls_it(body):
    assert measured_score(body) == (("score", 0.9),)


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b'{"results":[]}', b'{"results":[{"index":1}]}', b"nonsense", b"[" * 5_000],
)
def test_a_ranking_without_scores_is_not_measured(body):
    assert measured_score(body) is None


def test_a_large_ranking_is_not_read():
    row = b'{"index":0,"relevance_score":0.5},'
    body = b'{"results":[' + row * (BYTES_MAX // len(row)) + b'{"relevance_score":0.5}]}'
    assert len(body) > BYTES_MAX
    assert measured_score(body) is None


# --- tensors --------------------------------------------------------------------------------------


def test_a_tensor_is_measured_by_the_mean_and_the_largest_of_its_first_row():
    flat = answer(tensor([0.1, 0.7, 0.1, 0.1, 9, 9, 9, 9], (2, 4)))
    nested = answer(tensor([[0.1, 0.7, 0.1, 0.1], [9, 9, 9, 9]], (2, 4)))
    for body in (flat, nested):
        assert measured_tensors(body) == (("y.mean", pytest.approx(0.25)), ("y.max", 0.7))


def test_one_number_and_whole_numbers_are_measured():
    assert measured_tensors(answer(tensor([3.5], (1,)))) == (("y.mean", 3.5), ("y.max", 3.5))
    label = answer(tensor([7], (1, 1), "INT64"))
    assert measured_tensors(label) == (("y.mean", 7.0), ("y.max", 7.0))


def test_classes_are_measured_by_the_score_of_the_first():
    body = answer(tensor(["0.91:3:cat", "0.05:1:dog"], (1, 2), "BYTES"))
    assert measured_tensors(body) == (("y.max", 0.91),)


def test_tensors_that_follow_in_binary_are_measured_each_from_its_place():
    def binary(name, datatype, raw, shape):
        size = {"binary_data_size": len(raw)}
        return {"name": name, "datatype": datatype, "shape": shape, "parameters": size}

    first = array("f", [1.0, 3.0]).tobytes()
    half = struct.pack("<2e", 0.5, 0.25)
    whole = array("q", [4, 8]).tobytes()
    head = answer(
        binary("a", "FP32", first, [1, 2]),
        binary("b", "FP16", half, [1, 2]),
        binary("c", "INT64", whole, [1, 2]),
    )
    assert measured_tensors(head, first + half + whole) == (
        ("a.mean", 2.0),
        ("a.max", 3.0),
        ("b.mean", 0.375),
        ("b.max", 0.5),
        ("c.mean", 6.0),
        ("c.max", 8.0),
    )
    assert measured_tensors(head, first) == (("a.mean", 2.0), ("a.max", 3.0))  # the rest is cut


@pytest.mark.parametrize(
    "output",
    [
        tensor(["a text"], (1, 1), "BYTES"),
        tensor([True], (1, 1), "BOOL"),
        tensor([], (1, 0)),
        tensor([1.0], name="a name with\nlines"),
        tensor("no list"),
        {"name": "y", "datatype": "FP32", "shape": [1]},
    ],
)
def test_what_is_no_row_of_numbers_is_not_measured(output):
    assert measured_tensors(answer(output)) is None


def test_many_outputs_are_measured_in_part_and_large_ones_not_at_all():
    many = answer(*(tensor([1.0], (1,), name=f"y{n}") for n in range(50)))
    assert len(measured_tensors(many)) == 8
    assert measured_tensors(answer(tensor([1.0])), bytes(BYTES_MAX)) is None


@given(st.binary(max_size=300), st.binary(max_size=64))
@settings(max_examples=examples(300))
def test_no_bytes_raise(head, rest):
    measured_tensors(head, rest)
    measured_score(head)
    measured_tensors(b'{"outputs":[{"name":"y","datatype":"FP32","data":' + head + b"}]}", rest)
