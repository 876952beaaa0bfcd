"""Base types of config sections, and sections derived from core configs.

``policy_section`` derives a section from a core config, so a tunable is written down once, beside
its policy. Rejected: a hand-written section per policy. Two lists of the same numbers drift apart.
"""

import re
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    Self,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError, core_schema

DURATION_S_MAX: Final = 1e9  # thirty years; anything longer is a mistake in the unit

CoreT = TypeVar("CoreT")


class Section(BaseModel):
    """Base of every part of a config file: frozen, no unknown keys, no silent conversions.

    A field's ``description`` is a noun phrase with its unit ("requests per second"): messages
    quote it. A field that may hold one of several sections needs a discriminator.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=()
    )


_DURATION: Final = re.compile(r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)) ?(ms|s|m|h|d)")
_MS_PER_UNIT: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def _seconds(value: object) -> object:
    """Seconds from text with a unit; other types are left to pydantic."""
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if match is None:
            raise PydanticCustomError("duration", "not a duration")
        value = float(match[1]) * _MS_PER_UNIT[match[2]] / 1_000  # one division: 250ms is 0.25
    if isinstance(value, int | float) and abs(value) > DURATION_S_MAX:
        raise PydanticCustomError("duration_too_long", "too long")
    return value


Duration = Annotated[float, BeforeValidator(_seconds, json_schema_input_type=float | str)]


class PolicySection(Section, Generic[CoreT]):
    """A section that mirrors a core config and can build it. Made by ``policy_section``."""

    core_type: ClassVar[type[Any]]

    def build(self) -> CoreT:
        """Build the core config with these values."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return cast("CoreT", self.core_type(**values))

    @model_validator(mode="after")
    def _core_agrees(self) -> Self:
        self.build()
        return self


class Policy:
    """Marks a field that holds a core config: ``breaker: Annotated[BreakerConfig, Policy()]``.

    In the file it is a section; the validated field is the core config itself. ``defaults`` holds
    the values of keys that the file leaves out, where they differ from the core's own.
    """

    __slots__ = ("defaults",)

    def __init__(self, defaults: object | None = None) -> None:
        self.defaults = defaults

    def __get_pydantic_core_schema__(
        self, source: type[Any], handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Read a mapping through the derived section; from code take the core config as it is."""
        section = policy_section(source, defaults=self.defaults)
        built = core_schema.no_info_after_validator_function(
            section.build, handler.generate_schema(section)
        )
        either = core_schema.union_schema([core_schema.is_instance_schema(source), built])
        plain = core_schema.plain_serializer_function_ser_schema(asdict)
        return core_schema.json_or_python_schema(built, either, serialization=plain)


def policy_section(
    core: type[CoreT], name: str = "", *, defaults: CoreT | None = None
) -> type[PolicySection[CoreT]]:
    """Derive a section from a core config: same fields, types, defaults and checks.

    Fields ending in ``_s`` are durations; nested core configs become nested sections.
    """
    title = name or core.__name__.removesuffix("Config")
    target: Any = core  # its type is known to the caller only
    derived = _derived(target, title) if defaults is None else _derive(target, title, defaults)
    return cast("type[PolicySection[CoreT]]", derived)


def _derive(core: type[Any], title: str, defaults: object) -> type[PolicySection[Any]]:
    if not is_dataclass(core):
        raise TypeError(f"{core!r} is not a dataclass: only core configs can be mirrored")
    hints = get_type_hints(core)
    definitions: dict[str, Any] = {}
    for field in fields(core):
        default = field.default
        if defaults is not None:
            default = getattr(defaults, field.name)
        elif field.default_factory is not MISSING:
            default = field.default_factory()
        # A rate per second ends in _s too and is not a duration.
        timed = field.name.endswith("_s") and not field.name.endswith("_per_s")
        hint = _file_type(hints[field.name], timed=timed, default=default)
        definitions[field.name] = (hint, ... if default is MISSING else default)
    # Any: the stubs of create_model cannot express fields that are known at run time only.
    make: Any = create_model
    section: type[PolicySection[Any]] = make(
        title, __base__=PolicySection, __module__=core.__module__, **definitions
    )
    section.core_type = core
    return section


@cache
def _derived(core: type[Any], title: str) -> type[PolicySection[Any]]:
    return _derive(core, title, None)


def _file_type(hint: Any, *, timed: bool, default: object) -> Any:
    """A core type as it is written in a file."""
    if hint is float and timed:
        return Duration
    if isinstance(hint, type) and is_dataclass(hint):
        return Annotated[hint, Policy(default if isinstance(default, hint) else None)]
    origin = get_origin(hint)
    if origin is None or origin is Literal:
        return hint
    members = tuple(_file_type(arg, timed=timed, default=default) for arg in get_args(hint))
    return Union[members] if origin in {Union, UnionType} else origin[members]  # noqa: UP007


__all__ = ["Duration", "Policy", "PolicySection", "Section", "policy_section"]
