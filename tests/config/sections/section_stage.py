"""Sections with a field of every kind, and files of them that are written or refused."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field, field_validator, model_validator

from holdfast.config.document import ConfigFileError
from holdfast.config.files import load
from holdfast.config.sections import Duration, Policy, Section
from holdfast.core.request.breaker import BreakerConfig
from holdfast.core.types import require


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


class Crash(Section):
    kind: Literal["crash"]
    target: str


class Slow(Section):
    kind: Literal["slow"]
    factor: float = Field(2.0, gt=1)


class Workload(Section):
    rate: Annotated[float, Field(gt=0, description="requests per second")] = 1.0
    shape: Colour = Colour.RED
    mode: Literal["open", "closed"] = "open"
    at_least: Annotated[int, Field(ge=1)] = 1
    below: Annotated[float, Field(lt=1)] = 0.0
    at_most: Annotated[int, Field(le=9)] = 9
    even: Annotated[int, Field(multiple_of=2)] = 2
    name: Annotated[str, Field(min_length=2, max_length=4, pattern="^a")] = "ab"
    warm: bool = False
    pause_s: Duration = 0.0
    sizes: tuple[int, ...] = ()
    pair: tuple[float, float] = (1.0, 2.0)
    some: list[int] = Field([1], min_length=1, max_length=2)
    tags: frozenset[str] = frozenset()
    weights: dict[str, float] = Field({})
    by_number: dict[int, str] = Field({})
    nothing: None = None
    trace: Path | None = None
    either: int | tuple[int, ...] = 1

    @field_validator("at_most")
    @classmethod
    def _not_seven(cls, value: int) -> int:
        if value == 7:
            raise ValueError("seven is taken")
        if value == 8:
            raise AssertionError("eight\n  is taken")
        return value


class Limits(Section):
    high: int = 10
    low: int = Field(1, alias="floor")

    @model_validator(mode="after")
    def _ordered(self) -> "Limits":
        require(self.low <= self.high, "limits.floor", f"is {self.low}", "stay below high")
        require(self.high < 100, "elsewhere.top", f"is {self.high}", "stay below 100")
        return self


class Scenario(Section):
    replicas: int
    workload: Workload = Workload()
    faults: tuple[Annotated[Crash | Slow, Field(discriminator="kind")], ...] = ()
    breaker: Annotated[BreakerConfig, Policy()] = BreakerConfig()
    limits: Limits | None = None


def write(tmp_path: Path, text: str | bytes, name: str = "x.yaml") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refused(tmp_path: Path, text: str | bytes, model: type[Section] = Scenario) -> list[str]:
    """The problems of a file, without its path; the path must be there."""
    path = write(tmp_path, text)
    with pytest.raises(ConfigFileError) as caught:
        load(path, model)
    lines = str(caught.value).splitlines()
    for line in lines:
        assert line.startswith(f"{path}:")
    for problem in caught.value.problems:
        assert problem.problem
        assert problem.fix
        assert problem.field
        assert problem.line >= 1
        assert problem.column >= 1
    return [line.removeprefix(f"{path}:") for line in lines]
