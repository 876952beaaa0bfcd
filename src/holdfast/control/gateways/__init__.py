"""Control's side of the gateways: connections, leases, counters, the state they start from.

Here belongs what is exchanged with gateway processes. May import ``control.fleet`` and what lies
below.
"""
