"""``holdfast history``: write past figures as a table, for a spreadsheet or a notebook.

They come from the admin port of a fleet that runs, or from the folder of one that does not. The
rows are those that are kept, not those of a chart: nothing is averaged further than it is on disk.
"""

import csv
import json
import re
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final, Protocol
from urllib.parse import urlencode

import click

from holdfast.cli.admin_port import Admin, admin_of, which_admin, which_fleet
from holdfast.storage.history import FILE_NAME, HistoryConfig, HistoryError, Past, Question
from holdfast.storage.recall import ROWS_MAX, VALUES

_SPANS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_SPAN: Final = re.compile(r"(\d{1,9})([smhdw])")
_STEPS: Final = {"10s": 10.0, "1m": 60.0, "15m": 900.0}
_POINTS: Final = 2_000  # of one series in one answer
_NAMES: Final = 60  # in one question: fits a URL
_NO_PARQUET: Final = "Parquet needs pyarrow: pip install 'holdfast[parquet]'"

Row = tuple[str, float, float]  # series, time, value


class _Moment(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A time: so long ago, a date, or seconds since 1970."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds since 1970."""
        if isinstance(value, float):
            return value
        text = str(value).strip()
        ago = _SPAN.fullmatch(text)
        try:
            if text == "now":
                at = time.time()
            elif ago is not None:
                at = time.time() - int(ago[1]) * _SPANS[ago[2]]
            elif re.fullmatch(r"\d{9,11}(\.\d+)?", text):
                at = float(text)
            else:
                date = datetime.fromisoformat(text)
                at = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            at = -1.0
        if at < 0:
            fix = "use 90s, 30m, 2h or 7d for so long ago, or 2026-05-01T12:00 (UTC)"
            self.fail(f"{text[:100]!r} is no time; {fix}", param, ctx)
        return at


class _Keeper(Protocol):
    """Who has the figures."""

    @abstractmethod
    def names(self, prefix: str) -> list[str]:
        """Which series there are."""

    @abstractmethod
    def rows(self, names: Sequence[str], question: Question) -> dict[str, list[Any]]:
        """What they were."""


@dataclass(slots=True, frozen=True)
class _Running:
    """A fleet that runs."""

    admin: Admin

    def names(self, prefix: str) -> list[str]:
        found: list[str] = []
        more = True
        while more:
            asked = {"prefix": prefix, "limit": 5_000, "after": found[-1] if found else ""}
            page = self.admin.told(f"/history/series?{urlencode(asked)}")
            found += page["series"]
            more = bool(page["more"] and page["series"])
        return found

    def rows(self, names: Sequence[str], question: Question) -> dict[str, list[Any]]:
        asked: list[tuple[str, str]] = [("series", name) for name in names]
        asked += [
            ("since", f"{question.since:.3f}"),
            ("until", f"{question.until:.3f}"),
            ("points", str(question.points)),
            ("value", question.value),
            ("step", f"{question.step_s:g}"),
        ]
        found: dict[str, list[Any]] = self.admin.told(f"/history?{urlencode(asked)}")["series"]
        return found


@dataclass(slots=True, frozen=True)
class _Stopped:
    """The folder of a fleet."""

    past: Past

    def names(self, prefix: str) -> list[str]:
        return self.past.names(prefix)

    def rows(self, names: Sequence[str], question: Question) -> dict[str, list[Any]]:
        return self.past.query(names, question).series


@click.command()
@click.option("--series", "prefix", default="", help="Only series whose names begin so.")
@click.option("--since", type=_Moment(), default="2h", show_default=True, help="From when on.")
@click.option("--until", type=_Moment(), default="now", show_default=True, help="Until when.")
@click.option(
    "--step",
    type=click.Choice(["auto", *_STEPS]),
    default="auto",
    show_default=True,
    help="How fine; auto takes the finest that is kept for so long.",
)
@click.option(
    "--value",
    type=click.Choice(VALUES),
    default=VALUES[0],
    show_default=True,
    help="Of the samples of one step.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["csv", "parquet"]),
    help="Default: as the name of the file ends, else csv.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per row.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="A file.")
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="Read this folder, of a fleet that does not run.",
)
@which_admin
@which_fleet
def history(
    prefix: str,
    since: float,
    until: float,
    step: str,
    value: str,
    kind: str | None,
    output: Path | None,
    state: Path | None,
    url: str | None,
    token_env: str,
    ca: Path | None,
    config: Path | None,
    state_dir: Path | None,
    *,
    as_json: bool,
) -> None:
    """Write figures of the past as CSV, JSON lines or Parquet.

    One row for each series and time. What was not known has no row. Times are UTC. State folders
    are those of --state-dir.

    \b
    Examples:
      holdfast history --series model/smollm2/ --since 2h
      holdfast history --since 7d -o fleet.parquet
      holdfast history --series replica/ --since 2026-05-01T12:00 -o a.csv
      holdfast history --state ./state --since 1d -o last.csv
    """  # noqa: D301
    if not since < until:
        raise click.UsageError("--since must be before --until")
    if as_json and kind is not None:
        raise click.UsageError("--json and --format: choose one")
    as_parquet = not as_json and _is_parquet(kind, output)
    step_s = _step(step, since)
    question = Question(since // step_s * step_s, until, value=value, step_s=step_s)
    counted = _Counted()
    with _keeper(state, url, token_env, ca, config, state_dir) as keeper:
        names = keeper.names(prefix)
        if not names:
            told = f"no series begins with {prefix!r}" if prefix else "nothing was kept yet"
            raise click.ClickException(told)
        batches = counted.counting(_batches(keeper, names, question))
        if as_parquet:
            assert output is not None
            _write_parquet(output, batches)
        else:
            _write_text(output, batches, _json_rows if as_json else _csv_rows)
    if output is not None:
        click.echo(f"{output}: {counted.rows} rows of {len(counted.series)} series")


def _is_parquet(kind: str | None, output: Path | None) -> bool:
    found = kind or ("parquet" if output is not None and output.suffix == ".parquet" else "csv")
    if found == "parquet":
        if output is None:
            raise click.UsageError("--format parquet needs a file: -o FILE")
        try:
            import_module("pyarrow.parquet")  # an extra: whoever writes CSV does without
        except ImportError as error:
            raise click.ClickException(_NO_PARQUET) from error
    return found == "parquet"


def _step(step: str, since: float) -> float:
    if step != "auto":
        return _STEPS[step]
    config = HistoryConfig()
    age_s = time.time() - since
    fitting = (
        size for size, keep in zip(config.steps, config.keeps, strict=True) if age_s <= keep + 60
    )
    return next(fitting, config.steps[-1])


@contextmanager
def _keeper(
    state: Path | None,
    url: str | None,
    token_env: str,
    ca: Path | None,
    config: Path | None,
    state_dir: Path | None,
) -> Iterator[_Keeper]:
    try:
        if state is None:
            yield _Running(admin_of(url, token_env, config, state_dir, ca))
            return
        with closing(Past(state / FILE_NAME)) as past:
            yield _Stopped(past)
    except HistoryError as error:
        raise click.ClickException(str(error)) from error


def _batches(keeper: _Keeper, names: Sequence[str], question: Question) -> Iterator[list[Row]]:
    """The rows in parts that an answer can hold; of each series in the order of time."""
    assert question.step_s is not None
    whole = int((question.until - question.since) / question.step_s) + 2
    points = max(2, min(whole, _POINTS))
    many = max(1, min(_NAMES, ROWS_MAX // (2 * points)))
    span_s = (points - 1) * question.step_s
    for place in range(0, len(names), many):
        part = names[place : place + many]
        since = question.since
        while since < question.until:
            until = min(since + span_s, question.until)
            asked = Question(since, until, points, question.value, question.step_s)
            found = keeper.rows(part, asked)
            # Both ends belong to an answer; the next begins with what this one ended with.
            last = until == question.until
            yield [
                (name, at, value)
                for name in part
                for at, value in found.get(name, ())
                if value is not None and since <= at and (at < until or last)
            ]
            since = until


class _Counted:
    """What went by."""

    def __init__(self) -> None:
        self.rows = 0
        self.series: set[str] = set()

    def counting(self, batches: Iterator[list[Row]]) -> Iterator[list[Row]]:
        for batch in batches:
            self.rows += len(batch)
            self.series.update(row[0] for row in batch)
            yield batch


# --- files ----------------------------------------------------------------------------------------


def _write_text(
    output: Path | None,
    batches: Iterator[list[Row]],
    write: Callable[[IO[str], Iterator[list[Row]]], None],
) -> None:
    if output is None:
        write(sys.stdout, batches)
        return
    with _draft(output) as draft, draft.open("w", encoding="utf-8", newline="") as stream:
        write(stream, batches)


def _json_rows(stream: IO[str], batches: Iterator[list[Row]]) -> None:
    for batch in batches:
        for name, at, value in batch:
            row = {"series": name, "time": _clock(at), "value": value}
            stream.write(f"{json.dumps(row)}\n")


def _csv_rows(stream: IO[str], batches: Iterator[list[Row]]) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("series", "time", "value"))
    for batch in batches:
        writer.writerows((name, _clock(at), f"{value:.12g}") for name, at, value in batch)


def _clock(at: float) -> str:
    told = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return told.replace("+00:00", "Z")


def _write_parquet(output: Path, batches: Iterator[list[Row]]) -> None:
    pa: Any = import_module("pyarrow")
    pq: Any = import_module("pyarrow.parquet")
    schema = pa.schema(
        [
            ("series", pa.dictionary(pa.int32(), pa.string())),
            ("time", pa.timestamp("ms", tz="UTC")),
            ("value", pa.float64()),
        ]
    )
    with _draft(output) as draft, pq.ParquetWriter(draft, schema, compression="zstd") as writer:
        for batch in batches:
            columns = {
                "series": [row[0] for row in batch],
                "time": [round(row[1] * 1_000) for row in batch],
                "value": [row[2] for row in batch],
            }
            if batch:
                writer.write_table(pa.table(columns, schema=schema))


@contextmanager
def _draft(output: Path) -> Iterator[Path]:
    """A file beside it that takes its name when it is whole."""
    draft = output.with_name(f"{output.name}.part")
    try:
        yield draft
        draft.replace(output)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise click.ClickException(f"{output}: {error.strerror}") from error
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


__all__ = ["history"]
