"""Health of replicas: states, canaries and their verdicts, ejection from the pool, draining.

Here belongs what decides whether a replica may serve, and what a fleet does when its members come,
go or fail. Why something failed is found out in ``core.diagnose``. May import ``core.request`` and
what lies below it.
"""
