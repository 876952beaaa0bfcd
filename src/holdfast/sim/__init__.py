"""The simulator: drives the decision core in virtual time against modelled replicas and faults."""
