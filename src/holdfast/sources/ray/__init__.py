"""Reads a Ray cluster through its dashboard's HTTP API: nodes, Serve applications, their replicas.

Ray itself is not imported: what is read is JSON over HTTP, from any host that reaches the head.
"""
