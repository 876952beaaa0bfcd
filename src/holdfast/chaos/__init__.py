"""Fault injection into a running fleet: bounded in time, always undone."""
