"""Faults for a fleet that runs: bounded in time, always undone."""
