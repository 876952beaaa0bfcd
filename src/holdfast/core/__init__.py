"""The decisions, as pure code: no clock, no sockets, no environment, standard library only.

Time comes in as a value ``now`` and randomness as a named ``random.Random``; events go in and
actions come out. The gateway and control run these objects live, the simulator in virtual time.
Packages import downwards only: view, diagnose, health, request, deploy and plan, then the modules
that stand directly in this folder, which are the vocabulary that all of them share.
"""
