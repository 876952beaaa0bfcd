"""Detectors: from what was seen to a judgement, one to a file, each with its reason.

A detector that cannot fire is a decoration, and one that fires on ordinary work is worse. Each is
therefore tested with what it must catch and with what it must let pass.
"""
