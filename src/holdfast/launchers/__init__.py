"""Launchers: adapters that start and end engines as processes of this host."""
