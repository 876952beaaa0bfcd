"""Adapters that read the platforms under the replicas: this host, AWS, Kubernetes, other hosts."""
