"""Allocation of GPUs to replicas, and of rendezvous ports."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection, Iterable
from pathlib import Path

from muster.errors import ClusterError
from muster.local.records import PodRecord

_MIN_PORT = 20_000
_MAX_ATTEMPTS = 200


def free_devices(all_devices: tuple[str, ...], on_node: Iterable[PodRecord], count: int) -> tuple[str, ...] | None:
    """The first `count` devices of a node that no live replica has; None if there are fewer."""
    taken = {device for pod in on_node if not pod.finished for device in pod.devices or ()}
    free = [device for device in all_devices if device not in taken]
    return tuple(free[:count]) if len(free) >= count else None


def free_port(taken: Collection[int], rng: random.Random) -> int:
    """A free TCP port of 127.0.0.1 that is not in `taken`.

    It is below the kernel's ephemeral range, so that no outgoing connection takes it before the replica binds it.
    Raises `ClusterError` NoFreePort.
    """
    for _ in range(_MAX_ATTEMPTS):
        port = rng.randrange(_MIN_PORT, _first_ephemeral_port())
        if port not in taken and _can_bind(port):
            return port
    raise ClusterError(f"no free port from {_MIN_PORT} up was found for rendezvous", reason="NoFreePort")


def _first_ephemeral_port() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        first = 32_768
    return first if first > _MIN_PORT + 1000 else 65_536


def _can_bind(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
