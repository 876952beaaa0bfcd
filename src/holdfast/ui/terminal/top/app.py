"""The screen of ``holdfast top``, as a Textual application.

    ✓ live 14:30:00 · ! 3 incidents · …        how the fleet is
    ! aws sqs: throttled, 2 min old · …        whether the data is current
    overview › parler-tts-0        1–19 of 40  the current page
    …                                          the listing
    exit 137, OutOfMemoryError …               what is wrong with the chosen row
    1 overview … / filter : command ? help     keys, or what is being typed

One screen and a stack of pages, not a stack of screens: each page is only a list of sections, so
filter, sorting and cursor work everywhere alike, and going back costs nothing.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.worker import Worker

from holdfast.core.view.snapshot import IncidentRow, ReplicaRow, Snapshot
from holdfast.ui.terminal.top.colours import DARK, LIGHT, Tone
from holdfast.ui.terminal.top.commands import ORDERS, CommandError, parse, suggestions
from holdfast.ui.terminal.top.headline import Contact, fitted, fleet_line, source_line
from holdfast.ui.terminal.top.link import Link, LinkError
from holdfast.ui.terminal.top.listing import Listing
from holdfast.ui.terminal.top.pages import (
    DetailPage,
    HelpPage,
    IncidentPage,
    LogPage,
    Page,
    StoryPage,
    ViewPage,
)
from holdfast.ui.terminal.top.prompt import Prompt, TonedLine
from holdfast.ui.terminal.top.snapshot_feed import PollIntervals, SnapshotFeed
from holdfast.ui.terminal.top.table import RowSelection, Span, lines_of
from holdfast.ui.terminal.top.views import VIEWS, name_of

_FOOTER: Final = "1–7 views  Enter open  Esc back  / filter  ! faults  : command  ? help  q quit"
_MORE_KEYS: Final = "  l log  i incident  s sort  r refresh  t theme"  # where there is room


@dataclass(slots=True)
class _Step:
    """A place and how one stood there."""

    place: Page
    key: str = ""
    top: int = 0
    looking: RowSelection = field(default_factory=RowSelection)


class TopApp(App[None]):
    """The application of ``holdfast top``: shows snapshots and handles keys and commands."""

    ENABLE_COMMAND_PALETTE = False
    TITLE = "holdfast top"
    CSS = """
    Screen { layout: vertical; }
    TonedLine { height: 1; width: 100%; }
    Listing { height: 1fr; width: 100%; }
    Prompt { height: 1; width: 100%; display: none; }
    Prompt Input { height: 1; width: 1fr; border: none; padding: 0; }
    Prompt Input:focus { border: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(at), f"view('{name}')", show=False) for at, name in enumerate(VIEWS, 1)),
        # Before anybody else sees the key: what is typed behind it belongs to the prompt.
        Binding("slash", "filter", show=False, priority=True),
        Binding("colon", "command", show=False, priority=True),
        Binding("exclamation_mark", "faults", show=False),
        Binding("question_mark,f1", "help", show=False),
        Binding("escape,backspace", "leave", show=False),
        Binding("s", "sort", show=False),
        Binding("S", "turn", show=False),
        Binding("l", "log", show=False),
        Binding("i", "incident", show=False),
        Binding("r", "again", show=False),
        Binding("t", "colours", show=False),
        Binding("q", "quit", show=False),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(
        self,
        link: Link,
        *,
        dark: bool = True,
        first: Snapshot | None = None,
        clock: Callable[[], float] = time.monotonic,
        pace: PollIntervals | None = None,
    ) -> None:
        super().__init__()
        self.link = link
        self.colours = DARK if dark else LIGHT
        self.snapshot = first
        self.contact = Contact(where=link.url)
        self.message = ""  # said once, until the next key
        self._up = False  # its parts are there
        self._strokes: dict[str, TonedLine] = {}
        self._clock = clock
        self._came_at = clock()
        self._steps = [_Step(ViewPage("overview"))]
        self._asking: Worker[None] | None = None
        self.watch_of = SnapshotFeed(link, self.take, self._lost, pace)
        self._away_at = 0.0
        self._question: tuple[str, str] | None = None  # an order and a replica

    # --- its parts -------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """The widgets of the screen, from top to bottom."""
        yield TonedLine(id="fleet")
        yield TonedLine(id="sources")
        yield TonedLine(id="crumbs")
        yield Listing()
        yield TonedLine(id="about")
        yield Prompt()
        yield TonedLine(id="keys")

    def on_mount(self) -> None:
        """Start the snapshot feed and the timers."""
        self.listing = self.query_one(Listing)
        self.prompt = self.query_one(Prompt)
        self._strokes = {str(one.id): one for one in self.query(TonedLine)}
        self._up = True
        self._paint()
        self.listing.focus()
        self.run_worker(self.watch_of.run(), group="watch")
        self.set_interval(1.0, self._heads)
        self.call_after_refresh(self.show)

    def on_unmount(self) -> None:
        """Mark the screen as closed, so that late snapshots are not shown."""
        self._up = False

    def on_resize(self) -> None:
        """Lay the page out for another width."""
        self.call_after_refresh(self.show)

    @property
    def step(self) -> _Step:
        """The current page, with its filter, sorting and cursor."""
        return self._steps[-1]

    # --- what control tells ----------------------------------------------------------------------

    def take(self, snapshot: Snapshot) -> None:
        """Show a new snapshot."""
        self.snapshot = snapshot
        self._came_at = self._clock()
        self.contact.away = ""
        self.show()

    def _lost(self, reason: str) -> None:
        if not self.contact.away:
            self._away_at = self._came_at
        self.contact.away = reason
        self._heads()

    # --- showing ---------------------------------------------------------------------------------

    def show(self, *, key: str | None = None, top: int | None = None) -> None:
        """Redraw everything from the last snapshot."""
        if not self._up or self.snapshot is None:
            self._heads()
            return
        step, width = self.step, self.size.width
        sections = step.place.sections(self.snapshot)
        lines = lines_of(sections, width, step.looking, airy=True)
        if isinstance(step.place, ViewPage) and len(lines) > self.listing.size.height:
            lines = [line for line in lines if not line.free]
        self.listing.follow = step.place.follows
        self.listing.show(lines, key=key, top=top)
        self._heads()

    def _heads(self) -> None:
        """The lines around the listing."""
        if not self._up:
            return
        aside = self._clock() - self._came_at
        self.contact.away_s = self._clock() - self._away_at
        width = self.size.width
        self._line("fleet", fleet_line(self.snapshot, self.contact, width, aside))
        away = bool(self.contact.away)
        self._line("sources", source_line(self.snapshot, aside, width, away=away))
        self._line("crumbs", self._crumbs(width), "band")
        self._line("about", self._about(width))
        keys = [(f" {_FOOTER}", Tone.MUTED), (_MORE_KEYS, Tone.MUTED)]
        self._line("keys", fitted(keys, width), "band")

    def _line(self, name: str, spans: list[Span], ground: str = "page") -> None:
        self._strokes[name].show(spans, self.colours, ground)

    def _crumbs(self, width: int) -> list[Span]:
        names = [step.place.crumb for step in self._steps]
        looking = self.step.looking
        spans: list[Span] = [(f" {' › '.join(names)}", Tone.STRONG)]
        if looking.only_faults:
            spans.append(("  ! only what is wrong", Tone.WARN))
        if looking.words:
            spans.append((f"  / {looking.words}", Tone.WARN))
        if self.listing.position:
            spans.append((f"  {self.listing.position}", Tone.MUTED))
        return fitted(spans, width)

    def _about(self, width: int) -> list[Span]:
        """What was last said; else all that is wrong with the chosen row."""
        if self.message:
            return fitted([(f" {self.message}", Tone.WARN)], width)
        line = self.listing.line
        told = line.table.about(line.row) if line.table is not None and line.row is not None else ""
        return fitted([(f" {told}", Tone.PLAIN)], width) if told else []

    def say(self, text: str) -> None:
        """Show one sentence above the keys, until the next key."""
        self.message = text
        self._heads()

    def _paint(self) -> None:
        """In the colours of the theme."""
        self.theme = "textual-dark" if self.colours.dark else "textual-light"
        values = self.colours.values
        self.screen.styles.background = values["page"]
        self.listing.colours = self.colours
        self.listing.repaint_all()

    # --- going about -----------------------------------------------------------------------------

    def go(self, place: Page, *, anew: bool = False) -> None:
        """Open another page; ``anew`` clears the stack of pages first."""
        here = self.step
        here.key, here.top = self.listing.key, self.listing.top
        step = _Step(place, looking=RowSelection(orders=dict(here.looking.orders)))
        self._steps = [step] if anew else [*self._steps, step]
        self.message = ""
        self._ask()
        self.show(key="", top=0)
        if place.follows:
            self.listing.action_edge(1)

    def _ask(self) -> None:
        """Let the place ask for what it needs, and the one before no more."""
        if self._asking is not None:
            self._asking.cancel()
        place = self.step.place
        asking = place.ask(self.link, self.show)
        self._asking = self.run_worker(asking, group="place", exclusive=True)

    def action_view(self, name: str) -> None:
        """Open a view by its name and clear the stack of pages."""
        self.go(ViewPage(name), anew=True)

    def action_leave(self) -> None:
        """Clear the filter; without a filter, go back to the page before."""
        self.message = ""
        if self.step.looking.words:
            self.step.looking.words = ""
        elif self.step.looking.only_faults:
            self.step.looking.only_faults = False
        elif len(self._steps) > 1:
            self._steps.pop()
            self._ask()
            self.show(key=self.step.key, top=self.step.top)
            return
        elif not isinstance(self.step.place, ViewPage) or self.step.place.name != "overview":
            self.action_view("overview")
            return
        self.show()

    def on_listing_chosen(self, event: Listing.Chosen) -> None:
        """Open the page of the chosen row."""
        line = event.line
        if isinstance(line.row, IncidentRow):
            self.go(IncidentPage(line.row.id))
        elif line.table is not None:
            here = self.step.place
            if isinstance(here, DetailPage) and here.crumb == name_of(line.row):
                self.say(f"this is {here.crumb}")
                return
            self.go(DetailPage(line.table.name, line.table.key(line.row), line.row))

    def on_listing_moved(self) -> None:
        """Update the sentence about the row under the cursor."""
        self.message = ""
        self._heads()

    def action_help(self) -> None:
        """Open the page of keys and signs."""
        if not isinstance(self.step.place, HelpPage):
            self.go(HelpPage())

    def action_log(self) -> None:
        """Open the log of the chosen replica."""
        name = self._replica()
        if name:
            self.go(LogPage(name))
        else:
            self.say("no replica is chosen: go to its row, or type ':log ID'")

    def action_incident(self) -> None:
        """Open the first incident of the chosen row."""
        found = getattr(self.listing.line.row, "incidents", ())
        if isinstance(self.listing.line.row, IncidentRow):
            found = (self.listing.line.row.id,)
        if found:
            self.go(IncidentPage(found[0]))
        else:
            self.say("no incident concerns this row")

    def _replica(self) -> str:
        """The one that is meant where none is named."""
        row: Any = self.listing.line.row
        if isinstance(row, ReplicaRow):
            return row.id
        place = self.step.place
        if isinstance(place, DetailPage) and isinstance(place.row, ReplicaRow):
            return place.row.id
        return place.replica if isinstance(place, LogPage) else ""

    def action_again(self) -> None:
        """Ask control for a new snapshot now."""
        self.watch_of.hurry()
        self.run_worker(self._once_more(), group="again", exclusive=True)
        self._ask()

    async def _once_more(self) -> None:
        try:
            self.take(await self.link.view())
            self.say("asked anew")
        except LinkError as error:
            self._lost(error.reason)

    def action_colours(self) -> None:
        """Switch between the dark and the light theme."""
        self.colours = LIGHT if self.colours.dark else DARK
        self._paint()
        self.show()

    # --- looking for something -------------------------------------------------------------------

    def action_faults(self) -> None:
        """Switch between all rows and only those with a fault."""
        self.step.looking.only_faults = not self.step.looking.only_faults
        self.show(top=0)

    def action_sort(self) -> None:
        """Sort the table under the cursor by its next column."""
        table = self.listing.line.table
        if table is None:
            return
        names = [column.heading for column in table.columns if column.heading]
        order = self.step.looking.orders.get(table.name)
        at = names.index(order[0]) + 1 if order else 0
        if at >= len(names):
            del self.step.looking.orders[table.name]
            self.say(f"{table.title.lower()}: what is wrong first")
        else:
            figures = next(one for one in table.columns if one.heading == names[at])
            self.step.looking.orders[table.name] = (names[at], figures.order is not None)
            self.say(f"{table.title.lower()} by {names[at]}")
        self.show()

    def action_turn(self) -> None:
        """Reverse the order of the table under the cursor."""
        table = self.listing.line.table
        order = self.step.looking.orders.get(table.name) if table is not None else None
        if table is not None and order is not None:
            self.step.looking.orders[table.name] = (order[0], not order[1])
            self.show()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether a key triggers its action; while text is typed only quit does."""
        del parameters
        return action == "quit" or not (self._up and self.prompt.display)

    # --- typing ----------------------------------------------------------------------------------

    def action_filter(self) -> None:
        """Open the prompt for words to filter rows by."""
        self._type("/", " /", self.step.looking.words)

    def action_command(self) -> None:
        """Open the prompt for a command."""
        self._type(":", " :", suggested=suggestions(self.snapshot))

    def _type(self, kind: str, label: str, text: str = "", suggested: Sequence[str] = ()) -> None:
        self._strokes["keys"].display = False
        self.prompt.open(kind, text, self.colours, suggested=suggested, label=label)

    def _typed(self) -> None:
        self._strokes["keys"].display = True
        self.screen.set_focus(self.listing)

    def on_prompt_typed(self, event: Prompt.Typed) -> None:
        """Apply a filter while it is being typed."""
        if event.kind == "/":
            self.step.looking.words = event.text
            self.show(top=0)

    def on_prompt_left(self, event: Prompt.Left) -> None:
        """Close the prompt after Escape: clear the filter or drop the command."""
        self._typed()
        if event.kind == "/":
            self.step.looking.words = ""
            self.show()
        elif event.kind == "?":
            self._question = None
            self.say("nothing was done")

    def on_prompt_entered(self, event: Prompt.Entered) -> None:
        """Execute an entered command, or the order that was confirmed with yes."""
        self._typed()
        if event.kind == ":":
            self._obey(event.text)
        elif event.kind == "?" and self._question is not None:
            order, replica = self._question
            self._question = None
            if event.text.strip().lower() in {"y", "yes"}:
                self.run_worker(self._order(order, replica), group="order")
            else:
                self.say("nothing was done")

    def _obey(self, text: str) -> None:
        try:
            command = parse(text, self.snapshot, self._replica())
        except CommandError as error:
            self.say(str(error))
            return
        places: dict[str, Callable[[str], Page]] = {
            "log": LogPage,
            "story": StoryPage,
            "incident": IncidentPage,
        }
        if command.word == "quit":
            self.exit()
        elif command.word == "help":
            self.action_help()
        elif command.word == "view":
            self.action_view(command.about)
        elif command.word in ORDERS:
            self._question = (command.word, command.about)
            self._type("?", f" {command.word} {command.about}? y or n: ")
        else:
            self.go(places[command.word](command.about))

    async def _order(self, order: str, replica: str) -> None:
        self.say(await self.link.order(order, replica))


__all__ = ["TopApp"]
