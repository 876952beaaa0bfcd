"""Test doubles for tests, examples and benchmarks: a stand-in engine, fakes, a small simulator.

Shipped so that users can try a fleet without an engine, but apart from the product: only ``cli``
and tests may import it.
"""
