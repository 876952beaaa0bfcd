"""Tables as text: figures, columns that fit, and what is left out first."""

from dataclasses import dataclass, replace

import fleets
import pytest

from holdfast.core.view.snapshot import SourceRow
from holdfast.ui.terminal.top import figure_format as formatting
from holdfast.ui.terminal.top.colours import Tone
from holdfast.ui.terminal.top.fleet_tables import REPLICAS
from holdfast.ui.terminal.top.headline import Contact, fitted, fleet_line, source_line
from holdfast.ui.terminal.top.report_sections import incident, request
from holdfast.ui.terminal.top.row_status import mark, short_id
from holdfast.ui.terminal.top.table import (
    Column,
    FieldsSection,
    RowSelection,
    Table,
    TableSection,
    TextSection,
    lines_of,
)
from holdfast.ui.terminal.top.views import details, incident_row, view
from holdfast.ui.terminal.untrusted_text import clean

GIB = 1 << 30


@pytest.mark.parametrize(
    ("shown", "wanted"),
    [
        (formatting.of_total(48 * GIB, 186 * GIB), "48G/186G"),
        (formatting.of_total(14 * GIB, 31 * GIB), "14G/31G"),
        (formatting.of_total(None, None), "–"),
        (formatting.of_total(None, GIB), "–/1G"),
        (formatting.size(0), "0"),
        (formatting.size(3.5 * GIB), "3.5G"),
        (formatting.size(700), "700B"),
        (formatting.size(1_023.9 * GIB), "1T"),
        (formatting.count(None), "–"),
        (formatting.count(9_999), "9999"),
        (formatting.count(12_345), "12k"),
        (formatting.count(3_400_000), "3.4M"),
        (formatting.rate(0.83), "0.8"),
        (formatting.rate(0.05), "0.1"),
        (formatting.rate(0.049), "<0.1"),
        (formatting.rate(1 / 60), "<0.1"),  # one request in the last minute is not none
        (formatting.rate(0.0), "0"),
        (formatting.rate(None), "–"),
        (formatting.rate(2_379), "2.4k"),
        (formatting.left_of(0.5, 4.0), "0.5/4"),
        (formatting.left_of(None, None), "–"),
        (formatting.share(0.96), "96%"),
        (formatting.share(0.001), "<1%"),
        (formatting.share(0.0), "0%"),
        (formatting.span(44), "44s"),
        (formatting.span(-3), "0s"),
        (formatting.span(73 * 60), "73m"),
        (formatting.span(20_400), "6h"),
        (formatting.span(9 * 86_400), "9d"),
        (formatting.words_span(44), "44 s"),
        (formatting.words_span(73 * 60), "73 min"),
        (formatting.words_span(20_400), "5.7 h"),
        (formatting.words_span(9 * 86_400), "9 days"),
        (formatting.words_span(None), "an unknown time"),
        (formatting.latency(0.041), "41ms"),
        (formatting.latency(4.2), "4.2s"),
        (formatting.latency(250.0), "250s"),
        (formatting.latency(None), "–"),
        (formatting.bar(0.5, 4), "██"),
        (formatting.bar(2.0, 2), "██"),
        (formatting.bar(None, 4), ""),
        (clean("a\x1b[2Jb\tc"), "a·[2Jb·c"),
        (clean("naïve"), "naïve"),
        (formatting.cut("marigold", 5), "mari…"),
        (formatting.cut("日本語", 5), "日本…"),
        (formatting.cut("x", 0), ""),
        (formatting.clock(None), ""),
        (short_id("inc-000007"), "7"),
        (short_id("other"), "other"),
    ],
)
def test_figures_are_short_and_say_what_they_are(shown, wanted):
    assert shown == wanted


@dataclass
class Thing:
    name: str
    value: float | None = 1.0
    text: str = ""
    bad: bool = False


TABLE = Table(
    "things",
    "THINGS",
    (
        Column("", lambda row: "!" if row.bad else "", left=True),
        Column("name", lambda row: row.name, left=True, least=6),
        Column("value", lambda row: str(row.value), rank=1, order=lambda row: row.value),
        Column("text", lambda row: row.text, rank=20, left=True, least=8),
        Column("extra", lambda row: "12345", rank=30),
    ),
    key=lambda row: row.name,
    faulty=lambda row: row.bad,
    about=lambda row: row.text,
    severity=lambda row: int(row.bad),
)
THINGS = [Thing("one", 3.0, "hello"), Thing("two-is-long", None), Thing("three", 9.0, bad=True)]


def shown(width, looking=None, rows=THINGS, **settings):
    return [
        line.text.rstrip()
        for line in lines_of(
            [TableSection(TABLE, rows, **settings)], width, looking or RowSelection()
        )
    ]


def test_what_is_wrong_stands_first():
    assert [line.split()[0] for line in shown(60)] == ["THINGS", "!", "one", "two-is-long"]


def test_columns_leave_by_rank_and_names_are_cut_last():
    assert "extra" in shown(60)[0]
    assert "extra" not in shown(28)[0]
    assert "text" in shown(28)[0]
    assert "text" not in shown(22)[0]
    assert "two-is-long" in shown(22)[3]
    narrow = shown(14)
    assert "two-i…" in narrow[3]
    assert "value" in narrow[0]
    assert "value" not in shown(8)[0]


def test_a_column_that_nobody_fills_is_left_out():
    assert "text" not in shown(60, rows=[Thing("a")])[0]


def test_rows_are_sorted_as_told_and_unknown_ones_last():
    looking = RowSelection(orders={"things": ("value", True)})
    assert [line.split()[0] for line in shown(60, looking)[1:]] == ["!", "one", "two-is-long"]
    assert "value↓" in shown(60, looking)[0].replace(" ", "")
    looking = RowSelection(orders={"things": ("name", False)})
    assert next(line.split()[0] for line in shown(60, looking)[1:]) == "one"


def test_nothing_to_show_says_why():
    assert shown(60, rows=[]) == []
    assert shown(60, rows=[], empty="none yet") == ["   THINGS", "   none yet"]
    assert shown(60, RowSelection(words="xyz")) == ["   THINGS", "   none of 3 is shown"]
    assert shown(60, RowSelection(words="HELLO one"))[1].split()[0] == "one"


def test_words_and_facts_never_leave_the_width():
    long = "a very long sentence that goes on and on " * 5
    parts = [
        TextSection("T", [(f"   {long}", Tone.PLAIN)], indent=4),
        FieldsSection([("name", "x", Tone.PLAIN), ("other", long, Tone.BAD)], "F"),
        FieldsSection([], "NOTHING"),
    ]
    for width in (20, 40, 80, 200):
        lines = lines_of(parts, width, RowSelection())
        assert all(formatting.wide(line.text) <= width for line in lines)
        assert not [line for line in lines if "NOTHING" in line.text]


@pytest.mark.parametrize("width", [30, 40, 80, 97, 120, 160, 240])
def test_every_page_of_every_fleet_stays_within_its_width(width):
    for fleet in (fleets.calm(), fleets.busy(), fleets.broken(), fleets.big(30, 3)):
        pages = [
            view(name, fleet)
            for name in ("overview", "groups", "hosts", "replicas", "models", "queues", "disks")
        ]
        pages += [view("sources", fleet), view("incidents", fleet)]
        kinds = (fleet.groups, fleet.hosts, fleet.replicas, fleet.models, fleet.queues)
        rows = [*(kind[0] for kind in kinds), fleet.disks[0], *fleet.unmet, fleet.sources[0]]
        pages += [details(fleet, row) for row in rows]
        for page in pages:
            for line in lines_of(page, width, RowSelection(), airy=True):
                assert formatting.wide(line.text) <= width


def test_letters_that_a_terminal_would_obey_never_reach_it():
    row = replace(fleets.calm().replicas[0], id="x\x1b]0;owned\x07", reason="\x9b31m")
    text = "".join(
        line.text for line in lines_of([TableSection(REPLICAS, [row])], 160, RowSelection())
    )
    assert text.isprintable()


def test_marks_tell_of_several_incidents():
    row = replace(fleets.broken().groups[0], incidents=("inc-000003", "inc-000004"))
    assert mark(row) == "!3+"
    assert mark(replace(row, incidents=(), faults=("x",))) == "!"
    assert mark(replace(row, incidents=(), faults=())) == ""


def test_an_incident_is_found_by_id_and_by_number():
    broken = fleets.broken()
    assert incident_row(broken, "7") is incident_row(broken, "inc-000007") is not None
    assert incident_row(broken, "8") is None


def headline(snapshot, width=200, **contact):
    return "".join(text for text, _ in fleet_line(snapshot, Contact(**contact), width))


def sources(snapshot, aside_s=0.0, width=200):
    return "".join(text for text, _ in source_line(snapshot, aside_s, width))


def test_the_headline_says_whether_it_can_be_believed():
    assert headline(None, where="here") == " holdfast top  here: asking control …"
    assert headline(None, where="here", away="refused") == " holdfast top  here: refused"
    told = headline(fleets.calm(), away="refused: nobody listens", away_s=34)
    assert told.startswith(" ✗ control away for 34 s · picture of 14:30:00")
    assert "1 incident " in headline(
        replace(fleets.broken(), incidents=fleets.broken().incidents[:1])
    )


def test_the_line_of_sources_names_what_fails_first():
    assert sources(None) == ""
    assert "no source but the fleet itself" in sources(replace(fleets.calm(), sources=()))
    assert sources(fleets.calm(), 20.0).startswith(" ✓ sources aws, local: all 8 parts read")
    assert "the oldest 24 s ago" in sources(fleets.calm(), 20.0)
    away = "".join(text for text, _ in source_line(fleets.calm(), 0.0, 200, away=True))
    assert "✓" not in away
    broken = fleets.broken()
    more = (*broken.sources, SourceRow("k8s", "kubernetes", "pods", None, "connection refused"))
    told = sources(replace(broken, sources=more))
    assert told.startswith(" ! aws sqs: throttled: Rate exceeded, 2 min old · 1 more fail")
    never = (SourceRow("k8s", "kubernetes", "pods", None),)
    assert "k8s pods: not read yet, never read" in sources(replace(broken, sources=never))


def test_trouble_is_cut_and_the_rest_left_out_where_there_is_no_room():
    spans = [("good", Tone.PLAIN), (" trouble " * 5, Tone.BAD), (" more", Tone.PLAIN)]
    assert fitted(spans, 20)[-1][0].endswith("…")
    assert fitted([("good", Tone.PLAIN), (" long " * 9, Tone.MUTED), (" x", Tone.PLAIN)], 20) == [
        ("good", Tone.PLAIN),
        (" x", Tone.PLAIN),
    ]


def test_stories_show_what_is_there_and_no_more():
    text = "\n".join(line.text for line in lines_of(incident({}, 0.0), 80, RowSelection()))
    assert "failure" in text
    page = {**fleets.incident_page(), "about": "the fleet", "title": "", "opened_at": None}
    text = "\n".join(line.text for line in lines_of(incident(page, 0.0), 80, RowSelection()))
    assert "undersized of the fleet" in text
    failed = {**fleets.request_story(), "status": 504, "story": [{}]}
    text = "\n".join(line.text for line in lines_of(request(failed), 80, RowSelection()))
    assert "504 failed" in text
