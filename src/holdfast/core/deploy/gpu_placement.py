"""Chooses the GPUs of this host that a launched replica runs on, and remembers who holds which.

    claim ─► enough devices with room: the best linked of them ─► held until release
          └► too few ─► the reason, in words; the replica waits

A device is a whole GPU, or a slice of one that was cut by MIG. Holders of one device take shares of
it that never exceed the whole: two exclusive holders cannot meet. Memory that others use counts as
taken where no replica of ours holds the device; where one does, what is used is its own. Among free
devices those that are linked by NVLink go together, so that the parts of one replica speak over the
links and those of the next one still can.

A process can use one MIG slice and no second: a request for several devices gets whole GPUs.

Rejected: a plan for all replicas at once. Replicas come and die one at a time, and moving one that
serves to place another better costs more than the links are worth. Rejected: a queue in which a
large request holds up all smaller ones; GPUs would stand idle for one that may never fit.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import combinations
from math import comb
from typing import Any, Final

from holdfast.core.types import nanos, require

DEVICES_MAX: Final = 64  # of one host, or of one request
_SETS_MAX: Final = 20_000  # sets of devices compared one by one: eight of sixteen
_PARTS: Final = 1_000_000  # a share is counted in millionths: ten tenths are a whole
_NAMED_MAX: Final = 6  # holders and devices that a reason lists


@dataclass(slots=True, frozen=True)
class GpuPlacementConfig:
    """Settings: when a GPU that no replica holds counts as free, by memory that others use."""

    foreign_share: float = 0.1  # of its memory, used by others: engines leave a tenth to them
    foreign_bytes: int = 1 << 30  # the least that is left to others: a desktop, the driver itself
    return_s: float = 60.0  # a driver takes seconds to give back the memory of one that ended

    def __post_init__(self) -> None:
        share = self.foreign_share
        fix = "use a share from 0 to 1"
        require(0 <= share <= 1, "gpus.foreign_share", f"is {share}", fix)
        least = self.foreign_bytes
        require(least >= 0, "gpus.foreign_bytes", f"is {least}", "use bytes, 0 or more")
        back, fix = self.return_s, "use seconds from 0 to an hour"
        require(0 <= back <= 3_600, "gpus.return_s", f"is {back}", fix)


@dataclass(slots=True, frozen=True)
class PlacementDevice:
    """Figures now of one GPU of this host, or one MIG slice; None where the driver says nothing."""

    uuid: str  # as CUDA_VISIBLE_DEVICES takes it
    label: str  # for people: its number, and that of a slice behind a colon
    name: str = ""
    memory_total: int | None = None  # bytes
    memory_used: int | None = None  # bytes, by whomever
    neighbours: frozenset[str] = frozenset()  # UUIDs of those that NVLink reaches
    is_slice: bool = False
    processes: tuple[int, ...] = ()  # that compute on it, by the driver's count of pids
    faulty: bool = False  # the driver reported a fault that needs a reset: taken last


@dataclass(slots=True, frozen=True)
class GpuInventory:
    """The devices of this host that replicas may use, free or not, or why there are none."""

    devices: tuple[PlacementDevice, ...] = ()
    reason: str = ""  # why there are none; empty where there are some


class Overcommit(StrEnum):
    """Whom a replica may share devices with, warned, where too few are free: nobody, others, any.

    ``OTHERS`` are processes that are no replicas of ours.
    """

    NEVER = "never"  # it waits
    OTHERS = "others"  # beside processes that are none of ours, not beside replicas
    ANYBODY = "anybody"


@dataclass(slots=True, frozen=True)
class GpuRequest:
    """What one replica needs: how many devices, which share of each, and beside whom it may run."""

    count: int
    share: float = 1.0  # of each device; 1 = nobody else
    overcommit: Overcommit = Overcommit.NEVER
    memory_bytes: int | None = None  # that each device must have in all, where it is known

    def __post_init__(self) -> None:
        fits = 1 <= self.count <= DEVICES_MAX
        require(fits, "gpus.count", f"is {self.count}", f"use 1 to {DEVICES_MAX} devices")
        fits = 0 < self.share <= 1
        require(fits, "gpus.share", f"is {self.share}", "use a share above 0, up to 1")

    @property
    def parts(self) -> int:
        """The share of each device in millionths; at least 1, so that each holder counts."""
        return max(1, round(self.share * _PARTS))


@dataclass(slots=True, frozen=True)
class GpuPlacement:
    """The answer to a request: UUIDs of the chosen devices, or none, and in words why."""

    uuids: tuple[str, ...]
    reason: str
    overcommits: bool = False  # the devices have less room than was asked for

    @property
    def placed(self) -> bool:
        """Whether devices were chosen; False: ``reason`` says why not."""
        return bool(self.uuids)


@dataclass(slots=True, frozen=True)
class _Holding:
    uuids: tuple[str, ...]
    parts: int


@dataclass(slots=True)
class _Released:
    at: int
    heir: str  # who alone may take it meanwhile; empty: anybody


@dataclass(slots=True)
class _Stock:
    """Devices of one look at the host, sorted by what they mean for one request."""

    free: list[PlacementDevice] = field(default_factory=list)
    reserved: list[PlacementDevice] = field(default_factory=list)  # for another's successor
    foreign: list[PlacementDevice] = field(default_factory=list)  # others use their memory
    taken: list[PlacementDevice] = field(default_factory=list)  # by replicas of ours
    unfit: list[PlacementDevice] = field(default_factory=list)  # slices for many, too little memory

    def usable(self, request: GpuRequest) -> list[PlacementDevice]:
        """The devices that a request may be given, free or not."""
        beside = request.overcommit
        foreign = self.foreign if beside is not Overcommit.NEVER else ()
        taken = self.taken if beside is Overcommit.ANYBODY else ()
        return [*self.free, *foreign, *taken]


class GpuLedger:
    """Which replica holds which devices of this host, in memory; touches no GPU.

    ``would_place`` asks and changes nothing, ``claim`` takes, ``release`` gives back. A device that
    was released for an heir is kept for it for ``return_s``.
    """

    def __init__(self, config: GpuPlacementConfig) -> None:
        self.config = config
        self._return = nanos(config.return_s)
        self._held: dict[str, _Holding] = {}
        self._released: dict[str, _Released] = {}  # by device; at most as many as there are

    def held(self, replica_id: str) -> tuple[str, ...]:
        """Return the UUIDs of the devices that a replica holds; empty where it holds none."""
        holding = self._held.get(replica_id)
        return holding.uuids if holding is not None else ()

    def holders(self) -> Mapping[str, tuple[str, ...]]:
        """Return a new dict: the device UUIDs of each replica that holds any, by replica id."""
        return {name: holding.uuids for name, holding in self._held.items()}

    def adopt(self, replica_id: str, uuids: Iterable[str], share: float) -> None:
        """Record that a running replica holds these devices since before this ledger.

        Nothing is checked.
        """
        parts = max(1, round(share * _PARTS))
        self._held[replica_id] = _Holding(tuple(uuids), parts)

    def claim(
        self,
        replica_id: str,
        request: GpuRequest,
        devices: Sequence[PlacementDevice],
        now: int,
        heir: str = "",
    ) -> GpuPlacement:
        """Take devices for a replica and return the ``GpuPlacement``; without any it says why.

        What it held before is given up first, even if nothing is found. ``heir`` names what it may
        inherit: devices that were released for this name.
        """
        self._held.pop(replica_id, None)
        found = self.would_place(request, devices, now, heir)
        if found.placed:
            self._held[replica_id] = _Holding(found.uuids, request.parts)
            for uuid in found.uuids:
                self._released.pop(uuid, None)
        return found

    def release(self, replica_id: str, now: int, heir: str = "") -> bool:
        """Give back what a replica holds; its devices stay reserved for ``heir``, if named.

        Repeated calls change nothing. Returns whether anything was given back.
        """
        holding = self._held.pop(replica_id, None)
        if holding is None:
            return False
        for uuid in holding.uuids:
            self._released[uuid] = _Released(now, heir)
        while len(self._released) > DEVICES_MAX:  # UUIDs of slices that no longer exist
            del self._released[next(iter(self._released))]
        return True

    def has_room(
        self, request: GpuRequest, devices: Sequence[PlacementDevice], now: int, heir: str = ""
    ) -> bool:
        """Return whether one more replica would find devices, now or after the driver's clean-up.

        A device that was just released counts although its memory is still in use. One that other
        replicas have filled does not, though a request may overcommit it. Changes nothing.
        """
        just = {uuid for uuid, told in self._released.items() if now - told.at < self._return}
        stock = self._sort(request, devices, now, heir, cleaned=just)
        beside = request.overcommit is not Overcommit.NEVER
        return len(stock.free) + len(stock.foreign) * beside >= request.count

    def would_place(
        self, request: GpuRequest, devices: Sequence[PlacementDevice], now: int, heir: str = ""
    ) -> GpuPlacement:
        """Return the ``GpuPlacement`` a request would get now, or why none. Changes nothing."""
        stock = self._sort(request, devices, now, heir, cleaned=set())
        if len(stock.free) >= request.count:
            chosen = self._choose(stock.free, request)
            return GpuPlacement(_uuids(chosen), f"on {_gpus(chosen)}")
        why = self._lack(request, devices, stock)
        usable = stock.usable(request)
        alone = replace(request, overcommit=Overcommit.NEVER)
        if len(usable) < request.count or self.has_room(alone, devices, now, heir):
            return GpuPlacement((), why)  # none, or devices that the driver is about to give back
        # Free ones first, then the least loaded; nobody is made to wait who did not before.
        usable.sort(key=lambda device: (device not in stock.free, self._load(device.uuid)))
        chosen = usable[: request.count]
        told = f"on {_gpus(chosen)} beside others: {why}"
        return GpuPlacement(_uuids(chosen), told, overcommits=True)

    # --- which are free --------------------------------------------------------------------------

    def _sort(
        self,
        request: GpuRequest,
        devices: Sequence[PlacementDevice],
        now: int,
        heir: str,
        cleaned: set[str],
    ) -> _Stock:
        stock = _Stock()
        for device in devices[:DEVICES_MAX]:
            load, kept = self._load(device.uuid), self._released.get(device.uuid)
            ours = kept is None or kept.heir in ("", heir) or now - kept.at >= self._return
            if not _fits(device, request):
                stock.unfit.append(device)
            elif load + request.parts > _PARTS:
                stock.taken.append(device)
            elif not ours:
                stock.reserved.append(device)
            elif not load and device.uuid not in cleaned and self._is_used(device, request):
                stock.foreign.append(device)
            else:
                stock.free.append(device)
        return stock

    def _load(self, uuid: str) -> int:
        return sum(each.parts for each in self._held.values() if uuid in each.uuids)

    def _is_used(self, device: PlacementDevice, request: GpuRequest) -> bool:
        """Whether others use more of a device that nobody here holds than is left to them."""
        used, total = device.memory_used, device.memory_total
        if used is None:
            return False  # unknown: the engine will find out
        left = self.config.foreign_bytes
        if total is not None:
            left = max(left, round(total * max(self.config.foreign_share, 1 - request.share)))
        return used > left

    # --- which of them ---------------------------------------------------------------------------

    def _choose(
        self, free: Sequence[PlacementDevice], request: GpuRequest
    ) -> list[PlacementDevice]:
        """The set with the most links inside, then the fullest, then the fewest links cut."""
        places = {device.uuid: place for place, device in enumerate(free)}

        def rank(chosen: Sequence[PlacementDevice]) -> tuple[Any, ...]:
            inside = {device.uuid for device in chosen}
            links = sum(len(device.neighbours & inside) for device in chosen)
            cut = sum(len((device.neighbours & places.keys()) - inside) for device in chosen)
            return (
                sum(device.faulty for device in chosen),
                len({device.name for device in chosen}),
                sum(_waste(device, request) for device in chosen),
                -links,
                -sum(self._load(device.uuid) for device in chosen),
                cut,
                sorted(places[device.uuid] for device in chosen),
            )

        if comb(len(free), request.count) <= _SETS_MAX:
            sets = (list(chosen) for chosen in combinations(free, request.count))
            return min(sets, key=rank)
        grown = [_grown(seed, free, request.count) for seed in free]
        return min(grown, key=rank)

    # --- why not ---------------------------------------------------------------------------------

    def _lack(self, request: GpuRequest, devices: Sequence[PlacementDevice], stock: _Stock) -> str:
        wanted = _number(request.count)
        if not devices:
            return f"{wanted} wanted, and this host has none"
        if len(devices) - len(stock.unfit) < request.count:
            told = f"{wanted} wanted, and this host has {len(devices) - len(stock.unfit)}"
            return f"{told} that fit{_unfit(stock.unfit, request)}"
        why = [*self._takers(stock.taken)]
        if stock.reserved:
            why.append(f"{_gpus(stock.reserved)} kept for a replacement")
        for device in stock.foreign[:_NAMED_MAX]:
            by = f" (process {device.processes[0]})" if device.processes else ""
            used = (device.memory_used or 0) / (1 << 30)
            why.append(f"GPU {device.label}: {used:.1f} GiB used by others{by}")
        return f"{wanted} wanted, {len(stock.free)} of {len(devices)} free: {'; '.join(why)}"

    def _takers(self, taken: Sequence[PlacementDevice]) -> Iterable[str]:
        labels = {device.uuid: device.label for device in taken}
        named = 0
        for name, holding in self._held.items():
            mine = [labels[uuid] for uuid in holding.uuids if uuid in labels]
            if mine and named < _NAMED_MAX:
                named += 1
                yield f"{name} holds {', '.join(mine)}"


def _fits(device: PlacementDevice, request: GpuRequest) -> bool:
    """Whether a device could ever serve the request, whoever holds it."""
    if device.is_slice and request.count > 1:
        return False
    total, needed = device.memory_total, request.memory_bytes
    return total is None or needed is None or total >= needed


def _waste(device: PlacementDevice, request: GpuRequest) -> int:
    """What speaks against a device: memory beyond what is needed; unknown: too little of it."""
    total = device.memory_total or 0
    return total if request.memory_bytes is not None else -total


def _grown(
    seed: PlacementDevice, free: Sequence[PlacementDevice], count: int
) -> list[PlacementDevice]:
    """A set that begins with one device and always takes the best linked of the rest."""
    chosen, rest = [seed], [device for device in free if device is not seed]
    while len(chosen) < count:
        inside = {device.uuid for device in chosen}
        best = max(rest, key=lambda device: len(device.neighbours & inside))
        rest.remove(best)
        chosen.append(best)
    return sorted(chosen, key=free.index)


def _unfit(unfit: Sequence[PlacementDevice], request: GpuRequest) -> str:
    slices = [device for device in unfit if device.is_slice]
    if slices and request.count > 1:
        return f": of {len(slices)} MIG slices a process can use one"
    if unfit and request.memory_bytes is not None:
        return f": {_gpus(unfit)} less than {request.memory_bytes / (1 << 30):.1f} GiB"
    return ""


def _uuids(devices: Sequence[PlacementDevice]) -> tuple[str, ...]:
    return tuple(device.uuid for device in devices)


def _gpus(devices: Sequence[PlacementDevice]) -> str:
    labels = [device.label for device in devices[:_NAMED_MAX]]
    more = ", …" if len(devices) > _NAMED_MAX else ""
    return f"GPU {', '.join(labels)}{more}"


def _number(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


__all__ = [
    "DEVICES_MAX",
    "GpuInventory",
    "GpuLedger",
    "GpuPlacement",
    "GpuPlacementConfig",
    "GpuRequest",
    "Overcommit",
    "PlacementDevice",
]
