"""Kubernetes, as the fleet file asks for it: the launcher of pods, and rights that are missing.

Here the sections of a file become launchers and clients of an API server. How to launch is in
``launchers.kubernetes``, what is read in ``sources.kubernetes``.
"""
