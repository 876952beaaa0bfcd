"""Changes single values in the text of a config file, and leaves every other character as it is.

A change that was tried in a simulation should be applied as it was tried: so it is made in the
file's own text, comments and order included, and shown as a diff that ``patch`` takes.

Rejected: reading the file into values and writing it anew. Every comment would be lost, and the
diff would be the whole file.
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from holdfast.core.types import ConfigError


def edit(text: str, changes: Mapping[str, Any]) -> str:
    """The text with each value set; keys are dotted, ``models.NAME.launch.replicas``.

    Raises ``ConfigError`` where a key leads through something that has no keys.
    """
    for key, value in changes.items():
        text = _set(text, key, value)
    return text


def difference(before: str, after: str, name: str) -> str:
    """A unified diff of two versions of a file; empty where they are the same."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        name,
        name,
        n=2,
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _set(text: str, key: str, value: Any) -> str:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ConfigError("file", f"is no YAML ({error})", "check the file first") from error
    parts = key.split(".")
    if not isinstance(node, yaml.MappingNode) or not all(parts):
        raise ConfigError(key or "key", "is no key", "write it as models.NAME.launch.replicas")
    for place, part in enumerate(parts):
        if isinstance(node, yaml.SequenceNode):
            node = _item(node, part, ".".join(parts[: place + 1]))
        elif isinstance(node, yaml.MappingNode):
            found = next((held for name, held in node.value if name.value == part), None)
            if found is None:
                return _insert(text, node, parts[place:], value)
            node = found
        else:
            above = ".".join(parts[:place])
            raise ConfigError(key, f"leads through {above}, a value", "set that key itself")
    return _replace(text, node, value)


def _item(node: yaml.SequenceNode, part: str, key: str) -> yaml.Node:
    if part.isdecimal() and int(part) < len(node.value):
        held: yaml.Node = node.value[int(part)]
        return held
    names = []
    for item in node.value:
        if isinstance(item, yaml.MappingNode):
            named = [held.value for name, held in item.value if name.value == "name"]
            names += named
            if part in named:
                return item
    known = ", ".join(names) or f"0 to {len(node.value) - 1}"
    raise ConfigError(key, "is not in the file", f"use one of {known[:200]}")


def _written(value: Any) -> str:
    """A value in YAML's flow style, which stands on one line."""
    text = yaml.safe_dump(
        value, default_flow_style=True, width=10_000, allow_unicode=True, sort_keys=False
    )
    return text.removesuffix("\n").removesuffix("...").rstrip("\n")


def _replace(text: str, node: yaml.Node, value: Any) -> str:
    start, end = node.start_mark.index, node.end_mark.index
    old = text[start:end]
    tail = old[len(old.rstrip()) :]  # a block ends where the next one begins
    written = _written(value)
    if isinstance(node, yaml.CollectionNode) and not node.flow_style:
        line = text.rfind("\n", 0, start) + 1
        before = text[line:start]
        if not before.strip():  # the block begins on a line of its own, below its key
            above = text.rfind("\n", 0, max(0, line - 1)) + 1
            start = len(text[:line].rstrip())
            written = f" {written}" if start > above else written
    return text[:start] + written + tail + text[end:]


def _insert(text: str, node: yaml.MappingNode, parts: Sequence[str], value: Any) -> str:
    """Add a key to a mapping, above its first one, or inside the braces of a flow mapping."""
    held: Any = value
    for part in reversed(parts[1:]):
        held = {part: held}
    line = f"{_written(parts[0])}: {_written(held)}"
    if node.flow_style or not node.value:
        start = node.start_mark.index
        if text[start : start + 1] == "{":
            rest = ", " if node.value else ""
            return f"{text[: start + 1]}{line}{rest}{text[start + 1 :]}"
        raise ConfigError(parts[0], "cannot be added to an empty section", "add it by hand")
    last_key, last = node.value[-1]
    end = last.end_mark.index
    stop = len(text[:end].rstrip())
    stop = text.find("\n", stop)
    stop = len(text) if stop < 0 else stop
    indent = " " * last_key.start_mark.column
    return f"{text[:stop]}\n{indent}{line}{text[stop:]}"


def parse_value(text: str) -> Any:
    """A value as it is written in a config file: 5, true, 2s, [a, b], {k: v}."""
    try:
        value = yaml.safe_load(text)
        json.dumps(value)
    except (yaml.YAMLError, TypeError, ValueError) as error:
        raise ConfigError("value", f"{text[:80]!r} is no YAML value", "quote it") from error
    return value


__all__ = ["difference", "edit", "parse_value"]
