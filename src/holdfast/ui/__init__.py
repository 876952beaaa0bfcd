"""User interfaces: terminal screens and the dashboard."""
