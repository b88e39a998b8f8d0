"""Resource amounts with units, for messages."""

from __future__ import annotations

from collections.abc import Iterable

GPU = "nvidia.com/gpu"
GIB = 1 << 30

_NOUNS = {GPU: ("GPU", "GPUs"), "cpu": ("core", "cores"), "pods": ("pod slot", "pod slots")}
_BYTES = ("memory", "ephemeral-storage")


def format_amount(resource: str, amount: int) -> str:
    """An amount with its unit: GPUs, cores, pod slots, GiB, or the resource's own name."""
    if resource in _BYTES:
        return f"{format_number(resource, amount)} GiB of {resource}"
    one, many = _NOUNS.get(resource, (resource, resource))
    return f"{format_number(resource, amount)} {one if format_number(resource, amount) == '1' else many}"


def format_number(resource: str, amount: int) -> str:
    """An amount without its unit, for the second and later numbers of a sentence."""
    if resource == "cpu":
        return f"{amount / 1000:g}"
    if resource not in _BYTES:
        return str(amount)
    gib = amount / GIB
    return f"{gib:.4g}" if gib < 10_000 else f"{gib:.0f}"


def resource_label(resource: str) -> str:
    """The name of a resource without an amount: `GPUs`, `cores`, or the resource's own name."""
    return _NOUNS.get(resource, (resource, resource))[1]


def format_pods(count: int) -> str:
    """`1 pod`, `2 pods`."""
    return f"{count} pod{'' if count == 1 else 's'}"


def main_resource(resources: Iterable[str]) -> str:
    """The resource that a message names first: GPUs, other devices, cores, memory; pod slots if there is no other."""
    names = list(resources)
    by_importance = (GPU, *(name for name in names if "/" in name), "cpu", *_BYTES)
    return next((name for name in by_importance if name in names), "pods")
