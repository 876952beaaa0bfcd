"""CPU per refresh of ``holdfast top``: its own listing beside Textual's DataTable.

    python bench/top_table.py [ROWS …]          40 and 1,000 rows unless given

Both show the view *replicas* of one fleet whose figures change between two refreshes, on a screen
of 160 × 50. Of the DataTable only cells that differ are updated, and columns keep their widths:
its cheapest way. Work that both need, making the text of a cell, is counted for both.
"""

import asyncio
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from textual.app import App, ComposeResult
from textual.widgets import DataTable

from holdfast.ui.terminal.top.listing import Listing
from holdfast.ui.terminal.top.table import RowSelection, TableSection, lines_of
from holdfast.ui.terminal.top.views import view

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "ui"))
fleets: Any = import_module("fleets")  # what the screens of the tests show

_SIZE: Final = (160, 50)
_REFRESHES: Final = 3


class ListingApp(App[None]):
    """The listing alone."""

    def compose(self) -> ComposeResult:
        """One widget."""
        yield Listing()

    def show(self, snapshot: Any) -> None:
        """Another snapshot."""
        lines = lines_of(view("replicas", snapshot), _SIZE[0], RowSelection())
        self.query_one(Listing).show(lines)


class DataTableApp(App[None]):
    """A DataTable with the same columns."""

    def compose(self) -> ComposeResult:
        """One widget."""
        yield DataTable(cursor_type="row")

    def show(self, snapshot: Any) -> None:
        """Another snapshot: rows that are new are added, cells that differ are updated."""
        table: DataTable[str] = self.query_one(DataTable)
        for part in view("replicas", snapshot):
            if not isinstance(part, TableSection):
                continue
            columns = part.table.columns
            if not table.columns:
                for column in columns:
                    table.add_column(column.heading, key=column.heading)
            for row in part.rows:
                key = part.table.key(row)
                cells = [column.text(row) for column in columns]
                if key not in table.rows:
                    table.add_row(*cells, key=key)
                    continue
                shown = table.get_row(key)
                for column, cell, before in zip(columns, cells, shown, strict=True):
                    if cell != before:
                        table.update_cell(key, column.heading, cell)


async def cpu_ms(app: Any, rows: int) -> float:
    """The CPU time of one refresh with its painting, in milliseconds."""
    async with app.run_test(size=_SIZE) as pilot:
        app.show(fleets.big(replicas=rows, version=1))
        await pilot.pause()
        snapshots = [fleets.big(replicas=rows, version=2 + at) for at in range(_REFRESHES)]
        began = time.process_time()
        for snapshot in snapshots:
            app.show(snapshot)
            await pilot.pause()
        return (time.process_time() - began) / _REFRESHES * 1e3


def main() -> None:
    """Print both figures for each number of rows."""
    for rows in [int(word) for word in sys.argv[1:]] or [40, 1000]:
        listing = asyncio.run(cpu_ms(ListingApp(), rows))
        table = asyncio.run(cpu_ms(DataTableApp(), rows))
        print(f"{rows:5} rows: listing {listing:7.1f} ms, DataTable {table:7.1f} ms a refresh")


if __name__ == "__main__":
    main()
