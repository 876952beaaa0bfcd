"""Formulas for planning: capacity, redundancy, faults to inject, and cost.

Here belong formulas over numbers that a planner gives or control has counted. Nothing here knows a
live fleet. May import only the modules of ``core`` itself.
"""
