"""Exporters: push metrics and traces to CloudWatch and to OpenTelemetry collectors."""
