import struct
import zlib
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.planner.answer import ChartKind, ChartSeries, PlanChart
from holdfast.planner.charts.png import png
from holdfast.planner.charts.shapes import (
    COLOURS,
    HEIGHT,
    WIDTH,
    Label,
    Path,
    lay_out,
    log_ticks,
    tick_text,
    ticks,
)
from holdfast.planner.charts.stroke_font import strokes
from holdfast.planner.charts.svg import svg
from holdfast.planner.charts.sweep import SweptPoint, sweep_chart

SVG = "{http://www.w3.org/2000/svg}"


def chart(kind=ChartKind.LINE, **changed):
    usual = {
        "title": "Ready <replicas> & more",
        "x_label": "time, s",
        "y_label": "replicas",
        "series": (
            ChartSeries("one by one", ((0.0, 0.0), (100.0, 1.0), (200.0, 2.0))),
            ChartSeries("all at once", ((0.0, 0.0), (150.0, 0.0), (200.0, 2.0))),
        ),
        "kind": kind,
    }
    return PlanChart(**(usual | changed))


def test_a_chart_is_valid_svg_with_title_axes_and_units():
    root = ET.fromstring(svg(chart()))
    assert root.find(f"{SVG}title").text == "Ready <replicas> & more"
    texts = [element.text for element in root.iter(f"{SVG}text")]
    for told in ("time, s", "replicas", "one by one", "all at once"):
        assert told in texts
    assert root.get("role") == "img"


def test_series_differ_by_more_than_their_colour():
    lines = [
        element
        for element in ET.fromstring(svg(chart())).iter(f"{SVG}polyline")
        if element.get("stroke") in COLOURS[:2] and element.get("points").count(",") == 3
    ]
    assert len({element.get("stroke") for element in lines}) == 2
    assert len({element.get("stroke-dasharray") for element in lines}) == 2


def test_stacked_bars_stand_on_each_other_and_a_limit_is_drawn():
    bars = chart(
        ChartKind.BARS,
        series=(ChartSeries("a", ((0.0, 3.0),)), ChartSeries("b", ((0.0, 1.0),))),
        labels=("only",),
        limit=4.5,
        limit_label="the limit",
    )
    rects = [r for r in ET.fromstring(svg(bars)).iter(f"{SVG}rect") if r.get("fill") in COLOURS[:2]]
    lower, upper = [r for r in rects if float(r.get("height")) > 20]
    assert float(upper.get("y")) + float(upper.get("height")) == pytest.approx(
        float(lower.get("y")), abs=0.2
    )
    assert float(lower.get("height")) == pytest.approx(3 * float(upper.get("height")), rel=0.01)
    assert "the limit" in svg(bars)


def test_steps_go_sideways_before_they_go_up():
    one = chart(ChartKind.STEPS, series=(ChartSeries("s", ((0.0, 0.0), (1.0, 1.0))),))
    assert svg(one).count("polyline") > svg(chart(series=one.series)).count("polyline") - 1


@pytest.mark.parametrize(
    ("low", "high", "first", "last"),
    [(0, 186, 0, 200), (0, 0.9, 0, 1.0), (3, 3, 3, 6), (2.2, 9, 2, 10)],
)
def test_ticks_are_round_and_enclose_the_values(low, high, first, last):
    found = ticks(low, high)
    assert found[0] == pytest.approx(first)
    assert found[-1] == pytest.approx(last)


def test_ticks_have_the_digits_of_their_step():
    assert tick_text(0.25, 0.05) == "0.25"
    assert tick_text(2000, 500) == "2,000"
    assert tick_text(2e9, 5e8) == "2e+09"


values = st.floats(0.0, 1e9, allow_nan=False)


@given(st.lists(st.tuples(values, values), min_size=1, max_size=30))
def test_whatever_the_values_texts_stay_on_the_page(points):
    one = chart(series=(ChartSeries("s", tuple(sorted(points))),))
    for shape in lay_out(one):
        if isinstance(shape, Label):
            assert 0 <= shape.x <= WIDTH
            assert 0 <= shape.y <= HEIGHT
    ET.fromstring(svg(one))


def pixels_of(content):
    """The rows of a PNG without filters, as this writer makes it."""
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    found, at = {}, 8
    while at < len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        kind, body = content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        (check,) = struct.unpack(">I", content[at + 8 + length : at + 12 + length])
        assert check == zlib.crc32(kind + body)
        found[kind] = body
        at += 12 + length
    width, height = struct.unpack(">II", found[b"IHDR"][:8])
    raw = zlib.decompress(found[b"IDAT"])
    assert len(raw) == height * (1 + 3 * width)
    return width, height, raw


def test_the_same_shapes_become_pixels_in_the_same_colours():
    bars = chart(
        ChartKind.BARS,
        series=(ChartSeries("a", ((0.0, 3.0),)), ChartSeries("b", ((0.0, 1.0),))),
        labels=("only",),
        limit=4.5,
        limit_label="the limit",
    )
    width, height, raw = pixels_of(png(bars))
    assert (width, height) == (2 * WIDTH, 2 * HEIGHT)
    seen = {raw[at : at + 3] for at in range(1, len(raw) - 3, 3 * 97)}
    assert raw.count(bytes.fromhex(COLOURS[0][1:])) > 1000
    assert bytes.fromhex("ffffff") in seen
    assert raw.count(bytes.fromhex("222222")) > 100  # letters and axes


def test_lines_marks_dashes_and_upright_texts_are_drawn():
    series = tuple(ChartSeries(f"s{n}", ((0.0, n), (1.0, n + 1.0), (2.0, n))) for n in range(4))
    for kind in (ChartKind.LINE, ChartKind.STEPS):
        _, _, raw = pixels_of(png(chart(kind, series=series)))
        for colour in COLOURS[:4]:
            assert raw.count(bytes.fromhex(colour[1:])) > 200, colour


def test_every_letter_that_plans_print_has_strokes():
    for (
        character
    ) in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;-/()%=+±<>'*":
        assert strokes(character) != strokes("\N{SNOWMAN}"), character
        for stroke in strokes(character):
            assert all(0 <= x <= 4 and 0 <= y <= 8 for x, y in stroke)


def test_a_sweep_has_a_line_of_the_best_and_single_points_of_the_others():
    points = [
        SweptPoint(2.0, 30.0, "replicas=2", best=True),
        SweptPoint(3.0, 0.9, "replicas=3", best=True),
        SweptPoint(3.0, 1.4, "replicas=3 hedge", best=False),
    ]
    chart = sweep_chart(points, "3 versions", "replicas", "first token, s", log_service=True)
    shapes = lay_out(chart)
    named = [shape.text for shape in shapes if isinstance(shape, Label)]
    assert "replicas=2" in named
    assert "replicas=3 hedge" not in named
    assert [text for text in named if text in {"0.5", "1", "10", "50"}] == ["0.5", "1", "10", "50"]
    lines = [shape for shape in shapes if isinstance(shape, Path) and len(shape.points) == 2]
    assert any(shape.width == 2.5 and shape.points[0][1] != shape.points[1][1] for shape in lines)


def test_names_of_points_do_not_cover_each_other():
    crowd = [
        SweptPoint(1.0 + n / 1e6, 1.0, "a rather long name of a version", True) for n in range(9)
    ]
    chart = sweep_chart(crowd, "9", "replicas", "s")
    names = [one for one in lay_out(chart) if isinstance(one, Label) and "rather" in one.text]
    places = [(one.x, one.y) for one in names]
    assert 1 <= len(places) == len(set(places)) <= 4


@pytest.mark.parametrize(("low", "high"), [(0.9, 30.0), (1.0, 1.0), (1e-5, 1e5), (2.0, 5.0)])
def test_ticks_of_a_logarithmic_axis_enclose_the_values(low, high):
    marks = log_ticks(low, high)
    assert marks[0] <= low * (1 + 1e-9)
    assert marks[-1] >= high * (1 - 1e-9)
    assert len(marks) >= 2
    assert marks == sorted(marks)
