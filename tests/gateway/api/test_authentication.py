"""A key leads to its tenant, and anything else to one and the same refusal."""

from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from holdfast.config.tenants import TenantSection, hash_key, new_key
from holdfast.core.types import Priority
from holdfast.gateway.api import authentication as module
from holdfast.gateway.api.authentication import Tenant, TenantDirectory
from holdfast.gateway.api.errors import ApiError

KEY, SPARE, OTHER = "hf-planted-one", "hf-planted-spare", "hf-planted-other"


@pytest.fixture
def tenants() -> TenantDirectory:
    return TenantDirectory(
        [
            TenantSection(name="a", keys=[hash_key(KEY), hash_key(SPARE)]),
            TenantSection(
                name="b",
                keys=[hash_key(OTHER)],
                priority="batch",
                models=["small", "auto"],
                regions=["east"],
            ),
        ]
    )


def refusal(tenants: TenantDirectory, headers: dict[bytes, bytes]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        tenants.who(headers)
    return caught.value


@pytest.mark.parametrize(
    "headers",
    [
        {b"authorization": b"Bearer hf-planted-one"},
        {b"authorization": b"bearer hf-planted-one"},
        {b"authorization": b"BEARER hf-planted-one"},
        {b"authorization": b"Bearer hf-planted-spare"},
        {b"api-key": b"hf-planted-one"},
        {b"x-api-key": b"hf-planted-one"},
        {b"x-api-key": b"hf-planted-one", b"api-key": b"hf-planted-one"},
        {b"authorization": b"Bearer hf-planted-one", b"x-api-key": b"hf-planted-one"},
    ],
)
def test_a_key_leads_to_its_tenant(tenants, headers):
    assert tenants.who(headers).name == "a"


def test_a_tenant_knows_what_it_may_do(tenants):
    first, second = tenants.who({b"x-api-key": KEY.encode()}), tenants.by_name["b"]
    assert first.priority is Priority.INTERACTIVE
    assert first.may_use("anything")
    assert first.may_be_served_in("anywhere")
    assert second.priority is Priority.BATCH
    assert second.may_use("auto")
    assert not second.may_use("large")
    assert (first.region_names, second.region_names) == ((), ("east",))
    assert second.may_be_served_in("east")
    assert not second.may_be_served_in("west")


WRONG = [
    {},
    {b"host": b"x"},
    {b"authorization": b""},
    {b"authorization": b"Bearer"},
    {b"authorization": b"Bearer "},
    {b"authorization": b"Bearer    "},
    {b"authorization": b"hf-planted-one"},
    {b"authorization": b"Basic hf-planted-one"},
    {b"authorization": b"Bearer\thf-planted-one"},
    {b"authorization": b"Bearer  hf-planted-one"},
    {b"authorization": b"Bearer hf-planted-one, Bearer hf-planted-one"},  # sent twice
    {b"authorization": b"Bearer hf-planted-one,hf-planted-one"},
    {b"authorization": b"Bearer hf-planted-one hf-planted-one"},
    {b"authorization": b"Bearer hf-planted-on"},
    {b"authorization": b"Bearer HF-PLANTED-ONE"},
    {b"authorization": b"Bearer \xff\x00"},
    {b"authorization": b"Bearer " + b"x" * 100_000},
    {b"authorization": b"Bearer " + hash_key(KEY).encode()},  # the file's hash opens nothing
    {b"authorization": b"Bearer hf-planted-one", b"x-api-key": b"hf-planted-other"},
    {b"authorization": b"Bearer hf-planted-one", b"api-key": b""},
    {b"authorization": b"Basic x", b"api-key": b"hf-planted-one"},
    {b"api-key": b"hf-planted-one", b"x-api-key": b"hf-planted-other"},
    {b"api-key": b""},
    {b"x-api-key": b"hf-planted-one, hf-planted-one"},
    {b"x-api-key": b"Bearer hf-planted-one"},
]


@pytest.mark.parametrize("headers", WRONG)
def test_whatever_is_wrong_is_refused_alike_and_not_repeated(tenants, headers):
    error = refusal(tenants, headers)
    expected = refusal(tenants, {b"authorization": b"Bearer unknown"})
    assert error.status == 401
    assert (error.code, error.message) == ("invalid_api_key", expected.message)
    assert "planted" not in f"{error!r} {error} {error.message} {error.param}"


def test_without_tenants_everybody_is_the_default_one():
    tenants = TenantDirectory([])
    assert tenants.who({}) == Tenant("default")
    assert tenants.who({b"authorization": b"Basic x"}).name == "default"
    assert list(tenants.by_name) == ["default"]


def test_with_tenants_there_is_no_default_one(tenants):
    assert list(tenants.by_name) == ["a", "b"]


def test_every_comparison_is_in_constant_time(tenants, monkeypatch):
    compared = []

    def spy(one, other):
        compared.append((len(one), len(other)))
        return one == other

    monkeypatch.setattr(module, "compare_digest", spy)
    tenants.who({b"x-api-key": KEY.encode()})
    refusal(tenants, {b"x-api-key": b"unknown"})
    assert compared == [(32, 32)] * 2


def test_no_plain_key_stays_in_memory(tenants):
    key = new_key()
    with pytest.raises(ApiError):
        tenants.who({b"x-api-key": key.encode()})
    tenants.who({b"x-api-key": KEY.encode()})
    held = repr([getattr(tenants, name) for name in TenantDirectory.__slots__])
    assert key not in held
    assert KEY not in held


# --- weak keys, and keys that end ----------------------------------------------------------------


def test_a_short_key_is_refused_by_its_own_name_unless_its_tenant_is_insecure():
    for key in ("a", "hf-1234"):
        weak = TenantDirectory([TenantSection(name="a", keys=[hash_key(key)])])
        error = refusal(weak, {b"authorization": b"Bearer " + key.encode()})
        assert (error.status, error.code) == (401, "weak_api_key")
        assert "8 characters" in error.message
        assert "holdfast keys new" in error.message
        trusting = TenantDirectory([TenantSection(name="a", keys=[hash_key(key)], insecure=True)])
        assert trusting.who({b"authorization": b"Bearer " + key.encode()}).name == "a"


def test_a_strangers_short_key_is_refused_like_any_other(tenants):
    assert refusal(tenants, {b"authorization": b"Bearer x"}).code == "invalid_api_key"


def test_a_key_that_may_be_guessed_is_warned_of_once(tenants):
    with capture_logs() as logged:
        for _ in range(3):
            tenants.who({b"api-key": KEY.encode()})
        tenants.who({b"api-key": OTHER.encode()})  # sixteen characters
    (line,) = [line for line in logged if line["event"] == "weak API key"]
    assert line["tenant"] == "a"
    assert KEY not in str(line)


def test_a_key_is_refused_from_its_end_on(monkeypatch):
    ends = datetime(2027, 2, 1, tzinfo=UTC).timestamp()
    for expires in ("2027-01-31", "2027-02-01T00:00:00Z", "2027-02-01T01:00:00+01:00"):
        key = {"hash": hash_key(OTHER), "expires": expires}
        tenants = TenantDirectory([TenantSection.model_validate({"name": "a", "keys": [key]})])
        monkeypatch.setattr(module, "time", lambda: ends - 1)
        assert tenants.who({b"api-key": OTHER.encode()}).name == "a"
        monkeypatch.setattr(module, "time", lambda: ends)
        error = refusal(tenants, {b"api-key": OTHER.encode()})
        assert (error.status, error.code) == (401, "expired_api_key")


def test_keys_that_let_somebody_in_are_told_once_by_their_names():
    tenants = TenantDirectory(
        [
            TenantSection(
                name="a",
                keys=[
                    hash_key(KEY),
                    {"hash": hash_key(SPARE), "id": "ci"},
                    {"hash": hash_key(OTHER), "id": "old", "expires": "2020-01-01"},
                ],
            )
        ]
    )
    assert tenants.take_used() == []
    refusal(tenants, {b"x-api-key": OTHER.encode()})  # it has ended: that is no use
    refusal(tenants, {b"x-api-key": b"hf-a-stranger-to-all"})
    assert tenants.take_used() == []
    for _ in range(2):
        tenants.who({b"x-api-key": SPARE.encode()})
    tenants.who({b"x-api-key": KEY.encode()})
    assert tenants.take_used() == [("a", hash_key(KEY)[7:15]), ("a", "ci")]
    assert tenants.take_used() == []
