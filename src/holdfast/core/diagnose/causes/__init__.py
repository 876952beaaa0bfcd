"""The causes that an incident can have: one rule each, grouped by subject, in one table.

A new cause is a row in one of the rule modules; ``table`` joins them and checks that none is
missing. No engine code belongs here. May import evidence, failures and types.
"""
