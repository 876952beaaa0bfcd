"""Reads config files from disk; no other module opens them."""

import json
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from holdfast.config.document import ConfigFileError, Document, whole_file
from holdfast.config.error_messages import translate
from holdfast.config.sections import Section
from holdfast.core.types import ConfigError

SECRET_BYTES_MAX: Final = 4_096  # one key or token; more is another file
FILE_BYTES_MAX: Final = 1 << 20  # a config larger than this was generated, or is not a config
TRANSLATED_MAX: Final = 1_000  # a file with more errors than that is the wrong file altogether

SectionT = TypeVar("SectionT", bound=Section)


def load(path: Path, model: type[SectionT]) -> SectionT:
    """Read a YAML file into a section; raises ``ConfigFileError`` with all problems."""
    return load_text(str(path), text_of(path), model)


def load_text(file: str, text: str, model: type[SectionT]) -> SectionT:
    """Read the text of a YAML file into a section; ``file`` is its name in error messages."""
    document = Document(file, text)
    try:
        # Through JSON: there pydantic is strict about types, yet lists become tuples and words
        # become enum members. A strict check of Python values would refuse both.
        return model.model_validate_json(json.dumps(document.data))
    except ValidationError as error:
        for detail in error.errors(include_url=False)[:TRANSLATED_MAX]:
            translate(document, model, detail)
        raise ConfigFileError(document.problems) from error


def text_of(path: Path) -> str:
    """The text of a file; anything that stands in the way is a problem of the file."""
    file = str(path)
    try:
        with path.open("rb") as stream:
            raw = stream.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise whole_file(file, "does not exist", "check the path") from error
    except IsADirectoryError as error:
        raise whole_file(file, "is a directory", "name a file in it") from error
    except PermissionError as error:
        raise whole_file(file, "may not be read", "grant permission to read it") from error
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise whole_file(file, f"cannot be read ({reason})", "check the path") from error
    if len(raw) > FILE_BYTES_MAX:
        raise whole_file(file, "is larger than 1 MiB", "check that it is the right file")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        what = f"is not UTF-8 text (byte 0x{raw[error.start]:02x})"
        raise whole_file(file, what, "save it as UTF-8", line) from error


def read_secret(path: Path) -> str:
    """Read a secret from a file of its own, without the end of its line.

    Raises ``ConfigError``; the message never repeats what the file holds.
    """
    if not path.is_absolute():
        problem = f"{path} is a relative path"
        raise ConfigError("file", problem, "write the whole path, from / on")
    try:
        with path.open("rb") as stream:
            raw = stream.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        fix = "check the path and its permissions"
        raise ConfigError("file", f"{path} cannot be read ({reason})", fix) from None
    if len(raw) > SECRET_BYTES_MAX:
        raise ConfigError("file", f"{path} is larger than 4 KiB", "name a file with one secret")
    return raw.decode("ascii", "replace").removesuffix("\n").removesuffix("\r")


def json_schema(model: type[Section]) -> dict[str, Any]:
    """The JSON Schema of a file format, for editors and other tools."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **model.model_json_schema()}


__all__ = ["json_schema", "load", "load_text", "read_secret", "text_of"]
