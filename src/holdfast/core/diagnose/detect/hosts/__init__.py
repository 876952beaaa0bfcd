"""Detectors of what the hosts of replicas do to them."""
