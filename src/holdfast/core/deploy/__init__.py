"""How many replicas of which revision there should be, and the next step towards that number.

Here belong rollouts, autoscaling and the order of launches. Nothing here starts a process: the
launchers do. May import only the modules of ``core`` itself.
"""
