"""Config of prices: what GPUs and tokens cost; ``holdfast cost`` computes amounts from them.

    prices:
      currency: EUR
      hardware: {h100: 3.9, l4: 0.8}
      models:
        llama: {hardware: h100, gpus: 2, input: 0.5, output: 2.0}
        small: {gpu_hour: 0.6}

Everything is optional: without prices, GPU-seconds and tokens are counted all the same. A GPU-hour
is what is paid for hardware; ``input`` and ``output`` are the selling prices of a million tokens.
Rejected: a table of list prices of clouds. It would be wrong within weeks.
"""

from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import Field

from holdfast.config.models import ModelSection
from holdfast.config.sections import Section
from holdfast.config.tenants import Name
from holdfast.core.plan.cost import ModelPrice, Prices
from holdfast.core.types import require

Price = Annotated[float, Field(ge=0, le=1e6, description="an amount of money")]

_CURRENCY: Final = r"^[A-Za-z]{1,12}$"  # it is a label of metrics


class ModelPriceSection(Section):
    """The prices of one model: its hardware, and its tokens."""

    hardware: Name | None = None  # a name under prices.hardware: what its GPUs cost
    gpu_hour: Price | None = None  # of one of its GPUs, instead of hardware
    gpus: Annotated[int, Field(ge=1, le=1024, description="GPUs")] | None = (
        None  # of one replica; default: tensor × pipeline parallel of launch, else 1
    )
    input: Price = 0.0  # asked for a million tokens of prompts
    output: Price = 0.0  # asked for a million tokens of answers


class PricesSection(Section):
    """All prices of a fleet."""

    currency: Annotated[str, Field(pattern=_CURRENCY, description="a currency")] = "USD"  # a name
    gpu_hour: Price = 0.0  # of a GPU of which nothing else is said
    hardware: Annotated[dict[Name, Price], Field(max_length=64)] = Field(
        default_factory=dict
    )  # a GPU-hour by hardware
    models: Annotated[dict[Name, ModelPriceSection], Field(max_length=1_000)] = Field(
        default_factory=dict
    )  # by model
    output_weight: Annotated[float, Field(gt=0, le=1000, description="tokens")] = (
        4.0  # of a prompt, that a token of an answer counts for when GPU-seconds are shared out
    )

    def prices(self, models: Iterable[ModelSection]) -> Prices:
        """The prices as the core's type, for every model of the file."""
        built = {model.name: self._of(model) for model in models}
        return Prices(self.currency, self.output_weight, built)

    def _of(self, model: ModelSection) -> ModelPrice:
        said = self.models.get(model.name, ModelPriceSection())
        launch = model.launch
        gpus = said.gpus
        if gpus is None:
            split = launch.tensor_parallel * launch.pipeline_parallel if launch is not None else 1
            gpus = max(split, launch.gpus or 0) if launch is not None else split
        hour = said.gpu_hour
        if hour is None:
            hour = self.gpu_hour if said.hardware is None else self.hardware[said.hardware]
        return ModelPrice(gpus, hour, said.input, said.output)


def check_prices(section: PricesSection, models: Iterable[str]) -> None:
    """Refuse prices of models that the file does not have; called for the complete file."""
    known = list(models)
    for name, price in section.models.items():
        where = f"prices.models.{name}"
        fix = f"use one of {', '.join(known[:6])}"
        require(name in known, where, "is no model of this file", fix)
        one = price.hardware is None or price.gpu_hour is None
        require(one, f"{where}.gpu_hour", "is set beside hardware", "keep one of the two")
        if price.hardware is not None:
            priced = ", ".join(list(section.hardware)[:6]) or "nothing yet"
            fix = f"give its price under prices.hardware, which has {priced}"
            found = price.hardware in section.hardware
            require(found, f"{where}.hardware", f"is {price.hardware!r}, without a price", fix)


__all__ = ["ModelPriceSection", "PricesSection", "check_prices"]
