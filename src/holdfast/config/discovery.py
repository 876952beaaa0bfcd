"""Config of discovered replicas: those that another system starts and a source finds.

A model that says ``discover`` has the pods, or tasks, that a source sees as its replicas. Whether
one is ready is left to Holdfast's own canaries: a pod's probe is often a port that answers.
"""

from typing import Annotated, Final, Literal, Self, cast

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from holdfast.config.sections import Section
from holdfast.config.tenants import Name
from holdfast.core.deploy.pod_port import PORT_FIX, PORT_MAX, checked_port
from holdfast.core.types import require
from holdfast.core.view.selectors import parse_selector

FOUND_MAX: Final = 1_024  # replicas of one model
PORT: Final = 8000  # of vLLM, and of most engines' images
IMAGE: Final = "image"  # instead of a label: the image's digest, or its name where none is known
TASK_DEFINITION: Final = "task-definition"  # of a task of ECS: its family and revision
# A template's hash changes with anything in the template, weights and their arguments included; a
# version label often stays the same while those change.
REVISION_FROM: Final = (
    "holdfast.dev/revision",
    "pod-template-hash",
    "controller-revision-hash",
    "app.kubernetes.io/version",
    TASK_DEFINITION,
    IMAGE,
)


def _selector(text: str) -> str:
    parse_selector(text)
    return text


# As the published schema has it.
_WRITTEN_PORT: Final = (
    Annotated[int, Field(ge=1, le=PORT_MAX, json_schema_extra={"default": PORT})]
    | Annotated[str, Field(min_length=1, max_length=15)]
)


def _port(value: object) -> int | str:
    is_port = isinstance(value, int | str) and not isinstance(value, bool)
    require(is_port, "port", f"is {str(value)[:40]}", PORT_FIX)
    return checked_port(cast("int | str", value))


class DiscoverSection(Section):
    """Which pods of a source are replicas of a model, and on which port they listen."""

    source: Annotated[Name, Field(description="the name of a source", examples=["kubernetes"])]
    selector: Annotated[
        str,
        AfterValidator(_selector),
        Field(max_length=1024, description="labels of its pods, such as app=llama"),
    ] = ""  # empty: pods whose model, as the source reads it, is this one
    # Instead of selector and port: both are then those of the InferencePool.
    inference_pool: Annotated[
        str, Field(max_length=253, pattern=r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$")
    ] = Field(default="", description="the name of an InferencePool", examples=["vllm-llama3"])
    namespace: Annotated[str, Field(max_length=63, description="a namespace")] = ""  # empty: any
    # A pod may name another one by the annotation or label holdfast.dev/port.
    port: Annotated[
        int | str,
        BeforeValidator(_port, json_schema_input_type=_WRITTEN_PORT),
        Field(description="the port of the engine, by number or name", examples=[8000, "http"]),
    ] = PORT
    scheme: Literal["http", "https"] = "http"
    region: Annotated[str, Field(min_length=1, max_length=64, description="a region")] = "region-a"
    slots: Annotated[int, Field(ge=0, description="requests at once; 0 = undeclared")] = 0
    # The first that a pod has is its revision; none: all have the model's.
    revision_from: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=317, description="a label, or image")]],
        Field(max_length=16, description="labels of a pod, or image"),
    ] = Field(default_factory=lambda: list(REVISION_FROM))

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        for name in ("selector", "port"):
            alone = not self.inference_pool or name not in self.model_fields_set
            problem = "is set beside inference_pool, which says it itself"
            require(alone, f"discover.{name}", problem, "keep one of the two")
        return self


__all__ = ["FOUND_MAX", "IMAGE", "REVISION_FROM", "TASK_DEFINITION", "DiscoverSection"]
