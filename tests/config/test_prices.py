from textwrap import dedent

import pytest

from holdfast.config.document import ConfigFileError
from holdfast.config.files import load
from holdfast.config.models import ModelSection
from holdfast.config.prices import PricesSection, check_prices
from holdfast.config.sections import Section
from holdfast.core.plan.cost import ModelPrice
from holdfast.core.types import ConfigError


class File(Section):
    """A file that holds prices and nothing else."""

    prices: PricesSection = PricesSection()


LISTED = ModelSection.model_validate(
    {"name": "llama", "engine": "vllm", "endpoints": ["http://h:1"]}
)
LAUNCHED = ModelSection.model_validate(
    {
        "name": "big",
        "engine": "vllm",
        "launch": {"weights": "org/big", "tensor_parallel": 4, "pipeline_parallel": 2},
    }
)


def read(tmp_path, text):
    path = tmp_path / "prices.yaml"
    path.write_text(dedent(text))
    return load(path, File).prices


def test_without_prices_there_is_still_a_book(tmp_path):
    prices = read(tmp_path, "prices: {}").prices([LISTED, LAUNCHED])
    assert prices.currency == "USD"
    assert prices.of("llama") == ModelPrice(gpus=1)
    assert prices.of("big") == ModelPrice(gpus=8)  # as it is launched
    wide = LAUNCHED.model_copy(update={"launch": LAUNCHED.launch.model_copy(update={"gpus": 10})})
    assert read(tmp_path, "prices: {}").prices([wide]).of("big") == ModelPrice(gpus=10)


def test_a_model_has_its_hardwares_price_or_its_own(tmp_path):
    section = read(
        tmp_path,
        """
        prices:
          currency: EUR
          gpu_hour: 1.0
          hardware: {h100: 3.9}
          output_weight: 3
          models:
            llama: {hardware: h100, gpus: 2, input: 0.5, output: 2.0}
        """,
    )
    check_prices(section, ["llama", "big"])
    prices = section.prices([LISTED, LAUNCHED])
    assert (prices.currency, prices.output_weight) == ("EUR", 3.0)
    assert prices.of("llama") == ModelPrice(2, 3.9, 0.5, 2.0)
    assert prices.of("big").gpu_hour == 1.0
    own = read(tmp_path, "prices: {models: {llama: {gpu_hour: 7}}}")
    assert own.prices([LISTED]).of("llama").gpu_hour == 7.0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prices: {currency: 'US$'}", "prices.currency"),
        ("prices: {gpu_hour: -1}", "prices.gpu_hour"),
        ("prices: {models: {m: {gpus: 0}}}", "prices.models.m.gpus"),
        ("prices: {output_weight: 0}", "prices.output_weight"),
        ("prices: {models: {m: {gpu_houre: 1}}}", "gpu_houre"),
    ],
)
def test_what_is_no_price_is_refused_with_its_line(tmp_path, text, told):
    with pytest.raises(ConfigFileError, match=told):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("models", "told"),
    [
        ({"other": {}}, "no model of this file"),
        ({"llama": {"hardware": "h100"}}, "without a price"),
        ({"llama": {"hardware": "l4", "gpu_hour": 1.0}}, "beside hardware"),
    ],
)
def test_prices_of_what_the_file_does_not_have_are_refused(models, told):
    section = PricesSection.model_validate({"hardware": {"l4": 0.8}, "models": models})
    with pytest.raises(ConfigError, match=told):
        check_prices(section, ["llama"])
