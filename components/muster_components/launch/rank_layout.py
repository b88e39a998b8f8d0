"""The position of this pod in its gang, and the environment of its ranks.

Ranks get the variables of torchrun, so that scripts for torchrun run unchanged.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from muster_components.counts import is_count

MIN_GRACE_SHARE = 0.5
GRACE_RESERVE_S = 10.0
DEFAULT_GRACE_S = 30.0
DEFAULT_STACKS_TIMEOUT_S = 3.0  # a pod that is stopped has few seconds left


class InvalidLayout(ValueError):
    """An environment variable or an option is invalid; the message names it, its value and valid values."""


@dataclass(frozen=True, slots=True)
class RankLayout:
    """Pod `replica` of `replicas`, with `nproc` ranks each. `port` 0: any free port. `stacks_timeout_s`: time for its
    hung ranks, together, to write their stacks."""

    nproc: int
    replica: int = 0
    replicas: int = 1
    host: str = "127.0.0.1"
    port: int = 0
    run_id: str = "local"
    attempt: int = 0
    role: str = "default"
    grace_s: float = DEFAULT_GRACE_S
    stacks_timeout_s: float = DEFAULT_STACKS_TIMEOUT_S

    @property
    def world_size(self) -> int:
        return self.nproc * self.replicas

    @property
    def stop_timeout_s(self) -> float:
        """Time for ranks to stop: the pod's grace period minus 10 s, at least half of it."""
        return max(self.grace_s - GRACE_RESERVE_S, self.grace_s * MIN_GRACE_SHARE)

    def rank(self, local_rank: int) -> int:
        """The global rank of a local rank."""
        return self.replica * self.nproc + local_rank


def read_rank_layout(environ: Mapping[str, str], nproc: int, replicas: int | None = None) -> RankLayout:
    """The layout from the environment (docs/reference/run-folder.md). Raises InvalidLayout."""
    replicas = replicas if replicas is not None else _read_integer(environ, "MUSTER_REPLICAS", 1, minimum=1)
    replica = _read_integer(environ, "MUSTER_REPLICA", 0)
    if replica >= replicas:
        raise InvalidLayout(f"MUSTER_REPLICA must be 0 to {replicas - 1}, for {replicas} pods; got {replica}")
    host = environ.get("MUSTER_RANK0_HOST", "")
    port = _read_integer(environ, "MUSTER_RANK0_PORT", 0)
    if port > 65535:
        raise InvalidLayout(f"MUSTER_RANK0_PORT must be 1 to 65535; got {port}")
    if replicas > 1 and not (host and port):
        raise InvalidLayout(f"MUSTER_RANK0_HOST and MUSTER_RANK0_PORT must be set for {replicas} pods")
    attempt = _read_integer(environ, "MUSTER_ATTEMPT", 0)
    job = environ.get("MUSTER_JOB_UID") or environ.get("MUSTER_JOB") or "local"
    return RankLayout(
        nproc=nproc,
        replica=replica,
        replicas=replicas,
        host=host or "127.0.0.1",
        port=port,
        run_id=f"{job}-{attempt}",
        attempt=attempt,
        role=environ.get("MUSTER_ROLE", "default"),
        grace_s=_read_seconds(environ, "MUSTER_GRACE_SECONDS", DEFAULT_GRACE_S),
        stacks_timeout_s=_read_seconds(environ, "MUSTER_STACKS_SECONDS", DEFAULT_STACKS_TIMEOUT_S),
    )


def rank_environment(
    layout: RankLayout,
    local_rank: int,
    environ: Mapping[str, str],
    *,
    threads: int,
) -> dict[str, str]:
    """The environment of one rank: that of the pod, the variables of torchrun, and its number of threads."""
    rank = str(layout.rank(local_rank))
    world = str(layout.world_size)
    return {
        "OMP_NUM_THREADS": str(threads),
        "PYTHONUNBUFFERED": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        **environ,
        "RANK": rank,
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": str(layout.nproc),
        "GROUP_RANK": str(layout.replica),
        "GROUP_WORLD_SIZE": str(layout.replicas),
        "ROLE_NAME": layout.role,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": layout.host,
        "MASTER_PORT": str(layout.port),
        "TORCHELASTIC_RUN_ID": layout.run_id,
        "TORCHELASTIC_RESTART_COUNT": str(layout.attempt),
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": str(needs_store(layout)),
    }


def needs_store(layout: RankLayout) -> bool:
    """Whether the launcher of pod 0 serves the rendezvous store: not for one rank, and not without torch."""
    return layout.world_size > 1 and importlib.util.find_spec("torch") is not None


def threads_per_rank(cores: int, nproc: int) -> int:
    """Threads per rank, so that all ranks together do not exceed the cores; at least 1."""
    return max(1, cores // nproc)


def usable_cores(cpu_max: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores that this pod may use: its CPU affinity, or fewer if its cgroup (v2) limits CPU time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = cpu_max.read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no such cgroup, or "max": no limit
        return cores


def _read_integer(environ: Mapping[str, str], name: str, default: int, minimum: int = 0) -> int:
    text = environ.get(name, "")
    if not text:
        return default
    if not is_count(text) or int(text) < minimum:
        raise InvalidLayout(f"{name} must be an integer of at least {minimum}; got {text!r}")
    return int(text)


def _read_seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name, "") or f"{default:g}"
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise InvalidLayout(f"{name} must be a number of seconds, such as {default:g}; got {text!r}")
    return max(0.0, seconds)
