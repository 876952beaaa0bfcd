"""The last use of each key outlives control, and never grows beyond the fleet file."""

from itertools import count

import pytest

from holdfast.config.fleet_file import FleetFile
from holdfast.config.tenants import hash_key
from holdfast.control.gateways.key_uses import SAVE_S, SETTING, KeyUses
from holdfast.testing.store import MemoryStore

START = 1_790_000_000.0
FIRST, SECOND = hash_key("hf-planted-first-key"), hash_key("hf-planted-second-key")


def fleet(*keys: object) -> FleetFile:
    return FleetFile.model_validate(
        {
            "models": [{"name": "m", "engine": "vllm", "endpoints": ["http://127.0.0.1:9501"]}],
            "tenants": [{"name": "team", "keys": list(keys)}] if keys else [],
        }
    )


class Stage:
    """A fleet file, a store and a clock that a test sets."""

    def __init__(self, *keys: object) -> None:
        self.file = fleet(*keys)
        self.store = MemoryStore()
        self.now = START
        self.uses = self.again()

    def again(self) -> KeyUses:
        """A new control with the same store."""
        self.uses = KeyUses(lambda: self.file, self.store, lambda: self.now)
        return self.uses

    def last(self) -> dict[str, float | None]:
        return {row["id"]: row["last_used"] for row in self.uses.listing()["keys"]}


@pytest.fixture
def stage() -> Stage:
    return Stage(FIRST, {"hash": SECOND, "id": "ci", "expires": "2020-01-01"})


def test_a_key_that_was_never_used_is_unknown_and_not_at_zero(stage):
    told = stage.uses.listing()
    assert told["since"] == START
    assert stage.last() == {FIRST[7:15]: None, "ci": None}
    assert told["keys"][1] == {
        "tenant": "team",
        "id": "ci",
        "expires": "2020-01-01",
        "expired": True,
        "file": None,
        "last_used": None,
    }


def test_the_latest_use_counts_whichever_gateway_reports_it(stage):
    stage.now = START + 50
    stage.uses.heard([("team", "ci", int(START) + 20)])
    stage.uses.heard([("team", "ci", int(START) + 10)])  # another gateway, a moment late
    assert stage.last()["ci"] == START + 20
    stage.uses.heard([("team", "ci", int(START) + 9_000)])  # its clock is ahead
    assert stage.last()["ci"] == START + 50


def test_what_is_not_in_the_file_is_not_kept(stage):
    stage.uses.heard([(f"t{i}", "ci", int(START)) for i in range(1_000)])
    stage.uses.heard([("team", f"k{i}", int(START)) for i in range(1_000)])
    stage.uses.heard([("team", "ci", int(START))])
    stage.uses.save()
    assert stage.store.settings()[SETTING]["uses"] == {"team": {"ci": START}}
    stage.file = fleet(FIRST)
    stage.uses.save()
    assert stage.store.settings()[SETTING]["uses"] == {}
    assert stage.last() == {FIRST[7:15]: None}


def test_uses_outlive_control_with_the_day_that_records_began(stage):
    stage.uses.heard([("team", "ci", int(START))])
    stage.uses.save()
    stage.now = START + 3_600
    told = stage.again().listing()
    assert told["since"] == START
    assert stage.last()["ci"] == START


def test_uses_are_stored_once_a_minute_and_not_for_each_request(stage):
    stored = []
    stage.store.put_setting = lambda key, value: stored.append((key, value))
    for second in range(int(SAVE_S) * 3 + 1):
        stage.now = START + second
        stage.uses.heard([("team", "ci", int(stage.now))])
    assert len(stored) == 3
    stage.uses.heard([])
    assert len(stored) == 3


@pytest.mark.parametrize(
    "stored",
    [None, [], {"since": "x", "uses": {}}, {"since": 1.0}, {"since": 1.0, "uses": {"a": 1}}],
)
def test_a_record_that_cannot_be_read_begins_anew(stage, stored):
    stage.store.put_setting(SETTING, stored)
    assert stage.again().listing()["since"] == START
    assert set(stage.last().values()) == {None}


def test_no_part_of_a_key_is_stored(stage):
    for second, name in zip(count(), ("ci", FIRST[7:15]), strict=False):
        stage.uses.heard([("team", name, int(START) + second)])
    stage.uses.save()
    told = str(stage.store.settings()) + str(stage.uses.listing())
    assert FIRST[7:] not in told
    assert "planted" not in told
