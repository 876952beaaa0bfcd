"""Writes an answer as one HTML page that needs nothing else: tables, words, charts as SVG."""

from collections.abc import Iterator
from html import escape

from holdfast.planner.answer import PlanAnswer, PlanTable
from holdfast.planner.charts.svg import svg

_STYLE = """
body { font: 16px/1.5 system-ui, Helvetica, Arial, sans-serif; color: #222; background: #fff;
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.verdict { font-weight: 600; font-size: 1.1rem; padding-left: .8rem;
  border-left: 4px solid #0072b2; }
.refused { border-left-color: #d55e00; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #d9d9d9; text-align: right; }
th.text, td.text { text-align: left; } tr.chosen { font-weight: 600; background: #eef5fa; }
svg { max-width: 100%; height: auto; margin: 1rem 0; }
.wide { overflow-x: auto; } footer { color: #555; margin-top: 2rem; font-size: .9rem; }
"""


def page(answer: PlanAnswer, title: str, made: str, *, refused: bool = False) -> str:
    """The whole page; ``made`` says by what and when."""
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
            f"<h1>{escape(title)}</h1>",
            f"<p>{escape(answer.opening)}</p>",
            f'<p class="verdict{" refused" if refused else ""}">{escape(answer.verdict)}</p>',
            *(f"<p>{escape(remark)}</p>" for remark in answer.remarks),
            *(line for table in answer.tables for line in _table(table)),
            *(f"<figure>{svg(chart)}</figure>" for chart in answer.charts),
            *(f"<p>{escape(note)}</p>" for note in answer.notes),
            f"<footer>{escape(made)}</footer>\n</body>\n</html>\n",
        ]
    )


def _table(table: PlanTable) -> Iterator[str]:
    yield f"<h2>{escape(table.title)}</h2>"
    yield '<div class="wide"><table><thead><tr>'
    for place, heading in enumerate(table.headings):
        yield f"<th{_class(place, table)}>{escape(heading)}</th>"
    yield "</tr></thead><tbody>"
    for number, row in enumerate(table.rows):
        yield '<tr class="chosen">' if number == table.marked else "<tr>"
        for place, cell in enumerate(row):
            yield f"<td{_class(place, table)}>{escape(cell)}</td>"
        yield "</tr>"
    yield "</tbody></table></div>"


def _class(place: int, table: PlanTable) -> str:
    return ' class="text"' if place < table.text_columns else ""


__all__ = ["page"]
