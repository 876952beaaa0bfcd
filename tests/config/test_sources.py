import pytest
from fleet_file_stage import read, refused

from holdfast.config.fleet_file import FleetFile
from holdfast.config.sources import AgentsSection, AwsSection, KubernetesSection, LocalSection

HASH = "sha256:" + "ab" * 32


def test_a_file_may_have_sources_and_no_models(tmp_path):
    file = read(tmp_path, "sources: [{type: aws, region: eu-west-2, cluster: marigold}]\n")
    (source,) = file.sources
    assert isinstance(source, AwsSection)
    assert (source.called, source.region, source.cluster, source.period_s) == (
        *("aws", "eu-west-2", "marigold"),
        15.0,
    )
    assert file.replicas() == []
    assert file.flow_config().lanes == {}
    assert FleetFile.from_json(file.to_json()) == file


def test_every_type_has_its_settings(tmp_path):
    file = read(
        tmp_path,
        "sources:\n"
        "  - {type: aws, name: prod, queue_names: [a, b], group_tags: {team: ml}, period_s: 1m}\n"
        "  - {type: kubernetes, api_url: 'http://127.0.0.1:8080', selector: 'app in (a, b)'}\n"
        "  - {type: local, mounts: ['models=/mnt/models'], host: box}\n"
        f"  - {{type: agents, token: '{HASH}'}}\n",
    )
    aws, kubernetes, local, agents = file.sources
    assert aws.settings()["queue_names"] == ("a", "b")
    assert aws.settings()["group_tags"] == {"team": "ml"}
    assert (aws.called, aws.period_s) == ("prod", 60.0)
    assert isinstance(kubernetes, KubernetesSection)
    assert kubernetes.settings()["api_url"] == "http://127.0.0.1:8080"
    assert isinstance(local, LocalSection)
    assert local.settings()["mounts"] == ("models=/mnt/models",)
    assert isinstance(agents, AgentsSection)
    assert HASH not in repr(agents)
    assert not {"type", "name"} & set(aws.settings())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("admin: {}\n", "fleet.yaml:1: models: is missing; add at least one model"),
        ("sources: []\n", "fleet.yaml:1: models: is missing; add at least one model"),
        ("models: []\n", "fleet.yaml:1: models: has 0 items; use at least 1"),
        (
            "sources:\n  - {region: x}\n",
            "fleet.yaml:2: sources[0]: lacks the key 'type'; add it: it decides the other keys",
        ),
        (
            "sources:\n  - {type: azure}\n",
            "fleet.yaml:2: sources[0].type: must be one of 'aws', 'kubernetes', 'ray', 'local'",
        ),
        (
            "sources:\n  - {type: aws, clutser: x}\n",
            "fleet.yaml:2: sources[0].clutser: is not a known key; did you mean 'cluster'?",
        ),
        (
            "sources:\n  - {type: aws, period_s: 0.1}\n",
            "fleet.yaml:2: sources[0].period_s: must be at least 1 (is 0.1)",
        ),
        (
            "sources:\n  - {type: aws, endpoint_url: 'ftp://x'}\n",
            "fleet.yaml:2: sources[0].endpoint_url: address is 'ftp://x'; write http://host:port",
        ),
        (
            "sources:\n  - {type: aws, endpoint_url: 'http://a:secret@x'}\n",
            "fleet.yaml:2: sources[0].endpoint_url: address holds credentials; remove them",
        ),
        (
            "sources:\n  - {type: aws, queue_prefix: a, queue_names: [b]}\n",
            "fleet.yaml:2: sources[0].queue_names: is set beside queue_prefix; use one of the two",
        ),
        (
            "sources:\n  - {type: kubernetes, api_url: 'http://x', context: y}\n",
            "fleet.yaml:2: sources[0].api_url: is set beside a kubeconfig; keep one",
        ),
        (
            "sources:\n  - {type: kubernetes, token_file: /x}\n",
            "fleet.yaml:2: sources[0].token_file: is set without api_url; set api_url",
        ),
        (
            "sources:\n  - {type: kubernetes, all_pods: false}\n",
            "fleet.yaml:2: sources[0].all_pods: is false without a selector; name the labels",
        ),
        (
            "sources:\n  - {type: local, mounts: [models]}\n",
            "fleet.yaml:2: sources[0].mounts[0]: mount is 'models'; write the mount point",
        ),
        (
            "sources:\n  - {type: agents, token: hunter2}\n",
            "fleet.yaml:2: sources[0].token: key is not a hash (keys are never written down)",
        ),
        (
            "sources:\n  - {type: local}\n  - {type: local}\n",
            "fleet.yaml:3: sources[1]: is called 'local', as sources[0] is; give each its own",
        ),
        (
            "sources:\n  - {type: local, name: fleet}\n",
            "fleet.yaml:2: sources[0].name: is 'fleet', which is a word of ours; use another name",
        ),
        (
            "sources:\n  - {type: agents}\n  - {type: agents, name: b}\n",
            "fleet.yaml:3: sources[1]: is a second place for agents; keep one",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_its_line(tmp_path, text, told):
    found = refused(tmp_path, text)
    assert told in found
    assert "hunter2" not in found
    assert "secret" not in found.replace("a secret", "")


def test_a_selector_that_no_cluster_understands_is_refused(tmp_path):
    assert "sources[0].selector" in refused(
        tmp_path, "sources:\n  - {type: kubernetes, selector: 'a in ('}\n"
    )
