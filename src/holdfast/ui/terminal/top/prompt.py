"""Single-line widgets of the screen: lines of text, and the prompt for typing."""

from collections.abc import Sequence
from typing import ClassVar, Final

from rich.segment import Segment
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.strip import Strip
from textual.suggester import SuggestFromList
from textual.widget import Widget
from textual.widgets import Input

from holdfast.ui.terminal.top.colours import DARK, Colours, Tone
from holdfast.ui.terminal.top.figure_format import wide
from holdfast.ui.terminal.top.table import Span

_LETTERS_MAX: Final = 256


class TonedLine(Widget):
    """A widget that shows one line of text in tones."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 textual's word
        super().__init__(id=id)
        self._shown: tuple[tuple[Span, ...], Colours, str] = ((), DARK, "page")

    def show(self, spans: Sequence[Span], colours: Colours, ground: str) -> None:
        """Replace the text; does nothing if it is the same."""
        wanted = (tuple(spans), colours, ground)
        if wanted != self._shown:
            self._shown = wanted
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """Render the line."""
        spans, colours, ground = self._shown
        if y:
            return Strip.blank(self.size.width, colours.style(Tone.PLAIN, ground))
        segments = [Segment(text, colours.style(tone, ground)) for text, tone in spans]
        rest = max(0, self.size.width - sum(wide(text) for text, _ in spans))
        segments.append(Segment(" " * rest, colours.style(Tone.PLAIN, ground)))
        return Strip(segments).crop(0, self.size.width)


class Prompt(Horizontal):
    """The input line for filters, commands and answers; hidden while it is not used."""

    class Typed(Message):
        """Message: the text in the prompt changed."""

        def __init__(self, kind: str, text: str) -> None:
            super().__init__()
            self.kind, self.text = kind, text

    class Entered(Typed):
        """Message: the text was confirmed with Enter."""

    class Left(Typed):
        """Message: the prompt was left with Escape."""

    def __init__(self) -> None:
        super().__init__()
        self._kind = ""

    def compose(self) -> ComposeResult:
        """The label and the input field."""
        yield TonedLine(id="question")
        yield _Entry(max_length=_LETTERS_MAX, select_on_focus=False)

    def open(
        self, kind: str, text: str, colours: Colours, *, suggested: Sequence[str] = (), label: str
    ) -> None:
        """Show the prompt and focus it; ``kind`` is ``/``, ``:`` or ``?`` for a question."""
        entry, question = self.query_one(_Entry), self.query_one(TonedLine)
        self._kind = ""
        question.styles.width = wide(label)
        question.show([(label, Tone.KEY)], colours, "chosen")
        entry.styles.background = colours.values["chosen"]
        entry.styles.color = colours.values[Tone.STRONG]
        entry.placeholder = _HINTS.get(kind, "")
        entry.suggester = SuggestFromList(suggested, case_sensitive=False) if suggested else None
        entry.value = text
        entry.cursor_position = len(text)
        self._kind = kind
        self.display = True
        self.screen.set_focus(entry)  # now, and not when the next key has gone elsewhere

    def give_up(self) -> None:
        """Close the prompt after Escape."""
        text = self.query_one(_Entry).value
        self.post_message(self.Left(self._shut(), text))

    def _shut(self) -> str:
        kind, self._kind = self._kind, ""
        self.display = False
        return kind

    def on_input_changed(self, event: Input.Changed) -> None:
        """Post ``Typed`` when the text changes."""
        event.stop()
        if self._kind:
            self.post_message(self.Typed(self._kind, event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Post ``Entered`` when the text is confirmed."""
        event.stop()
        if self._kind:
            self.post_message(self.Entered(self._shut(), event.value))


class _Entry(Input):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", show=False),
        Binding("tab", "complete", show=False),
    ]

    def action_leave(self) -> None:
        """Never mind."""
        found = self.parent
        assert isinstance(found, Prompt)
        found.give_up()

    def action_complete(self) -> None:
        """Take what is suggested."""
        self.action_cursor_right()


_HINTS: Final = {
    "/": "words to look for",
    ":": "a view, log ID, story ID, incident ID, drain ID, restart ID, quit",
}

__all__ = ["Prompt", "TonedLine"]
