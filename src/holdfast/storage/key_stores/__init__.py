"""Adapters that keep idempotency keys for all gateways: SQLite, PostgreSQL, Redis or Valkey."""
