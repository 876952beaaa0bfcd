"""Access control of the admin port: tokens, browser sessions, certificates.

Here belongs what decides whether a caller is let in. May import nothing else of control.
"""
