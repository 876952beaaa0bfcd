"""Files of others are what their project published, and their origin is written down."""

import re
from hashlib import sha256
from pathlib import Path

import holdfast

ROOT = Path(holdfast.__file__).parent
DOCS = Path(__file__).parents[2] / "docs" / "internals" / "dependencies.md"


def test_every_vendored_file_is_listed_with_its_sum():
    told = dict(
        re.findall(r"^\| `([^`]+)` \|.*\| `([0-9a-f]{64})` \|$", DOCS.read_text(), re.MULTILINE)
    )
    found = {
        path.name: sha256(path.read_bytes()).hexdigest()
        for folder in (ROOT / "ui/web/static/vendor", Path(__file__).parent / "vendor")
        for path in folder.iterdir()
    }
    assert told == found
