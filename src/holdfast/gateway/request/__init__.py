"""Drives ``core.request`` for each proxied request, from its first byte to its last.

Here belongs the execution of what the core decides: attempts, streams, continuations. Decisions
belong in ``core.request``. A request holds a port to the flow, the targets and an observer. May
import all other packages of the gateway.
"""
