"""The file ``twin.json``: fitted engines, their traffic, what they were fitted from, their limits.

Written by ``holdfast twin calibrate``, read by ``what-if``, ``sweep`` and the page. Fields may be
added, with defaults; none is renamed or removed while ``version`` stays.
"""

from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from holdfast.config.sections import Policy, Section
from holdfast.core.types import ConfigError
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.workload import Workload

FORMAT: Final = "holdfast-twin"
_BYTES_MAX: Final = 8 << 20
_FIX: Final = "name a file that 'holdfast twin calibrate' wrote"


class TwinSource(Section):
    """What a model was fitted from."""

    file: str = ""  # the benchmark's
    began_at: float = 0.0  # Unix time
    requests: Annotated[int, Field(ge=0)] = 0  # answered, and replayed
    left_out: Annotated[int, Field(ge=0)] = 0  # failed or refused
    seconds: float = 0.0  # from the first arrival to the last
    replicas: Annotated[int, Field(ge=0)] = 0


class TwinModel(Section):
    """One fitted model."""

    engine: Annotated[EngineParameters, Policy()]
    per_host: Annotated[int, Field(ge=1)] = 1  # replicas that share a host
    cold_start_s: Annotated[float, Field(ge=0)] | None = None  # None: not measured
    traffic: Annotated[Workload, Policy()] = Workload()
    source: TwinSource = TwinSource()
    fitted: Annotated[int, Field(ge=0)] = 0  # requests of the first fit
    predicted: Annotated[int, Field(ge=0)] = 0  # requests that were held out
    errors: dict[str, dict[str, float | None]] = Field(default_factory=dict)
    limits: list[str] = Field(default_factory=list)


class TwinFile(Section):
    """The contents of a ``twin.json``, validated."""

    format: Literal["holdfast-twin"]
    version: Literal[1]
    made_by: str = ""
    models: dict[str, TwinModel]

    def to_json(self) -> str:
        """The file as text."""
        return self.model_dump_json(by_alias=True, indent=2) + "\n"


def new_twin_file(models: dict[str, TwinModel], made_by: str) -> TwinFile:
    """A file of these models."""
    return TwinFile(format=FORMAT, version=1, made_by=made_by, models=models)


def read_twin(path: Path) -> TwinFile:
    """Read a file; raises ``ConfigError`` that names the file, the field and the fix."""
    try:
        if path.stat().st_size > _BYTES_MAX:
            raise ConfigError(str(path), f"exceeds {_BYTES_MAX >> 20} MB", _FIX)
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}", _FIX) from error
    return twin_of(text, str(path))


def twin_of(text: bytes | str, name: str = "twin") -> TwinFile:
    """Read a file's text; raises ``ConfigError``."""
    try:
        return TwinFile.model_validate_json(text)
    except ValidationError as error:
        first: Any = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        problem = f"{where}: {first['msg']}" if where else str(first["msg"])
        raise ConfigError(name, f"is no twin ({problem})"[:300], _FIX) from error


__all__ = ["FORMAT", "TwinFile", "TwinModel", "TwinSource", "new_twin_file", "read_twin", "twin_of"]
