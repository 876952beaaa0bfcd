"""Adapters that keep data on disk: control's store, and the history of time series."""
