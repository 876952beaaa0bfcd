"""Control's side of the gateways: connections, leases, counters, and the state file.

Here belongs what is exchanged with gateway processes. May import ``control.fleet`` and what lies
below.
"""
