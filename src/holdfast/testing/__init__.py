"""What tests, examples and benchmarks run against: a stand-in engine, fakes, a reference simulator.

Shipped so that users can try a fleet without an engine, but apart from the product: nothing outside
``cli`` and tests may import it.
"""
