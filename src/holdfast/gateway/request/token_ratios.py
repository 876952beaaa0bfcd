"""Learns how many bytes a token has, by model, from the usage that engines report."""

from typing import Final

from holdfast.gateway.api.prompts import TokenRatio

_REPORTS_ENOUGH: Final = 64  # a ratio remembers about twenty
_SAMPLE_MASK: Final = 15  # once enough are known, one request in sixteen keeps them true


class ModelRatios:
    """The learned bytes per token of one model: ``prompt`` (as JSON) and ``answer`` (as text)."""

    __slots__ = ("answer", "prompt")

    def __init__(self) -> None:
        self.prompt = TokenRatio()
        self.answer = TokenRatio()


class TokenRatios:
    """Learned bytes per token, by model, for all requests of a gateway.

    Entries are never removed.
    """

    __slots__ = ("_by_model",)

    def __init__(self) -> None:
        self._by_model: dict[str, ModelRatios] = {}

    def of(self, model: str) -> ModelRatios:
        """Return the ratios of one model; a model seen for the first time gets the defaults."""
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
        """Update a model's ratios from the byte and token counts of one answer.

        After 64 reports only requests whose serial is a multiple of 16 are used.
        """
        ratios = self.of(model)
        if ratios.answer.reports >= _REPORTS_ENOUGH and serial & _SAMPLE_MASK:
            return
        ratios.prompt.observe(prompt_bytes, prompt_tokens)
        ratios.answer.observe(text_bytes, tokens)


__all__ = ["ModelRatios", "TokenRatios"]
