"""Commands about what answers and versions are compared with: baseline, versions."""
