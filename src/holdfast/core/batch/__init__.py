"""Decides how batches go on: their states, how much may run beside users, whose item is next.

Here belongs what the batch runner asks before it acts; not what moves bytes, keeps files or talks
to a queue. It may import the modules of ``core`` itself (types, stats) and nothing else of it.
"""
