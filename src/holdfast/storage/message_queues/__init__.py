"""Queues that others fill with requests (inboxes), and places where answers go (outboxes)."""
