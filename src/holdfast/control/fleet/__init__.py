"""Drives ``core.health``: probes, canaries, engines' load, and the loop that feeds the fleet.

Here belongs what asks replicas something and what performs the fleet's actions. May import
``control.access`` and the modules of ``control`` that fetch.
"""
