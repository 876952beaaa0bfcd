"""Builds the objects of all layers and connects them: serve, up, down, the process tree."""
