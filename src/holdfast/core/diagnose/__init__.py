"""Finds the causes of failures: facts, detectors, evidence, incidents, causes and remedies.

Here belongs what explains failures: which cause, of which class, proven by what, with which
consequences. Nothing here changes a replica's state; it returns acts that a driver performs. May
import ``core.health`` and what lies below it.
"""
