"""Joins readings of all platforms with control's records into the rows that people see.

Here belongs what combines platform, hosts, queues, replicas, models and incidents into the rows
that people see. It decides nothing about replicas. May import every other package of ``core``.
"""
