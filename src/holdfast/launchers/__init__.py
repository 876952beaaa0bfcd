"""Adapters that start and end engines: processes of this host, and a fake one for tests."""
