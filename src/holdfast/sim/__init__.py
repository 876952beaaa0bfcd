"""The second driver of the core: a virtual clock, modelled replicas, and models held to theory."""
