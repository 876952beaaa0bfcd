"""Config of platforms that replicas are launched on, beside this host."""
