"""Drives ``core.request``: one proxied request from its first byte to its last.

Here belongs the execution of what the core decides: attempts, streams, continuations. Decisions
belong in ``core.request``. May import all other packages of the gateway.
"""
