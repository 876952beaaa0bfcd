"""Writes charts as PNG, without a library: shapes become pixels, pixels a compressed image.

Edges are smoothed by how much of a pixel a line covers. Rejected: a plotting library as an extra;
it weighs forty megabytes for six kinds of charts, and the shapes are there already. Rejected:
turning the SVG into pixels; that takes a browser.
"""

import itertools
import struct
import zlib
from math import ceil, floor, hypot
from typing import Final

from holdfast.planner.answer import PlanChart
from holdfast.planner.charts.shapes import HEIGHT, WIDTH, Box, Label, Mark, Path, lay_out
from holdfast.planner.charts.stroke_font import ADVANCE, BASELINE, strokes
from holdfast.planner.charts.svg import outline

SCALE: Final = 2.0  # pixels of the image for each unit that a chart is laid out in
_X_UNIT, _Y_UNIT = 0.095, 0.12  # of a text's size
_INK: Final = (0x22, 0x22, 0x22)

Point = tuple[float, float]
Colour = tuple[int, int, int]


def png(chart: PlanChart) -> bytes:
    """A chart as one PNG file."""
    canvas = _Canvas(int(WIDTH * SCALE), int(HEIGHT * SCALE))
    for shape in lay_out(chart):
        if isinstance(shape, Box):
            canvas.box(shape.x, shape.y, shape.width, shape.height, _colour(shape.colour))
        elif isinstance(shape, Path):
            for start, end in _pieces(shape):
                canvas.line(start, end, shape.width, _colour(shape.colour))
        elif isinstance(shape, Mark):
            canvas.mark(shape)
        else:
            canvas.text(shape)
    return canvas.file()


def _colour(text: str) -> Colour:
    return int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16)


def _pieces(path: Path) -> list[tuple[Point, Point]]:
    """The straight pieces of a line; of a dashed one those that are drawn."""
    found: list[tuple[Point, Point]] = []
    dashes = path.dashes or (1e9,)
    number, left = 0, dashes[0]
    for before, after in zip(path.points, path.points[1:], strict=False):
        at, length = 0.0, hypot(after[0] - before[0], after[1] - before[1])
        while length - at > 1e-9:
            span = min(left, length - at)
            if number % 2 == 0:
                found.append(
                    (_along(before, after, at, length), _along(before, after, at + span, length))
                )
            at += span
            left -= span
            if left <= 1e-9:
                number += 1
                left = dashes[number % len(dashes)]
    return found


def _along(start: Point, end: Point, at: float, length: float) -> Point:
    share = at / length
    return start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share


class _Canvas:
    """Pixels of an image, three bytes each."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.rows = [bytearray(b"\xff" * (3 * width)) for _ in range(height)]

    def box(self, x: float, y: float, width: float, height: float, colour: Colour) -> None:
        left, right = (max(0, min(self.width, round(at * SCALE))) for at in (x, x + width))
        upper, lower = (max(0, min(self.height, round(at * SCALE))) for at in (y, y + height))
        filled = bytes(colour) * (right - left)
        for row in range(upper, lower):
            self.rows[row][3 * left : 3 * right] = filled

    def blend(self, x: int, y: int, colour: Colour, share: float) -> None:
        if not (0 <= x < self.width and 0 <= y < self.height):
            return
        row, at = self.rows[y], 3 * x
        for part in range(3):
            before = row[at + part]
            row[at + part] = round(before + (colour[part] - before) * share)

    def line(self, start: Point, end: Point, width: float, colour: Colour) -> None:
        """A straight line with round ends; pixels near it are covered by their distance from it."""
        x0, y0 = start[0] * SCALE, start[1] * SCALE
        x1, y1 = end[0] * SCALE, end[1] * SCALE
        half = width * SCALE / 2.0
        dx, dy = x1 - x0, y1 - y0
        length2 = dx * dx + dy * dy
        steep = abs(dy) > abs(dx)
        low, high = (min(y0, y1), max(y0, y1)) if steep else (min(x0, x1), max(x0, x1))
        reach = half + 1.0
        slope = 0.0 if not length2 else (dx / dy if steep else dy / dx)
        # Across the line a pixel lies further off than along the axis, by up to the root of two.
        band = reach * (1.0 + abs(slope))
        for major in range(floor(low - reach), ceil(high + reach) + 1):
            centre = (x0 + (major - y0) * slope) if steep else (y0 + (major - x0) * slope)
            for minor in range(floor(centre - band), ceil(centre + band) + 1):
                x, y = (minor, major) if steep else (major, minor)
                along = 0.0
                if length2:
                    along = max(0.0, min(1.0, ((x - x0) * dx + (y - y0) * dy) / length2))
                distance = hypot(x - x0 - along * dx, y - y0 - along * dy)
                cover = half + 0.5 - distance
                if cover > 0:
                    self.blend(x, y, colour, min(1.0, cover))

    def mark(self, mark: Mark) -> None:
        """A filled sign: a circle, or the polygon that SVG has."""
        colour = _colour(mark.colour)
        if mark.shape == 0:
            self.line((mark.x, mark.y), (mark.x, mark.y), 2.0 * mark.size, colour)
            return
        corners = [(x * SCALE, y * SCALE) for x, y in outline(mark)]
        upper, lower = min(y for _, y in corners), max(y for _, y in corners)
        for row in range(ceil(upper), floor(lower) + 1):
            crossed = []
            for (xa, ya), (xb, yb) in zip(corners, [*corners[1:], corners[0]], strict=True):
                if ya != yb and min(ya, yb) <= row < max(ya, yb):
                    crossed.append(xa + (row - ya) * (xb - xa) / (yb - ya))
            if len(crossed) == 2:
                for column in range(ceil(min(crossed)), floor(max(crossed)) + 1):
                    self.blend(column, row, colour, 1.0)

    def text(self, label: Label) -> None:
        """A text in strokes, turned by a quarter where it reads upwards."""
        x_unit, y_unit = label.size * _X_UNIT, label.size * _Y_UNIT
        whole = (len(label.text) * ADVANCE - 1.7) * x_unit
        offset = {"start": 0.0, "middle": -whole / 2.0, "end": -whole}[label.anchor]
        width = label.size / (7.5 if label.bold else 10.5)
        for number, character in enumerate(label.text):
            for stroke in strokes(character):
                points = []
                for gx, gy in stroke:
                    across = offset + (number * ADVANCE + gx) * x_unit
                    above = (gy - BASELINE) * y_unit
                    turned = (label.x - above, label.y - across)
                    points.append(turned if label.upright else (label.x + across, label.y - above))
                for before, after in itertools.pairwise(points):
                    self.line(before, after, width, _INK)

    def file(self) -> bytes:
        head = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        pixels = zlib.compress(b"".join(b"\0" + bytes(row) for row in self.rows), 6)
        chunks = (_chunk(b"IHDR", head), _chunk(b"IDAT", pixels), _chunk(b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    check = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)


__all__ = ["png"]
