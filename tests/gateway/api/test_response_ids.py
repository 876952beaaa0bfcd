"""Ids of kept answers: they name the replica, for one tenant, and nobody can make one up."""

from base64 import urlsafe_b64decode, urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.gateway.api.response_ids import ID_CHARACTERS_MAX, KeptResponse, ResponseIds

KEY = b"k" * 32
IDS = ResponseIds(KEY)
KEPT = KeptResponse("m-1", "resp_0123456789abcdef")
names = st.text(min_size=1, max_size=40)


@given(names, names, names)
def test_an_id_leads_back_to_its_replica_for_its_tenant_alone(replica, engine, tenant):
    kept = KeptResponse(replica, engine)
    name = IDS.name(kept, tenant)
    assert name == ResponseIds(KEY).name(kept, tenant)  # every gateway makes the same
    assert name.startswith("resp_")
    assert name.replace("-", "").replace("_", "").isalnum()
    assert IDS.read(name, tenant) == kept
    assert IDS.read(name, tenant + "x") is None
    assert ResponseIds(b"another").read(name, tenant) is None


@given(st.integers(0, 60), st.integers(1, 255))
def test_an_id_that_was_changed_anywhere_is_none(place, change):
    raw = bytearray(urlsafe_b64decode(IDS.name(KEPT, "a").removeprefix("resp_") + "=="))
    raw[place % len(raw)] ^= change
    name = "resp_" + urlsafe_b64encode(raw).rstrip(b"=").decode()
    assert IDS.read(name, "a") is None


@given(st.text(max_size=60) | st.text(max_size=60).map("resp_".__add__))
def test_whatever_is_sent_is_read_or_is_none(name):
    assert IDS.read(name, "a") is None


@pytest.mark.parametrize(
    "kept", [KeptResponse("r" * 256, "resp_1"), KeptResponse("m-1", "r" * ID_CHARACTERS_MAX)]
)
def test_what_does_not_fit_keeps_the_engines_own_id(kept):
    assert IDS.name(kept, "a") == kept.engine_id
    assert IDS.read(kept.engine_id, "a") is None


def test_another_key_ends_all_ids_and_an_empty_one_ends_none():
    ids = ResponseIds(KEY)
    name = ids.name(KEPT, "a")
    ids.use(b"")
    assert ids.read(name, "a") == KEPT
    ids.use(b"of the fleet")
    assert ids.read(name, "a") is None
    assert ids.read(ids.name(KEPT, "a"), "a") == KEPT
