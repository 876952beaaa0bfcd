"""Learns how many bytes a token has, by model, from the usage that engines report."""

from typing import Final

from holdfast.gateway.api.prompts import TokenRatio

_REPORTS_ENOUGH: Final = 64  # a ratio remembers about twenty
_SAMPLE_MASK: Final = 15  # once enough are known, one request in sixteen keeps them true


class ModelRatios:
    """Bytes per token of one model, in prompts (as JSON) and in answers (as text)."""

    __slots__ = ("answer", "prompt")

    def __init__(self) -> None:
        self.prompt = TokenRatio()
        self.answer = TokenRatio()


class TokenRatios:
    """Keeps bytes per token by model; bounded, because models come from the config."""

    __slots__ = ("_by_model",)

    def __init__(self) -> None:
        self._by_model: dict[str, ModelRatios] = {}

    def of(self, model: str) -> ModelRatios:
        """Return the ratios of one model."""
        ratios = self._by_model.get(model)
        if ratios is None:
            ratios = self._by_model[model] = ModelRatios()
        return ratios

    def learn(
        self,
        model: str,
        serial: int,
        prompt_bytes: int,
        prompt_tokens: int,
        text_bytes: int,
        tokens: int,
    ) -> None:
        """Update a model's ratios from an engine's token counts; later only for 1 in 16 serials."""
        ratios = self.of(model)
        if ratios.answer.reports >= _REPORTS_ENOUGH and serial & _SAMPLE_MASK:
            return
        ratios.prompt.observe(prompt_bytes, prompt_tokens)
        ratios.answer.observe(text_bytes, tokens)


__all__ = ["ModelRatios", "TokenRatios"]
