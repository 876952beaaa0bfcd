"""Decides how many replicas of which revision to run, and the next step towards that.

Here belong rollouts, autoscaling and the order of launches. Nothing here starts a process: the
launchers do. May import only the modules of ``core`` itself.
"""
