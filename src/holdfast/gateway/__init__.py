"""The data plane: one process per core that carries users' requests to replicas.

``http`` moves bytes, ``api`` understands OpenAI bodies and answers, ``telemetry`` records what
happened, ``request`` drives ``core.request`` for each request, ``control_report`` tells control of
it. Imports go from ``process`` over ``control_report``, ``request``, ``telemetry`` and ``api`` down
to ``http``.
"""
