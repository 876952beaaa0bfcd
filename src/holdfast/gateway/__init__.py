"""The data plane: HTTP on both sides, and the live driver of ``core.flow`` between them."""
