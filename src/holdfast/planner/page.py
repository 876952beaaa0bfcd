"""Plans as plain data for pages and programs: the fields of each, and answers with drawn charts."""

from dataclasses import asdict
from typing import Any

from holdfast.planner import PLANS
from holdfast.planner.answer import PlanAnswer
from holdfast.planner.charts.svg import svg
from holdfast.planner.question import FieldKind


def page_of(answer: PlanAnswer) -> dict[str, Any]:
    """An answer with all that its command prints, and its charts as SVG."""
    return {
        **answer.to_dict(),
        "opening": answer.opening,
        "remarks": list(answer.remarks),
        "tables": [asdict(table) for table in answer.tables],
        "charts": [{"title": chart.title, "svg": svg(chart)} for chart in answer.charts],
    }


def plans() -> list[dict[str, Any]]:
    """Every plan with its fields; files are left out, since the server's are nobody's business."""
    return [
        {
            "plan": kind.name,
            "title": kind.title,
            "fields": [
                field.to_dict() for field in kind.fields if field.kind is not FieldKind.FILE
            ],
        }
        for kind in PLANS.values()
    ]


__all__ = ["page_of", "plans"]
