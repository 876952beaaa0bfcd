"""Drift of answers' lengths and scores against a frozen baseline: the detector and its baseline."""
