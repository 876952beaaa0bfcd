"""The rollout of each launched model, with what another control must know to go on with it.

Kept in the store are the last good revision, the refused one, and how a replica of the good one is
started: the file describes only the revision that it wants, and going back needs the other one.
"""

from collections.abc import Mapping
from importlib import metadata
from typing import Any, Final

from holdfast.config.fleet_file import ModelSection
from holdfast.control.deploy.launched_replica import (
    LaunchedReplica,
    build_of,
    new_launched_replica,
)
from holdfast.core.deploy.rollout import Add, Rollout
from holdfast.core.types import require
from holdfast.launchers.weights import path_of
from holdfast.ports import Store

_KEPT: Final = "rollout/"  # a setting of the store, by model


class RolloutRecords:
    """The rollouts of all launched models, each kept in the store.

    ``units``: all launched replicas, by id; the owner adds and removes them.
    """

    def __init__(self, store: Store, units: Mapping[str, LaunchedReplica]) -> None:
        self._store = store
        self._units = units
        self._rollouts: dict[str, Rollout] = {}
        self._wished: dict[str, str] = {}  # the build that each model was last to be
        self._numbers: dict[str, int] = {}  # the last of each model's replicas

    def __getitem__(self, model: str) -> Rollout:
        """The rollout of a launched model; one that was never begun is a mistake of the caller."""
        return self._rollouts[model]

    def begin(self, model: ModelSection) -> None:
        """Build a model's rollout from its stored state: a refused revision is not tried again."""
        kept = self._kept(model.name)
        refused = kept.get("refused_revision")
        told = (refused, kept.get("halted") or "") if refused else None
        self._rollouts[model.name] = Rollout(model.rollout, good=kept.get("good"), refused=told)

    def wish(self, model: str, build: str) -> bool:
        """Note the build that a model is to be; whether it was to be another one before."""
        changed = self._wished.get(model) != build
        self._wished[model] = build
        return changed

    def keep(self, model: str) -> None:
        """Store how the rollout of a model stands, and how its good revision is started."""
        told = self._rollouts[model].snapshot()
        kept = {key: told[key] for key in ("good", "refused_revision", "halted")}
        kept["like"] = self._like_good(model)
        self._store.put_setting(f"{_KEPT}{model}", kept)

    def new_replica(self, model: ModelSection, step: Add) -> LaunchedReplica:
        """Build a replica of the wanted build, or of the last good one after a refused revision.

        It has an id and a port of its own, and is not among ``units`` yet. Starts nothing. Raises
        ``ConfigError`` where the start of the good revision is not known any more, or the file's
        start settings contradict each other.
        """
        taken = {unit.spec.port for unit in self._units.values()}
        number, version = self._number(model.name), _version(model)
        if step.revision != build_of(model, version):
            like = self._like_good(model.name)
            fix = "wish for a revision whose start the file describes"
            known = like is not None and like["build"] == step.revision
            told = f"of {step.revision} is not known any more"
            require(known, "launch", told, fix)
            assert like is not None, "require raised"
            old = LaunchedReplica.from_store(like)
            return old.sibling(f"{model.name}-{number}", step.zone, taken)
        assert model.launch is not None, "only launched models are kept here"
        named = model.launch.weights
        weights = named if model.launch.kubernetes is not None else path_of(named)
        return new_launched_replica(model, number, step.zone, weights, version, taken)

    def _number(self, model: str) -> int:
        """The next number for a replica's id; no replica of this model has it or had it."""
        used = [
            int(unit.id.rpartition("-")[2]) for unit in self._units.values() if unit.model == model
        ]
        number = max([self._numbers.get(model, 0), *used]) + 1
        self._numbers[model] = number
        return number

    def _like_good(self, model: str) -> dict[str, Any] | None:
        """The start settings of a replica of the last good revision, for going back to it."""
        good = self._rollouts[model].good
        for unit in self._units.values():
            if unit.model == model and unit.build == good:
                return unit.to_store()
        like: dict[str, Any] | None = self._kept(model).get("like")
        return like if like is not None and like.get("build") == good else None

    def _kept(self, model: str) -> dict[str, Any]:
        kept: dict[str, Any] = self._store.settings().get(f"{_KEPT}{model}") or {}
        return kept


def wanted_build(model: ModelSection) -> str:
    """The name of the build that a launched model's section asks for."""
    return build_of(model, _version(model))


def revision_of(build: str) -> str:
    """The revision in a build's name, without the digest."""
    return build.rpartition("+")[0]


def _version(model: ModelSection) -> str:
    """The version of the embedded engine; empty for other engines."""
    assert model.launch is not None, "only launched models are kept here"
    if not model.launch.embedded:
        return ""
    try:
        return metadata.version("xllamacpp")
    except metadata.PackageNotFoundError:
        return ""


__all__ = ["RolloutRecords", "revision_of", "wanted_build"]
