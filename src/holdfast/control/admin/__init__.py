"""The operators' port: questions, orders, logs, and their description for programs.

Here belongs what speaks HTTP with operators. May import every other package of control but not
``control.process``.
"""
