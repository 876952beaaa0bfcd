import pytest

from holdfast.sources.kubernetes.quantities import moment, quantity, whole


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("2", 2.0),
        ("250m", 0.25),
        ("100m", 0.1),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("16Gi", 16.0 * 2**30),
        ("64Mi", 64.0 * 2**20),
        ("1k", 1000.0),
        ("5M", 5e6),
        ("7u", 7e-6),
        ("12n", 1.2e-8),
        (".5", 0.5),
        (3, 3.0),
    ],
)
def test_quantities_are_read(written, value):
    assert quantity(written) == value


@pytest.mark.parametrize("written", ["", "x", "1 Gi", "1gi", "--1", None, True, [], "1e999"])
def test_what_is_no_quantity_is_unknown(written):
    assert quantity(written) is None


def test_bytes_are_whole():
    assert whole("1.5Ki") == 1536
    assert whole("no") is None


@pytest.mark.parametrize(
    ("written", "at"),
    [
        ("1970-01-01T00:01:00Z", 60.0),
        ("1970-01-01T00:01:00.123456789Z", 60.123456),
        ("1970-01-01T01:01:00+01:00", 60.0),
        ("1970-01-01T00:01:00", 60.0),
        ("never", None),
        (None, None),
    ],
)
def test_times_are_read(written, at):
    assert moment(written) == at
