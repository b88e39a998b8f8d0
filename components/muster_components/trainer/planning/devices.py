"""What the planner knows of GPUs. Imports no torch, so that a flag can be checked before it is loaded."""

from __future__ import annotations

import dataclasses
import difflib
import re
from dataclasses import dataclass
from typing import Final

from muster_components.trainer.errors import InputError
from muster_components.trainer.models.recipes import peak_flops

GIB: Final = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuKind:
    """A kind of GPU. Bandwidths in bytes per second, `link` to another GPU of the host in one direction.

    `memory_bytes`: what CUDA reports, which is less than the data sheet says. `network`: of one GPU to other hosts.
    """

    name: str
    memory_bytes: int
    hbm: float
    link: float
    network: float = 50e9
    host_link: float = 64e9
    """To the memory of the host, in one direction."""
    float8: bool = True
    """Whether matrix products can be computed in float8."""

    @property
    def flag(self) -> str:
        return self.name.lower().replace(" ", "-")

    @property
    def flops(self) -> float:
        """Dense bf16 FLOP/s of the data sheet."""
        peak = peak_flops(self.name)
        assert peak is not None
        return peak


def _kind(
    name: str,
    gib: float,
    hbm_tb: float,
    link_gb: float,
    network_gb: float = 50,
    *,
    host_gb: float = 64,
    float8: bool = True,
) -> GpuKind:
    return GpuKind(
        name=name,
        memory_bytes=int(gib * GIB),
        hbm=hbm_tb * 1e12,
        link=link_gb * 1e9,
        network=network_gb * 1e9,
        host_link=host_gb * 1e9,
        float8=float8,
    )


GPU_KINDS: Final = (
    _kind("B200", 178, 8.0, 900, 100),
    _kind("GH200", 94.5, 4.0, 450, host_gb=450),
    _kind("H200", 139.5, 4.8, 450),
    _kind("H20", 95, 4.0, 450),
    _kind("H100 PCIe", 79, 2.0, 64),
    _kind("H100 NVL", 93, 3.9, 300),
    _kind("H100", 79, 3.35, 450),
    _kind("A100", 79, 2.04, 300, 25, host_gb=32, float8=False),
    _kind("L40S", 44.4, 0.864, 32, 25, host_gb=32),
    _kind("L4", 22, 0.3, 32, 12.5, host_gb=32),
)
"""More specific names first. Memory as `torch.cuda.get_device_properties` reports it; HBM bandwidth, and half of the
bidirectional bandwidth of NVLink (of PCIe without NVLink), from NVIDIA's data sheets. Host: PCIe 5.0 or 4.0 with 16
lanes, NVLink-C2C of GH200. Network: one adapter of 800 Gb/s
for each B200, 400 Gb/s for each Hopper GPU, 200 Gb/s for each A100 and L40S, 100 Gb/s for each L4, as in DGX and HGX
systems."""


def gpu_kind(device_name: str, memory_bytes: int | None = None) -> GpuKind | None:
    """The kind of a device by the name that CUDA reports; None if it is unknown."""
    name = device_name.upper()
    kind = next((kind for kind in GPU_KINDS if kind.name.upper() in name), None)
    if kind is None or memory_bytes is None:
        return kind
    return dataclasses.replace(kind, memory_bytes=memory_bytes)


def parse_device(text: str) -> GpuKind:
    """`h100`, or `l40s:48GiB` with its memory. Raises InputError."""
    name, colon, memory = text.partition(":")
    kind = next((kind for kind in GPU_KINDS if kind.flag == name.strip().lower()), None)
    if kind is None:
        names = [kind.flag for kind in GPU_KINDS]
        near = difflib.get_close_matches(name.lower(), names, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"--device must be one of {', '.join(sorted(names))}; got {name!r}{hint}")
    if not colon:
        return kind
    match = re.fullmatch(r"(\d{1,18}(?:\.\d+)?)\s*GiB", memory.strip(), re.IGNORECASE)
    if match is None or float(match[1]) <= 0:
        raise InputError(f"--device must be KIND or KIND:MEMORY, such as l40s:48GiB; got {text!r}")
    return dataclasses.replace(kind, memory_bytes=int(float(match[1]) * GIB))
