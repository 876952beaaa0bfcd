"""One cluster of two nodes with a dashboard for all tests; only ``make test-ray`` runs them."""

import os

import pytest

if not os.environ.get("HOLDFAST_RAY"):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def nodes():
    from holdfast.testing.ray_nodes import ray_nodes  # noqa: PLC0415 Ray is only here

    with ray_nodes("b", dashboard=True, dashboard_port=0) as made:
        yield made
