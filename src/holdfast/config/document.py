"""Parses YAML text to plain data, with the line of every value.

Scalars follow YAML 1.2: only ``true`` and ``false`` are truth values and only plain decimals are
numbers. Rejected: PyYAML's own rules, by which ``no`` is false, ``1:30`` is 90, ``012`` is ten and
``1e3`` is text. Rejected: aliases and tags; a config that unfolds into another one, or into
objects, cannot be reviewed by reading it, and a short file can unfold into gigabytes.
"""

import re
from math import isfinite
from typing import Any, Final

import yaml

from holdfast.config import ConfigFileError, Problem

NODES_MAX: Final = 50_000  # keys and values; keeps the slowest file within a few seconds
DEPTH_MAX: Final = 32  # nesting; a real tree is under ten deep, and recursion must end

Where = tuple[str | int, ...]  # the way from the top of the file to a value


class Document:
    """A config file as plain data, with the line of each value and the problems found."""

    __slots__ = ("_places", "data", "file", "problems")

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.data: object = None
        self.problems: list[Problem] = []
        self._places: dict[Where, tuple[int, int]] = {(): (1, 1)}
        node = self._composed(text)
        self.data = self._plain(node, ())
        if node.tag != _MAPPING and not self.problems:
            self.refuse((), f"must be a mapping (is {shown(self.data)})", "use 'key: value' lines")
        if self.problems:
            raise ConfigFileError(self.problems)

    def refuse(self, where: Where, problem: str, fix: str) -> None:
        """Note a problem at a value, or at its parent where the file has no such value."""
        known = where
        while known not in self._places:
            known = known[:-1]
        line, column = self._places[known]
        self.problems.append(Problem(self.file, line, column, dotted(where), problem, fix))

    def holds(self, where: Where) -> bool:
        """Whether the file has this value."""
        return where in self._places

    def _composed(self, text: str) -> yaml.Node:
        """The tree of nodes. Every way in which YAML can be wrong ends in a problem."""
        try:
            node = _compose(text)
        except yaml.MarkedYAMLError as error:
            raise ConfigFileError([_syntax_problem(self.file, error)]) from error
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            what = f"contains the control character {text[error.position]!r}"
            raise whole_file(self.file, what, "remove it", line) from error
        if node is None:
            raise whole_file(self.file, "is empty", "start from one of the examples")
        return node

    def _place(self, where: Where, node: yaml.Node) -> None:
        self._places[where] = (node.start_mark.line + 1, node.start_mark.column + 1)

    def _plain(self, node: yaml.Node, where: Where) -> object:
        if node.tag == _MAPPING:
            return self._mapping(node, where)
        if node.tag == _LIST:
            items = []
            for index, item in enumerate(node.value):
                self._place((*where, index), item)
                items.append(self._plain(item, (*where, index)))
            return items
        if node.tag in {_PLAIN, _QUOTED}:
            return self._scalar(node, where)
        self.refuse(where, f"has the tag {node.tag!r}", "remove the tag (the part from '!')")
        return None

    def _mapping(self, node: yaml.Node, where: Where) -> dict[str, object]:
        found: dict[str, object] = {}
        for key_node, value_node in node.value:
            if key_node.tag not in {_PLAIN, _QUOTED} or not _is_text(key_node.value):
                self.refuse(where, "has a key that is not plain text", "use plain words as keys")
                continue
            key: str = key_node.value
            here = (*where, key)
            if key in found:
                line = self._places[here][0]
                self._place(here, key_node)
                self.refuse(here, f"appears twice (first on line {line})", "remove one of the two")
                continue
            self._place(here, key_node)
            found[key] = self._plain(value_node, here)
        return found

    def _scalar(self, node: yaml.Node, where: Where) -> str | float | bool | None:
        text: str = node.value
        if not _is_text(text):
            self.refuse(where, "holds half a surrogate pair", "write the character itself")
        if node.tag == _QUOTED:
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _NOT_FINITE.fullmatch(text):
            self.refuse(where, f"must be finite (is {text})", "use an ordinary number")
        match = _NUMBER.fullmatch(text)
        if match is None:
            return text
        number = float(text)
        if not isfinite(number) or (match["whole"] and abs(number) >= _WHOLE_END):
            self.refuse(where, f"is too large ({shown(text)})", "use a number below 2^63")
            return 0
        return int(text) if match["whole"] else number


# --- YAML ----------------------------------------------------------------------------------------

_PLAIN: Final = "plain"  # our own tag: a scalar without quotes, whose spelling decides its type
_QUOTED: Final = "quoted"
_MAPPING: Final = "mapping"
_LIST: Final = "list"

_NUMBER: Final = re.compile(
    r"[-+]?(?:(?P<whole>0|[1-9][0-9]*)"
    r"|(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"
)
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_WHOLE_END: Final = 1 << 63  # what other readers of the same file can hold
_WORDS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("null", "Null", "NULL", "~", "")),
}

# Parts of PyYAML's messages, and what to do about them; the first that occurs is taken.
_SYNTAX_FIXES: Final = (
    ("'\\t'", "indent with spaces: YAML does not accept tabs"),
    ("expected a single document", "keep one document in a file: remove this '---' and the rest"),
    ("mapping values are not allowed", "quote text that contains ': ', or check the indentation"),
    ("could not find expected ':'", "put ': ' between the key and its value"),
    ("end of stream", "close the quote or bracket that was opened"),
    ("cannot start any token", "put quotes around text that begins with this character"),
    ("", "check the indentation, colons, quotes and brackets here and just above"),
)


class _Refused(yaml.MarkedYAMLError):
    """Valid YAML that is not accepted here."""

    def __init__(self, mark: yaml.Mark | None, problem: str, fix: str) -> None:
        super().__init__(problem=problem, problem_mark=mark)
        self.fix = fix


class _Loader(yaml.SafeLoader):
    """Composes nodes with their marks; bounded, without aliases, without guessing types."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            raise _Refused(mark, "has an alias ('*')", "write the values out where they are needed")
        self._nodes += 1
        self._depth += 1
        if self._nodes > NODES_MAX:
            raise _Refused(mark, f"holds more than {NODES_MAX} values", "split or shorten the file")
        if self._depth > DEPTH_MAX:
            raise _Refused(mark, f"is nested more than {DEPTH_MAX} deep", "flatten it")
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:  # noqa: ARG002
        """Called only for nodes without a tag of their own; any other tag is refused later."""
        if kind is yaml.ScalarNode:
            return _PLAIN if implicit[0] else _QUOTED
        return _LIST if kind is yaml.SequenceNode else _MAPPING


def _compose(text: str) -> yaml.Node | None:
    loader = _Loader(text)
    try:
        return loader.get_single_node()
    except (ValueError, OverflowError) as error:  # chr() and int() on absurd escapes
        mark = loader.get_mark()
        raise _Refused(mark, f"cannot be read ({error})", "remove the escape or number") from error


def _syntax_problem(file: str, error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark
    line, column = (1, 1) if mark is None else (mark.line + 1, mark.column + 1)
    said = error.problem or "is not YAML"
    if isinstance(error, _Refused):
        return Problem(file, line, column, "(yaml)", said, error.fix)
    said = f"{error.context}, {said}" if error.context else said
    fix = next(fix for part, fix in _SYNTAX_FIXES if part in said)
    return Problem(file, line, column, "(yaml)", said, fix)


def whole_file(file: str, problem: str, fix: str, line: int = 1) -> ConfigFileError:
    """The error for a file that cannot be read at all."""
    return ConfigFileError([Problem(file, line, 1, "(file)", problem, fix)])


def _is_text(value: str) -> bool:
    """False for half a surrogate pair, which escapes can smuggle in and nothing can print."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def dotted(where: Where) -> str:
    """Format a path as people write it: ``faults[2].kind``."""
    text = ""
    for part in where:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            word = part if re.fullmatch(r"[\w-]{1,60}", part) else shown(part)
            text += f".{word}" if text else word
    return text or "(top level)"


def shown(value: object) -> str:
    """Format a value for a message: short, on one line, as the file writes it."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "empty"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]}…{text[-1]}"


__all__ = ["ConfigFileError", "Document", "Problem", "Where", "dotted", "shown", "whole_file"]
