"""Detectors: each turns facts into evidence of one kind of trouble, one detector per file.

A detector that never fires is useless, and one that fires on ordinary work is worse. Each is
therefore tested with what it must catch and with what it must let pass.
"""
