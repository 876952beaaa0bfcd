"""Decisions. Standard library only: no clock, no sockets, no environment.

Time enters as ``now``, an integer count of nanoseconds from an arbitrary origin, and randomness as
a named ``random.Random``. Events go in, actions come out; drivers execute them.
"""
