"""What outlives the processes: one adapter per file."""
