"""Answers of models: what is right, what is none, and whose differ from those of peers."""
