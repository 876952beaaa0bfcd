"""Adapters of the durable queue's port: one file per kind of store, and what they share."""
