"""From readings of all layers to one joined picture of the fleet.

Here belongs what combines platform, hosts, queues, replicas, models and incidents into the rows
that people see. It decides nothing about replicas. May import every other package of ``core``.
"""
