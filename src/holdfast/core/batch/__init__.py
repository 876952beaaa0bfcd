"""Decides how batches go on: their states, how much may run beside users, whose item is next.

Here belongs what the batch runner asks before it acts; it moves the bytes itself.
"""
