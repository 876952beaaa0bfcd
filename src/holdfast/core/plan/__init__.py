"""The mathematics of planning: capacity, redundancy, fault models and cost.

Here belong formulas over numbers that a planner gives or control has counted. Nothing here knows a
live fleet. May import only the modules of ``core`` itself.
"""
