"""TorchTitan without a GPU, with gloo: to try a configuration on a laptop, and for tests.

TorchTitan takes its device from torch and has CUDA as its default. `torch.cpu` lacks what it asks of a device module:
a name, a size of memory and statistics of it.
"""

from __future__ import annotations

import os
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch


class CpuDeviceModule:
    """`torch.cpu` with what TorchTitan reads of a device. Peaks of memory are not measured."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def get_device_name(self, _device: object = None) -> str:
        """Not the name of a known GPU."""
        return "CPU"

    def get_device_properties(self, _device: object = None) -> SimpleNamespace:
        """The memory of this host in bytes."""
        return SimpleNamespace(total_memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))

    def memory_stats(self, _device: object = None) -> dict[str, int]:
        """None are known."""
        return {"active_bytes.all.peak": 0, "reserved_bytes.all.peak": 0}

    def current_device(self) -> int:
        """A number, as of a GPU."""
        return 0

    def reset_peak_memory_stats(self) -> None:
        """Nothing to reset."""

    def empty_cache(self) -> None:
        """There is no cache."""


def use_cpu() -> bool:
    """Have TorchTitan take the CPU if torch finds no accelerator; whether it does. Call before it is imported."""
    utils: Any = import_module("torch._utils")
    if utils._get_available_device_type() is not None:
        return False
    _force_sums()
    module, others = CpuDeviceModule(), utils._get_device_module
    utils._get_available_device_type = lambda: "cpu"
    utils._get_device_module = lambda device: module if device == "cpu" else others(device)
    return True


def _force_sums() -> None:
    """TorchTitan sets FSDP's divisor to 1, for which torch multiplies within the reduction; gloo cannot."""
    module: Any = import_module("torch.distributed.fsdp").FSDPModule
    set_factor = module.set_gradient_divide_factor

    def set_factor_of_sum(self: Any, factor: float) -> None:
        set_factor(self, factor)
        self.set_force_sum_reduction_for_comms(True)

    module.set_gradient_divide_factor = set_factor_of_sum
