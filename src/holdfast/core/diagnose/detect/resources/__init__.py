"""Detectors of hardware and of room: GPUs that are ill, idle or stranded, and tails of latency."""
