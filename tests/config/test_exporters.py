from textwrap import dedent

import pytest

from holdfast.config.document import ConfigFileError
from holdfast.config.exporters import ExportersSection
from holdfast.config.files import load
from holdfast.config.sections import Section


class File(Section):
    """A file that holds exporters and nothing else."""

    exporters: ExportersSection = ExportersSection()


def read(tmp_path, text):
    path = tmp_path / "exporters.yaml"
    path.write_text(dedent(text))
    return load(path, File).exporters


def test_nobody_is_told_unless_the_file_says_so(tmp_path):
    section = read(tmp_path, "exporters: {}")
    assert (section.cloudwatch, section.traces) == (None, None)
    assert (section.trace_share, section.trace_follow) == (0.0, False)


def test_both_are_read(tmp_path):
    section = read(
        tmp_path,
        """
        exporters:
          cloudwatch:
            region: eu-west-1
            period: 30s
            dimensions: {ClusterName: prod}
            endpoint_url: http://127.0.0.1:5000
          traces: {endpoint: "http://collector:4318/", share: 0.5, follow_callers: true}
        """,
    )
    assert (section.cloudwatch.namespace, section.cloudwatch.period) == ("Holdfast", 30.0)
    assert section.traces.endpoint == "http://collector:4318"
    assert (section.trace_share, section.trace_follow) == (0.5, True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cloudwatch: {namespace: AWS/EC2}", "namespace"),
        ("cloudwatch: {period: 100ms}", "period"),
        ("cloudwatch: {dimensions: {Model: m}}", "dimensions"),
        ("cloudwatch: {endpoint_url: 'ftp://h'}", "endpoint_url"),
        ("traces: {}", "endpoint"),
        ("traces: {endpoint: 'http://h:4318', share: 1.5}", "share"),
        ("traces: {endpoint: 'http://h:4318/v1/traces'}", "endpoint"),
        ("traces: {endpoint: 'http://h:4318?a=b'}", "endpoint"),
        ("traces: {endpoint: 'http://h:99999999'}", "endpoint"),
        ("traces: {endpoint: 'http://h:1', headers_env: 'a token'}", "headers_env"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path, text, told):
    with pytest.raises(ConfigFileError, match=told):
        read(tmp_path, f"exporters: {{{text}}}")


def test_a_password_in_an_address_is_not_repeated(tmp_path):
    with pytest.raises(ConfigFileError) as caught:
        read(tmp_path, "exporters: {traces: {endpoint: 'http://me:hunter2@h:4318'}}")
    assert "hunter2" not in str(caught.value)
