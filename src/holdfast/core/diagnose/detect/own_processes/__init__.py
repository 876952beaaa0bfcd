"""Detectors of what ails Holdfast's own processes: lateness, freezes, and what they lack."""
