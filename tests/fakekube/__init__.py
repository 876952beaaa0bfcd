"""A Kubernetes API server for tests, small enough to read, real enough for kubectl."""

from fakekube.objects import event, node, pod
from fakekube.rbac import Right, rights_of
from fakekube.server import FakeKube

__all__ = ["FakeKube", "Right", "event", "node", "pod", "rights_of"]
