"""Memory of simulated replicas: KV blocks of past prompts, and the resident memory of a process."""
