"""A Kubernetes API server for tests, small enough to read, real enough for kubectl."""

from fakekube.objects import event, node, pod
from fakekube.server import FakeKube

__all__ = ["FakeKube", "event", "node", "pod"]
