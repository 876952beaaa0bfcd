"""Drives ``core.health``: sends probes and canaries, polls engines' load, runs the fleet's loop.

Here belongs what asks replicas something and what performs the fleet's actions. May import
``control.access`` and the modules of ``control`` that fetch.
"""
