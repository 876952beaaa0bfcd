"""Config files: one strict reader, and errors that name the file, the line, the field and the fix.

A file is checked in three steps: YAML, read with its line marks and without YAML's surprises
(``document``); the types of a tree of sections; and the checks of the core's own frozen configs,
which run inside the second step so that a refusal deep in a policy still points at a line
(``sections``). One table turns every refusal into a sentence (``error_messages``). Only
``files`` touches the disk.

What a refused file raises stands here: a command that reads no file should not import the reader
to know its error.
"""

from dataclasses import dataclass
from typing import Final

PROBLEMS_MAX: Final = 20  # shown at once; the rest is counted


@dataclass(slots=True, frozen=True)
class Problem:
    """One mistake in a config file: where it is, and how to fix it."""

    file: str
    line: int  # from 1
    column: int  # from 1
    field: str
    problem: str
    fix: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.field}: {self.problem}; {self.fix}"


class ConfigFileError(Exception):
    """A config file was refused; prints one line per problem, in the order of the file."""

    def __init__(self, problems: list[Problem]) -> None:
        assert problems, "an error without a problem tells nobody anything"
        self.problems = sorted(problems, key=lambda found: (found.line, found.column))
        super().__init__(self.problems)

    def __str__(self) -> str:
        lines = [str(problem) for problem in self.problems[:PROBLEMS_MAX]]
        more = len(self.problems) - PROBLEMS_MAX
        if more > 0:
            lines.append(f"{self.problems[0].file}: and {more} more")
        return "\n".join(lines)


__all__ = ["PROBLEMS_MAX", "ConfigFileError", "Problem"]
