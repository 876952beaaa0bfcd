"""Inference servers by their own counts: figures of the last minute, and a detector."""
