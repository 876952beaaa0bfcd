"""What all commands of ``holdfast render`` share: names that Kubernetes takes, and printing."""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import click
import yaml

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

_LABEL_MAX: Final = 63  # names of up to so many characters are one label, without dots


class _PlainDumper(yaml.SafeDumper):
    """Writes every value where it is used: a reader of manifests follows no aliases."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - as its base has it
        """Never refer from one value to another."""
        return True


def named(kind: str, longest: int) -> Callable[[click.Context, click.Parameter, str], str]:
    """A check of an option's value: a name that Kubernetes takes for this kind."""

    def check(_context: click.Context, parameter: click.Parameter, value: str) -> str:
        dotted = "." in value and longest <= _LABEL_MAX
        if not _NAME.fullmatch(value) or len(value) > longest or dotted:
            told = f"{value[:80]!r} is no name of a {kind}: lower-case letters, digits, '-'"
            raise click.BadParameter(told, param=parameter)
        return value

    return check


def print_manifest(
    documents: list[dict[str, Any]], what: str, page: str, notes: Iterable[str] = ()
) -> None:
    """Print documents as YAML, below comments that say what they are and what they leave out."""
    click.echo(manifest_text(documents, what, page, notes), nl=False)


def manifest_text(
    documents: list[dict[str, Any]], what: str, page: str, notes: Iterable[str] = ()
) -> str:
    """Documents as YAML, below comments that say what they are and what they leave out."""
    lines = [f"# Made by 'holdfast render {what}'. {page} explains it."]
    noted = list(notes)
    if noted:
        lines.append("# What it does otherwise than Holdfast:")
        lines += [f"# - {note}" for note in noted]
    texts = [
        yaml.dump(document, Dumper=_PlainDumper, sort_keys=False, width=1_000, allow_unicode=True)
        for document in documents
    ]
    return "\n".join(lines) + "\n" + "---\n".join(texts)


__all__ = ["manifest_text", "named", "print_manifest"]
