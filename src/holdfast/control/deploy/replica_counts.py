"""How many replicas each launched model should have: the file's, an operator's, the autoscaler's.

An operator's order holds until the file says another number than it said then. A model with
``scaling`` follows demand alone. Both outlive control: a model that was at zero, or at ten, is so
for the next control too.
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol

from holdfast.config.fleet_file import ModelSection
from holdfast.config.launch import REPLICAS_MAX
from holdfast.core.deploy.autoscale import Autoscaler, Demand, Desired
from holdfast.core.messages import Notice
from holdfast.ports import Store

NOT_LAUNCHED: Final = "its replicas are not started here: change the file"

_ORDERED: Final = "scale/"  # settings of the store, by model
_SCALED: Final = "scaled/"


class CountsPort(Protocol):
    """The methods of control that ``ReplicaCounts`` calls."""

    def note(self, notice: Notice) -> None:
        """Record a notice in the events that operators read."""

    def demand(self, model: str, now: int) -> Demand:
        """The present demand for a model, which the autoscaler decides by."""


class ReplicaCounts:
    """Decides and remembers the wanted number of replicas of each launched model."""

    def __init__(self, store: Store, host: CountsPort) -> None:
        self._store = store
        self._host = host
        self._scalers: dict[str, Autoscaler] = {}
        self._desired: dict[str, Desired] = {}
        self._scaled: dict[str, int] = {}  # how many were desired, as the store has it
        self._ordered: dict[str, tuple[int, int]] = {}  # by an operator: (count, the file's then)

    def restore(self, settings: Mapping[str, Any]) -> None:
        """Take over operators' orders and the autoscalers' last numbers from the store."""
        for key, value in settings.items():
            if key.startswith(_ORDERED):
                order = (int(value["count"]), int(value["of"]))
                self._ordered[key.removeprefix(_ORDERED)] = order
            elif key.startswith(_SCALED):
                self._scaled[key.removeprefix(_SCALED)] = int(value["count"])

    def follow(self, model: ModelSection, before: ModelSection | None) -> None:
        """Scale a launched model as its section says; ``before``: its former section, if any."""
        name = model.name
        if model.scaling is None:
            self._scalers.pop(name, None)
            self._desired.pop(name, None)
            self._scaled.pop(name, None)
        elif before is None or before.scaling != model.scaling:
            self._scalers[name] = Autoscaler(model.scaling)

    def count(self, model: ModelSection) -> int:
        """The wanted number of replicas of a launched model, not the present one.

        The autoscaler's number where the model scales by itself, else an operator's order, else the
        fleet file's number.
        """
        desired = self._desired.get(model.name)
        return desired.count if desired is not None else self._declared(model)

    def _declared(self, model: ModelSection) -> int:
        assert model.launch is not None, "only launched models are kept here"
        ordered = self._ordered.get(model.name)
        if ordered is not None and ordered[1] == model.launch.replicas:
            return ordered[0]
        return model.launch.replicas  # a file that says another number is newer than the operator

    def autoscale(self, model: ModelSection, now: int) -> None:
        """Let a model that scales by itself follow its demand; nothing for others."""
        name = model.name
        scaler = self._scalers.get(name)
        if scaler is None:
            return
        before = self._desired.get(name)
        kept = self._scaled.get(name, self._declared(model))
        present = before.count if before is not None else kept
        desired = scaler.decide(self._host.demand(name, now), present, now)
        self._desired[name] = desired
        if self._scaled.get(name) != desired.count:
            self._scaled[name] = desired.count
            self._store.put_setting(f"{_SCALED}{name}", {"count": desired.count})
        if present != desired.count:
            told = f"{present} to {desired.count}: {desired.reason}"
            self._host.note(Notice(now, name, "", "scaled", told))

    def order(self, model: ModelSection, count: int) -> tuple[bool, str]:
        """Take an operator's number and store it; return whether it was, and a sentence.

        Refused: models not launched here, models that autoscale, and numbers out of range.
        """
        if model.launch is None:
            return False, NOT_LAUNCHED
        if model.scaling is not None:
            return False, "it scales by itself: change models[].scaling in the file"
        if not 0 <= count <= REPLICAS_MAX:
            return False, f"use 0 to {REPLICAS_MAX} replicas"
        name, declared = model.name, model.launch.replicas
        self._ordered[name] = (count, declared)
        self._store.put_setting(f"{_ORDERED}{name}", {"count": count, "of": declared})
        return True, f"{name} is to have {count} replicas"

    def snapshot(self, model: str) -> dict[str, Any]:
        """The autoscaler's state and the reason of its number, for ``/status``."""
        scaler, desired = self._scalers.get(model), self._desired.get(model)
        return {
            "scaling": scaler.snapshot() if scaler is not None else None,
            "reason": desired.reason if desired is not None else "",
        }


__all__ = ["NOT_LAUNCHED", "CountsPort", "ReplicaCounts"]
