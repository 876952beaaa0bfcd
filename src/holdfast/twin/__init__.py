"""The digital twin: a fleet's engines fitted from measurements, and its changes tried in it."""
