"""What a gateway counts, traces and reports to control.

Here belong counters, traces, stories of single requests and the tallies that detectors read.
Nothing here influences a request. May import ``gateway.api`` and ``gateway.http``.
"""
