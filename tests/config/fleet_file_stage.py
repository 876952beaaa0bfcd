"""A fleet file that is written, read or refused, for tests of what it may say."""

from pathlib import Path

import pytest

from holdfast.config.document import ConfigFileError
from holdfast.config.files import load
from holdfast.config.fleet_file import FleetFile
from holdfast.config.tenants import hash_key

PLAIN = "hf-planted-secret"
ONE, TWO = hash_key("one"), hash_key("two")
MODELS = """\
models:
  - {name: big, engine: vllm, endpoints: [http://a:1]}
  - {name: small, engine: ollama, endpoints: [http://a:1]}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "fleet.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def read(folder: Path, text: str) -> FleetFile:
    return load(written(folder, text), FleetFile)


def refused(folder: Path, text: str) -> str:
    path = written(folder, text)
    with pytest.raises(ConfigFileError) as caught:
        load(path, FleetFile)
    assert PLAIN not in str(caught.value.__cause__)
    return str(caught.value).replace(f"{folder}/", "")
