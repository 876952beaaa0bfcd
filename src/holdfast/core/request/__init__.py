"""One request's life: admission, choice of a replica, attempts, retries, hedges, continuations.

Here belongs what is decided for a single request, and what requests share while they are decided
(pools, breakers, budgets, queues, learned deadlines). Whether a replica is healthy is decided in
``core.health``. May import ``core.deploy``, ``core.plan`` and the modules of ``core`` itself.
"""
