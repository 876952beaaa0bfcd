"""The other side of the batch API: what ``holdfast batch`` uses to send files through it."""
