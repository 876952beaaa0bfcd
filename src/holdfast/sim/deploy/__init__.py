"""Simulated deployments: replicas that an autoscaler adds and takes away while a run lasts."""
