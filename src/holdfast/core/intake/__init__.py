"""Bounds on what a process takes in: connections, bytes and descriptors.

Here belongs what decides who is accepted, who goes for whom, and whose shortage an error is.
Nothing here knows a request's model or a replica. May import only the modules of ``core`` itself.
"""
