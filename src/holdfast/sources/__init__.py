"""What the machine under the replicas says of itself: one adapter per file."""
