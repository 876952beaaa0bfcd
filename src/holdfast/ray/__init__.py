"""What applications of Ray Serve use inside their own code: ``holdfast.ray.guard``."""
