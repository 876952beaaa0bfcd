"""The commands of ``holdfast idempotency``."""

from holdfast.cli.idempotency.commands import idempotency

__all__ = ["idempotency"]
