"""What devices can do at most, by the name that the profiler records: the numbers of their makers' data sheets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Precision(StrEnum):
    """How a device computes: types of numbers with peaks of their own. float16 is as fast as bfloat16."""

    BFLOAT16 = "bfloat16"
    TF32 = "TF32"
    FLOAT32 = "float32"
    FLOAT8 = "float8"


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """Peaks without sparsity: operations per second by precision, and bytes per second of the memory."""

    flop_s: Mapping[Precision, float]
    bytes_s: float


def _limits(bfloat16: float, tf32: float, float32: float, float8: float, tb_s: float) -> DeviceLimits:
    """From TFLOP/s (0: it has no such units) and TB/s."""
    peaks = dict(zip(Precision, (bfloat16, tf32, float32, float8), strict=True))
    return DeviceLimits({precision: 1e12 * peak for precision, peak in peaks.items() if peak}, 1e12 * tb_s)


# The first pattern that is found in the name counts.
_DEVICES = (
    (r"GB200|GB300", _limits(2500, 1250, 80, 5000, 8.0)),
    (r"B200", _limits(2250, 1125, 75, 4500, 8.0)),
    (r"H200|GH200", _limits(989, 494, 67, 1979, 4.8)),
    (r"H100 PCIe", _limits(756, 378, 51, 1513, 2.0)),
    (r"H100 NVL", _limits(835, 417, 60, 1671, 3.9)),
    (r"H100", _limits(989, 494, 67, 1979, 3.35)),
    (r"H800", _limits(989, 494, 67, 1979, 3.35)),
    (r"A100.*SXM.*80GB", _limits(312, 156, 19.5, 0, 2.039)),
    (r"A100.*80GB", _limits(312, 156, 19.5, 0, 1.935)),
    (r"A100", _limits(312, 156, 19.5, 0, 1.555)),
    (r"A40", _limits(149.7, 74.8, 37.4, 0, 0.696)),
    (r"A30", _limits(165, 82, 10.3, 0, 0.933)),
    (r"A10", _limits(125, 62.5, 31.2, 0, 0.6)),
    (r"L40S", _limits(362, 183, 91.6, 733, 0.864)),
    (r"L4\b", _limits(121, 60, 30.3, 242, 0.3)),
    (r"V100.*PCIE", _limits(112, 0, 14, 0, 0.9)),
    (r"V100", _limits(125, 0, 15.7, 0, 0.9)),
    (r"Tesla T4", _limits(65, 0, 8.1, 0, 0.32)),
    (r"RTX 4090", _limits(165.2, 82.6, 82.6, 330.3, 1.008)),
    (r"RTX 3090", _limits(71, 35.6, 35.6, 0, 0.936)),
    (r"MI325X", _limits(1307.4, 653.7, 163.4, 2614.9, 6.0)),
    (r"MI300X", _limits(1307.4, 653.7, 163.4, 2614.9, 5.3)),
)
_PATTERNS = tuple((re.compile(pattern), limits) for pattern, limits in _DEVICES)


def device_limits(name: str | None) -> DeviceLimits | None:
    """The limits of a device such as `NVIDIA H100 80GB HBM3`; None if they are not known."""
    return next((limits for pattern, limits in _PATTERNS if name and pattern.search(name)), None)
