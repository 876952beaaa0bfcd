"""The order of all tests: the long ones first, so that none of them is what all others wait for."""

from pathlib import Path

HERE = Path(__file__).parent
LONG = ("e2e", "sim")  # folders


def _turn(item):
    folder = item.path.relative_to(HERE).parts[0]
    return LONG.index(folder) if folder in LONG else len(LONG)


def pytest_collection_modifyitems(items):
    items.sort(key=_turn)  # stable: within a folder nothing moves
