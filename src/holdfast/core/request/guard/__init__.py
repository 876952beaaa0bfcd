"""Protects calls to something that hides its replicas, such as a deployment of Ray Serve."""
