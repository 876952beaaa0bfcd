import asyncio
from time import monotonic_ns

import orjson
import pytest

from holdfast.config.fleet_file import FleetFile
from holdfast.core.types import SECOND, ConfigError
from holdfast.gateway.api.routes import Api
from holdfast.gateway.http.upstream import Upstream
from holdfast.gateway.request.settings import settings_of, targets_of

URLS = ["http://127.0.0.1:9501", "http://127.0.0.1:9502"]


def fleet(*models, **more):
    listed = [{"engine": "vllm", "endpoints": URLS[:1], **model} for model in models]
    return FleetFile.from_json(orjson.dumps({"models": listed, **more}))


def test_the_public_names_are_models_and_virtual_models_in_the_order_of_the_file():
    file = fleet({"name": "b"}, {"name": "a"}, virtual_models=[{"name": "v", "ladder": ["b", "a"]}])
    settings = settings_of(file)
    assert list(settings.public_models) == ["b", "a", "v"]
    assert settings.flow == file.flow_config()
    assert settings.canary_paths == dict.fromkeys("ba", "/v1/chat/completions")


def test_each_model_has_its_own_deadline():
    settings = settings_of(fleet({"name": "a", "deadlines": {"request_s": 77}}, {"name": "b"}))
    assert settings.request_ns["a"] == 77 * SECOND
    assert settings.request_ns["b"] > 77 * SECOND


@pytest.mark.parametrize(
    ("engine", "chat", "prompt"),
    [("vllm", True, True), ("llamacpp", True, True), ("openai", False, True)],
)
def test_what_can_be_continued_depends_on_the_engine(engine, chat, prompt):
    settings = settings_of(fleet({"name": "m", "engine": engine}))
    assert settings.continues(Api.CHAT, "m") is chat
    assert settings.continues(Api.COMPLETIONS, "m") is prompt
    assert not settings.continues(Api.RESPONSES, "m")
    assert not settings.continues(Api.CHAT, "other")


@pytest.mark.parametrize(
    ("model", "read"),
    [
        ({"routing": "prefix_affinity"}, True),
        ({"routing": "kv_headroom", "routing_options": {"inner": "prefix_affinity"}}, True),
        ({"routing": "round_robin"}, False),
        ({"routing": "token_work"}, False),
    ],
)
def test_prompts_are_hashed_only_where_a_policy_reads_the_hashes(model, read):
    assert bool(settings_of(fleet({"name": "m", **model})).prefix_blocks) is read


def test_a_hook_that_cannot_be_imported_is_refused():
    rule = {"when": {"hook": "no_such_module_here:choose"}, "use": "m"}
    virtual = {"name": "v", "rules": [rule], "default": "m"}
    with pytest.raises(ConfigError, match="hook"):
        settings_of(fleet({"name": "m"}, virtual_models=[virtual]))


# --- targets -------------------------------------------------------------------------------------


def built(*files):
    """The targets after each of these files, one after the other."""

    async def main():
        loop = asyncio.get_running_loop()
        steps, known = [], {}
        for file in files:
            known = targets_of(file, known, loop, monotonic_ns)
            steps.append(known)
        for target in known.values():
            target.upstream.close()
        return steps

    return asyncio.run(main())


def test_a_target_says_how_to_call_a_replica(monkeypatch):
    monkeypatch.setenv("ENGINE_TOKEN", "engine-secret")
    file = fleet({"name": "m", "served_as": "org/m", "api_key_env": "ENGINE_TOKEN"}, {"name": "n"})
    (targets,) = built(file)
    assert list(targets) == ["m-1", "n-1"]
    target = targets["m-1"]
    assert (target.model, target.served_as, target.endpoint.url) == ("m", "org/m", URLS[0])
    assert target.headers == b"authorization: Bearer engine-secret\r\n"
    assert target.label == b"x-holdfast-replica: m-1\r\n"
    assert (targets["n-1"].headers, targets["n-1"].served_as) == (b"", "n")


def test_the_engine_s_credential_does_not_follow_a_detour(monkeypatch):
    monkeypatch.setenv("ENGINE_TOKEN", "engine-secret")
    file = fleet({"name": "m", "endpoints": URLS, "api_key_env": "ENGINE_TOKEN"})

    async def main():
        loop = asyncio.get_running_loop()
        steps, known = [], {}
        for detours in ({"m-1": "http://127.0.0.1:9600"}, {"m-1": URLS[0]}, {}):
            known = targets_of(file, known, loop, monotonic_ns, detours)
            steps.append({name: target.headers for name, target in known.items()})
        for target in known.values():
            target.upstream.close()
        return steps

    sent = b"authorization: Bearer engine-secret\r\n"
    elsewhere, same_address, none = asyncio.run(main())
    assert elsewhere == same_address == {"m-1": b"", "m-2": sent}
    assert none == {"m-1": sent, "m-2": sent}


def test_a_token_that_is_not_set_is_not_sent(monkeypatch):
    monkeypatch.delenv("ENGINE_TOKEN", raising=False)
    (targets,) = built(fleet({"name": "m", "api_key_env": "ENGINE_TOKEN"}))
    assert targets["m-1"].headers == b""


def test_a_replica_that_stays_where_it_is_keeps_its_connections():
    first, second = built(
        fleet({"name": "m", "endpoints": URLS}),
        fleet({"name": "m", "endpoints": URLS, "served_as": "other"}),
    )
    for name in ("m-1", "m-2"):
        assert second[name].upstream is first[name].upstream
    assert second["m-1"].served_as == "other"


def test_a_replica_that_moves_or_goes_loses_its_connections(monkeypatch):
    closed = []

    def close(upstream):
        closed.append(upstream)

    monkeypatch.setattr(Upstream, "close", close)
    first, second = built(
        fleet({"name": "m", "endpoints": URLS}), fleet({"name": "m", "endpoints": URLS[1:]})
    )
    assert list(second) == ["m-1"]
    assert second["m-1"].endpoint.url == URLS[1]
    assert second["m-1"].upstream is not first["m-1"].upstream
    assert closed[:2] == [first["m-1"].upstream, first["m-2"].upstream]


def test_new_rules_for_connections_make_new_connections():
    model = {"name": "m"}
    first, second = built(fleet(model), fleet(model, gateway={"upstream": {"connect_s": 3}}))
    assert second["m-1"].upstream is not first["m-1"].upstream
    assert second["m-1"].upstream.config.connect_s == 3
