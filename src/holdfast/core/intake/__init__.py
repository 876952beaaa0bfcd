"""Bounds on what a process takes in: connections, bytes and descriptors."""
