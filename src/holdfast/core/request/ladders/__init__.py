"""Ladders of models: what moves requests to a lesser answer under overload, and back."""
