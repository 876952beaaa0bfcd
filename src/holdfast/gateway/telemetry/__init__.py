"""What a gateway counts, traces and reports to control.

Here belong counters, traces, records of single requests and the demand for models. What telemetry
reads of a request is an interface in ``observed``. Nothing here influences a request, but that one
is refused which control has blocked. May import ``gateway.api`` and ``gateway.http``.
"""
