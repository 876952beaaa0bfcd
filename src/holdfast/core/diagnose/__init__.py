"""From facts to incidents: detectors, evidence, cases, causes, and what to do about each.

Here belongs what explains failures: which cause, of which class, proven by what, with which
consequences. Nothing here changes a replica's state; it returns acts that a driver performs. May
import ``core.health`` and what lies below it.
"""
