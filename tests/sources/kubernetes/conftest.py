"""The fake API server that these tests speak to."""

import pytest

from fakekube import FakeKube


@pytest.fixture
def kube():
    with FakeKube() as server:
        yield server
