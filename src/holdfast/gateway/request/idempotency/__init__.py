"""Requests with an idempotency key: one execution, and one answer for all who send the key.

Here belongs the execution of what ``core.request.idempotency`` decides: callers, answers that they
share, and the thread that asks the store. Requests without a key come by none of it. May import
``gateway.request`` and what lies below.
"""
