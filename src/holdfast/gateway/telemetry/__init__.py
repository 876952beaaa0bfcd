"""Counters, traces and records of requests, and what a gateway reports of them to control.

Here belong counters, traces, records of single requests and the demand for models. What telemetry
reads of a request is an interface in ``observed_request``. Nothing here influences a request, with
one exception: ``deadly_requests`` refuses requests that control has blocked. May import
``gateway.api`` and ``gateway.http``.
"""
