"""Config of the store of durable queues: a file of this host, or a server that hosts share.

    batch:
      store: {kind: postgresql, url_file: /run/secrets/queue-url}

The URL of a server may hold its password, so the fleet file names where the URL is and not the URL:
the file is reviewed, copied and sent to every gateway.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from holdfast.config.addresses import Variable
from holdfast.config.sections import Section
from holdfast.core.types import require


class QueueStoreSection(Section):
    """Where items of batches are kept until they have ended."""

    kind: Literal["sqlite", "postgresql", "redis"] = "sqlite"
    path: Path | None = None  # of the SQLite file; none: in the state directory, under batch/
    url_env: Variable = None  # the environment variable with the server's URL
    url_file: Path | None = None  # or the file with it, by its whole path
    items_max: Annotated[int, Field(ge=1, le=1_000_000_000, description="items")] | None = (
        None  # ended ones that are not purged included; none: 10 million, 1 million in Redis
    )

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        given = [name for name in ("url_env", "url_file") if getattr(self, name) is not None]
        if self.kind == "sqlite":
            fix = "remove it, or set kind to postgresql or redis"
            name = given[0] if given else "url_env"
            require(not given, name, "is set for sqlite", fix)
            return self
        fix = "name the environment variable or the file that holds the server's URL, one of them"
        problem = f"is missing for {self.kind}" if not given else "is set beside url_file"
        require(len(given) == 1, "url_env", problem, fix)
        fix = "remove it: the queues are in the server"
        require(self.path is None, "path", f"is set for {self.kind}", fix)
        return self


__all__ = ["QueueStoreSection"]
