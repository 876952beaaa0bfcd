"""Admission of requests: quotas of tenants, the waiting queue, concurrency limits, refusals.

    quota ─► queue (fairness inside each class) ─► limit (room at a replica) ─► dispatch
      │ 429    │ 503, 504                              (no room: the request stays queued)
      └────────┴─► Refusal: status, code, Retry-After, reason

One rule holds for all parts: work is refused before it costs anything, or it is carried through.
"""
