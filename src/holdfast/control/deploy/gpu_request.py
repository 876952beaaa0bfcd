"""Reads off a model's section which GPUs of this host one launched replica of it needs.

    launch.gpus                          ─► so many, alone on them; it waits where they are not free
    an engine that needs a GPU, unsaid   ─► tensor × pipeline degree
    its own command, or devices by hand  ─► nothing is chosen: the file has decided

A file of before ``launch.gpus`` runs on as it did. What its arguments say of parallelism is not
understood here, so nothing is chosen for it. How much memory its replicas take is not always known
either, so several may fit on one device: where too few are free they start beside each other, with
a warning. Who waits for devices is who asked for them.
"""

import re
from typing import Final

from holdfast.config.fleet_file import ModelSection
from holdfast.config.launch import VISIBLE, LaunchSection
from holdfast.core.deploy.gpu_placement import DEVICES_MAX, GpuRequest, Overcommit
from holdfast.core.types import require
from holdfast.engines import dialect

SHARED_MAX: Final = 0.5  # share of a GPU's memory; a replica that needs more has its GPU alone

_BY_HAND: Final = (VISIBLE, "NVIDIA_VISIBLE_DEVICES")
_SPLIT: Final = re.compile(r"-.*(parallel|shard|world)|-+(tp|pp|dp|ep)([-_=].*)?$")


def gpu_request_of(model: ModelSection) -> GpuRequest | None:
    """The GPUs of this host that one launched replica of a model needs: count, share, memory.

    None: none are chosen for it (no launch, another platform, no GPU needed, or the file decides
    itself). Raises ``ConfigError`` for a ``gpu_share`` where no GPU is chosen.
    """
    found = _request(model)
    shared = model.launch is not None and model.launch.gpu_share is not None
    problem, fix = "is set, and no GPU is chosen", "set launch.gpus beside it, or remove it"
    require(found is not None or not shared, "launch.gpu_share", problem, fix)
    return found


def devices_of(model: ModelSection) -> int:
    """The number of GPUs to ask a platform for, per replica of a model.

    ``launch.gpus`` if set, else tensor times pipeline degree; 0 for models that are not launched or
    need no GPU.
    """
    launch = model.launch
    if launch is None:
        return 0
    if launch.gpus is not None:
        return launch.gpus
    split = launch.tensor_parallel * launch.pipeline_parallel
    return split if dialect(model.engine).needs_gpu or split > 1 else 0


def _request(model: ModelSection) -> GpuRequest | None:
    launch = model.launch
    if launch is None or launch.gpus == 0 or launch.on:  # another platform has its own devices
        return None
    if launch.gpus is not None:
        share = launch.gpu_share if launch.gpu_share is not None else 1.0
        return GpuRequest(launch.gpus, share, memory_bytes=_memory(model, launch.gpus))
    count = launch.tensor_parallel * launch.pipeline_parallel
    if not dialect(model.engine).needs_gpu or _is_decided(launch) or count > DEVICES_MAX:
        return None
    asked = launch.gpu_share is not None
    beside = Overcommit.OTHERS if asked else Overcommit.ANYBODY
    return GpuRequest(count, _share(launch), beside)


def _is_decided(launch: LaunchSection) -> bool:
    """Whether the file itself decides which devices its engine uses, or how many."""
    by_hand = any(name in launch.environment or name in launch.pass_env for name in _BY_HAND)
    return bool(launch.command) or by_hand or any(_SPLIT.match(word) for word in launch.arguments)


def _share(launch: LaunchSection) -> float:
    if launch.gpu_share is not None:
        return launch.gpu_share
    fraction = launch.memory_fraction
    return fraction if fraction is not None and fraction <= SHARED_MAX else 1.0


def _memory(model: ModelSection, count: int) -> int | None:
    """Bytes that each device must have, where the file says what one replica needs."""
    weights, kv = model.footprint.weights, model.footprint.kv
    return (weights + (kv or 0)) // count if weights is not None else None


__all__ = ["SHARED_MAX", "devices_of", "gpu_request_of"]
