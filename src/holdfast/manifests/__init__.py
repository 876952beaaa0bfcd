"""Manifests for platforms and proxies, made from a fleet file: plain data, nothing is applied.

    fleet file ─► proxy_rules ─► envoy, istio
              └─► workloads, … ─► kubernetes

What a platform cannot do as Holdfast does is not left out in silence: each manifest comes with
notes, which the command prints above it as comments.
"""
