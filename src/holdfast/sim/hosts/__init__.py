"""Models of hosts that several simulated replicas share."""
