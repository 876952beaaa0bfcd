"""The admin port: HTTP paths for questions, orders and logs, and their OpenAPI description.

Here belongs what speaks HTTP with operators. May import every other package of control but not
``control.process``.
"""
