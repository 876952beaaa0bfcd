import pytest

from holdfast.config.document import ConfigFileError
from holdfast.config.files import load
from holdfast.config.fleet_file import FleetFile
from holdfast.config.incidents import check_hook
from holdfast.core.types import ConfigError

MODELS = """
models:
  - {name: m, engine: vllm, endpoints: ["http://h:1"]}
  - {name: n, engine: vllm, endpoints: [{url: "http://h:2", host: rack-1}]}
"""


def read(tmp_path, text, models=MODELS):
    path = tmp_path / "fleet.yaml"
    path.write_text(models + text)
    return load(path, FleetFile)


def refusal(tmp_path, text, models=MODELS):
    with pytest.raises(ConfigFileError) as caught:
        read(tmp_path, text, models)
    return str(caught.value)


def test_without_a_section_everything_has_its_default(tmp_path):
    file = read(tmp_path, "")
    assert (file.incidents.dry_run, file.incidents.notify, file.chains) == (False, [], [])
    assert file.incidents.investigation() == file.incidents.detectors
    assert FleetFile.from_json(file.to_json()) == file


def test_a_section_is_read_and_survives_its_way_to_gateways(tmp_path):
    text = """
incidents:
  dry_run: true
  notify:
    - {url_env: HOLDFAST_HOOK, format: slack, at_least: page}
    - {url: "https://hooks.example.org/a?b=c", deadline: 2s, retries: 0}
  detectors: {acting: {again_s: 5m}, ends: {again_count: 4}}
chains: [{name: rag, models: [m, n]}]
"""
    file = read(tmp_path, text)
    first, second = file.incidents.notify
    assert (first.url_env, first.format, first.at_least) == ("HOLDFAST_HOOK", "slack", "page")
    assert (second.deadline, second.retries) == (2.0, 0)
    built = file.incidents.investigation()
    assert (built.acting.dry_run, built.acting.again_s, built.ends.again_count) == (True, 300.0, 4)
    assert file.models[1].endpoints[0].host == "rack-1"
    assert FleetFile.from_json(file.to_json()) == file
    assert "hooks.example.org" not in repr(file)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("incidents: {notify: [{format: slack}]}", "url_env"),
        ("incidents: {notify: [{url: 'http://h/', url_env: A}]}", "url_env"),
        ("incidents: {notify: [{url: 'ftp://h/'}]}", "is not a URL"),
        ("incidents: {notify: [{url: 'http://h:x/'}]}", "is not a URL"),
        ("incidents: {notify: [{url: 'http://u:p4ss@h/'}]}", "holds credentials"),
        ("incidents: {notify: [{url: 'https://hooks.slack.com/services/T/B/zzz'}]}", "secret"),
        ("incidents: {notify: [{url_env: 'https://h/zzz'}]}", "not a name"),
        ("incidents: {notify: [{url: 'http://h/', format: xml}]}", "json"),
        ("incidents: {detectors: {acting: {share_max: 0.9}}}", "share_max"),
        ("chains: [{name: c, models: [m]}]", "at least 2"),
        ("chains: [{name: c, models: [m, x]}]", "no model of this file"),
        ("chains: [{name: c, models: [m, n]}, {name: c, models: [n, m]}]", "chains[0]"),
    ],
)
def test_mistakes_are_refused_without_repeating_a_secret(tmp_path, text, told):
    said = refusal(tmp_path, text)
    assert told in said
    assert "p4ss" not in said
    assert "zzz" not in said


def test_a_url_out_of_the_environment_is_checked_as_one_of_the_file():
    assert check_hook("https://hooks.slack.com/services/T/B/zzz")
    for bad in ("", "file:///etc/passwd", "http://", "http://a b/", "http://u@h/"):
        with pytest.raises(ConfigError):
            check_hook(bad)


# --- memory --------------------------------------------------------------------------------------


def launched(memory="{}", footprint="{}"):
    return f"""
models:
  - name: m
    engine: vllm
    footprint: {footprint}
    launch: {{weights: /w, memory: {memory}}}
"""


def test_sizes_may_have_units(tmp_path):
    models = launched("{reservation: 1.5GB, limit: 4 GiB}", "{weights: 700, kv: 512MB, gpu: false}")
    (model,) = read(tmp_path, "", models).models
    assert (model.launch.memory.reservation, model.launch.memory.limit) == (1_500_000_000, 4 << 30)
    footprint = model.footprint
    assert (footprint.weights, footprint.kv, footprint.gpu) == (700, 512_000_000, False)


@pytest.mark.parametrize(
    ("models", "told"),
    [
        (launched("{reservation: 2GB, limit: 1GB}"), "below the reservation"),
        (launched("{limit: 4 gigs}"), "is '4 gigs'"),
        (launched("{limit: 0}"), "greater than 0"),
        (launched("{limit: [1]}"), "whole number"),
        (launched(footprint="{weights: -1}"), "greater than 0"),
    ],
)
def test_odd_sizes_are_refused(tmp_path, models, told):
    assert told in refusal(tmp_path, "", models)
