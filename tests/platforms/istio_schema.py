"""Istio's own schema of its resources, read from a package that asks for a newer Python.

``cloudcoil-models-istio`` is generated from the custom resource definitions of one release of
Istio. Its models are plain pydantic classes; only the builders beside them need Python 3.14. They
are replaced by empty classes here, and the models forbid members that the definitions do not have.
"""

import sys
import types
import typing
from importlib.metadata import distribution

import pydantic


class _Empty:
    """Stands for every base class of a builder; builders are not used."""

    def __class_getitem__(cls, _: object) -> type:
        return cls


class _Strict(pydantic.BaseModel):
    """The base of all models: what the definitions do not have is refused."""

    model_config = pydantic.ConfigDict(extra="forbid", populate_by_name=False)


class _Metadata(pydantic.BaseModel):
    """The name, namespace and labels of a resource."""

    model_config = pydantic.ConfigDict(extra="forbid")
    Builder: typing.ClassVar[type] = _Empty
    BuilderContext: typing.ClassVar[type] = _Empty
    name: str
    namespace: str = "default"
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


def load() -> types.ModuleType:
    """Load the models of ``networking.istio.io/v1``."""
    place = distribution("cloudcoil-models-istio").locate_file(
        "cloudcoil/models/istio/networking/v1.py"
    )
    names = ("BaseBuilder", "BaseModelBuilder", "BuilderContextBase")
    names += ("GenericListBuilder", "ListBuilderContext")
    pydantic_part = types.ModuleType("cloudcoil.pydantic")
    for name in names:
        setattr(pydantic_part, name, _Empty)
    pydantic_part.UNSET = object()
    pydantic_part.BaseModel = _Strict
    pydantic_part.Never, pydantic_part.Self = typing.Never, typing.Self
    resources = types.ModuleType("cloudcoil.resources")
    resources.Resource = _Strict
    machinery = types.ModuleType("cloudcoil.apimachinery")
    machinery.ObjectMeta = _Metadata
    parts = (types.ModuleType("cloudcoil"), pydantic_part, resources, machinery)
    kept = {part.__name__: sys.modules.get(part.__name__) for part in parts}
    module = types.ModuleType("istio_networking_v1")
    try:
        sys.modules.update({part.__name__: part for part in parts})
        sys.modules[module.__name__] = module
        text = place.read_text(encoding="utf-8")
        exec(compile(text, str(place), "exec"), module.__dict__)
    finally:
        for name, before in kept.items():
            if before is None:
                del sys.modules[name]
            else:
                sys.modules[name] = before
    return module
