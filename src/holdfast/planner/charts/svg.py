"""Writes charts as SVG, without a library: a page of shapes is a page of tags.

The text of a chart stays text, so that it can be searched, and read aloud; title and axes are its
description.
"""

from xml.sax.saxutils import escape, quoteattr

from holdfast.planner.answer import PlanChart
from holdfast.planner.charts.shapes import HEIGHT, WIDTH, Box, Label, Mark, Path, Shape, lay_out


def svg(chart: PlanChart) -> str:
    """A chart as one SVG document."""
    told = f"{chart.y_label} by {chart.x_label}" if chart.x_label else chart.y_label
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img" '
        f"aria-label={quoteattr(f'{chart.title}: {told}')} "
        'font-family="system-ui, Helvetica, Arial, sans-serif" fill="#222222">'
    )
    shapes = [_tag(shape) for shape in lay_out(chart)]
    return "\n".join([head, f"<title>{escape(chart.title)}</title>", *shapes, "</svg>\n"])


def _tag(shape: Shape) -> str:
    if isinstance(shape, Path):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
        dashes = " ".join(f"{each:g}" for each in shape.dashes)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        look = f'fill="none" stroke="{shape.colour}" stroke-width="{shape.width:g}"'
        return f'<polyline points="{points}" {look} stroke-linejoin="round"{dashed}/>'
    if isinstance(shape, Box):
        place = f'x="{shape.x:.1f}" y="{shape.y:.1f}"'
        size = f'width="{shape.width:.1f}" height="{shape.height:.1f}"'
        return f'<rect {place} {size} fill="{shape.colour}"/>'
    if isinstance(shape, Mark):
        return _mark(shape)
    return _text(shape)


def _mark(mark: Mark) -> str:
    if mark.shape == 0:
        return (
            f'<circle cx="{mark.x:.1f}" cy="{mark.y:.1f}" r="{mark.size:g}" fill="{mark.colour}"/>'
        )
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in outline(mark))
    return f'<polygon points="{points}" fill="{mark.colour}"/>'


def outline(mark: Mark) -> list[tuple[float, float]]:
    """The corners of a mark that is no circle."""
    x, y, s = mark.x, mark.y, mark.size
    if mark.shape == 1:
        return [(x - s, y - s), (x + s, y - s), (x + s, y + s), (x - s, y + s)]
    if mark.shape == 2:
        return [(x, y - s * 1.3), (x + s * 1.3, y), (x, y + s * 1.3), (x - s * 1.3, y)]
    return [(x, y - s * 1.2), (x + s * 1.1, y + s * 0.9), (x - s * 1.1, y + s * 0.9)]


def _text(label: Label) -> str:
    turned = f' transform="rotate(-90 {label.x:.1f} {label.y:.1f})"' if label.upright else ""
    weight = ' font-weight="600"' if label.bold else ""
    place = f'x="{label.x:.1f}" y="{label.y:.1f}" font-size="{label.size:g}"'
    return f'<text {place} text-anchor="{label.anchor}"{weight}{turned}>{escape(label.text)}</text>'


__all__ = ["outline", "svg"]
