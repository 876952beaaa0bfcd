"""Accelerators and the links between them: what their makers' data sheets state.

Memory and bandwidth are the nominal ones, in decimal units. An engine sees a little less memory and
reaches 70 to 85 % of the bandwidth: what is computed from these figures is a floor, not a promise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.core.types import ConfigError, require


@dataclass(slots=True, frozen=True)
class Link:
    """Data-sheet figures of a kind of link between devices: bytes/s one way, delay of a message."""

    name: str
    bytes_per_s: float
    latency_s: float  # of a small collective operation, launch included
    source: str

    def __post_init__(self) -> None:
        speed = self.bytes_per_s
        require(speed > 0, "link.bytes_per_s", f"is {speed}", "use bytes per second above 0")
        require(self.latency_s >= 0, "link.latency_s", f"is {self.latency_s}", "use 0 or more")


# Latencies are round figures for one small all-reduce; nccl-tests print those of a machine.
LINKS: Final[Mapping[str, Link]] = {
    link.name: link
    for link in (
        Link("nvlink5", 900e9, 10e-6, "NVIDIA Blackwell data sheet, 1.8 TB/s both ways"),
        Link("nvlink4", 450e9, 10e-6, "NVIDIA H100 data sheet, 900 GB/s both ways"),
        Link("nvlink3", 300e9, 10e-6, "NVIDIA A100 data sheet, 600 GB/s both ways"),
        Link("infinity-fabric", 448e9, 12e-6, "AMD MI300X data sheet, 896 GB/s both ways"),
        Link("pcie5", 64e9, 25e-6, "PCI Express 5.0, 16 lanes"),
        Link("pcie4", 32e9, 25e-6, "PCI Express 4.0, 16 lanes"),
        Link("pcie3", 16e9, 30e-6, "PCI Express 3.0, 16 lanes"),
        Link("400gbit", 50e9, 40e-6, "400 Gbit/s network, one port for each device"),
        Link("100gbit", 12.5e9, 50e-6, "100 Gbit/s network"),
        Link("25gbit", 3.125e9, 60e-6, "25 Gbit/s network"),
    )
}


@dataclass(slots=True, frozen=True)
class Accelerator:
    """Data-sheet figures of one kind of device: memory, bandwidth, operations per second, link."""

    name: str
    memory_bytes: float
    bytes_per_s: float  # of its memory
    flops: float  # dense, 16 bits
    link: str  # to others of the same host
    source: str


ACCELERATORS: Final[Mapping[str, Accelerator]] = {
    one.name: one
    for one in (
        Accelerator("b200", 180e9, 8.0e12, 2250e12, "nvlink5", "NVIDIA HGX B200 data sheet"),
        Accelerator("h200", 141e9, 4.8e12, 989e12, "nvlink4", "NVIDIA H200 data sheet"),
        Accelerator("h100-80gb", 80e9, 3.35e12, 989e12, "nvlink4", "NVIDIA H100 SXM data sheet"),
        Accelerator("a100-80gb", 80e9, 2.039e12, 312e12, "nvlink3", "NVIDIA A100 SXM data sheet"),
        Accelerator("a100-40gb", 40e9, 1.555e12, 312e12, "nvlink3", "NVIDIA A100 SXM data sheet"),
        Accelerator("mi300x", 192e9, 5.3e12, 1307e12, "infinity-fabric", "AMD MI300X data sheet"),
        Accelerator("l40s", 48e9, 0.864e12, 362e12, "pcie4", "NVIDIA L40S data sheet"),
        Accelerator("l4", 24e9, 0.3e12, 121e12, "pcie4", "NVIDIA L4 data sheet"),
        Accelerator("a10g", 24e9, 0.6e12, 70e12, "pcie4", "AWS G5 instances"),
        Accelerator("t4", 16e9, 0.32e12, 65e12, "pcie3", "NVIDIA T4 data sheet"),
        Accelerator("rtx-4090", 24e9, 1.008e12, 165e12, "pcie4", "NVIDIA Ada white paper"),
    )
}


def accelerator(name: str) -> Accelerator:
    """Return the built-in ``Accelerator`` of this name, in any case.

    Raises ``ConfigError`` that lists the names if there is none.
    """
    found = ACCELERATORS.get(name.strip().lower())
    if found is None:
        fix = f"use one of {', '.join(ACCELERATORS)}, or 'cpu'"
        raise ConfigError("device", f"{name[:80]!r} is not known", fix)
    return found


def link_between(name: str) -> Link:
    """Return the built-in ``Link`` of this name (not of two devices), in any case.

    Raises ``ConfigError`` that lists the names if there is none.
    """
    found = LINKS.get(name.strip().lower())
    if found is None:
        raise ConfigError("link", f"{name[:80]!r} is not known", f"use one of {', '.join(LINKS)}")
    return found


__all__ = ["ACCELERATORS", "LINKS", "Accelerator", "Link", "accelerator", "link_between"]
