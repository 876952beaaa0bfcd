"""Errors for names of replicas and models that do not exist."""


class UnknownReplicaError(Exception):
    """No replica of the fleet has this id."""

    def __init__(self, replica_id: str) -> None:
        super().__init__(f"no replica has the id {replica_id[:200]!r}")


class UnknownModelError(Exception):
    """The fleet file has no model of this name."""

    def __init__(self, model: str) -> None:
        super().__init__(f"no model is called {model[:200]!r}")


__all__ = ["UnknownModelError", "UnknownReplicaError"]
