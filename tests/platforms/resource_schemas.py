"""The schemas of Istio's and KEDA's own resources, read from packages without what they import.

``cloudcoil-models-istio`` and ``cloudcoil-models-keda`` are generated from the custom resource
definitions of one release each. Their models are plain pydantic classes; only the builders beside
them need a client library, and a newer Python. Builders are replaced by empty classes here, and the
models forbid members that the definitions do not have.
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


def istio() -> types.ModuleType:
    """Load the models of ``networking.istio.io/v1``."""
    return _load("cloudcoil-models-istio", "cloudcoil/models/istio/networking/v1.py")


def keda() -> types.ModuleType:
    """Load the models of ``keda.sh/v1alpha1``."""
    return _load("cloudcoil-models-keda", "cloudcoil/models/keda/v1alpha1.py")


def _load(package: str, path: str) -> types.ModuleType:
    place = distribution(package).locate_file(path)
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
    module = types.ModuleType(path.removesuffix(".py").replace("/", "_"))
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
