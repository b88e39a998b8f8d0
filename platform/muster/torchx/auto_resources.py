"""Resolves automatic resource requests: one GPU per process if a node has enough, else one CPU core (pure).

A component that runs unchanged on a laptop and on a GPU host does not know its resources before the nodes are known. It
marks them by the metadata `muster.dev/accelerator: auto` and `muster.dev/cores: auto`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

from torchx.specs import AppDef, Role

from muster.api.quantity import whole_cores
from muster.torchx.errors import SubmissionRefused
from muster.torchx.settings import PREFIX

GPU = "nvidia.com/gpu"
ACCELERATOR = PREFIX + "accelerator"
CORES = PREFIX + "cores"
NPROC = PREFIX + "nproc"
ROLE_KEYS = (ACCELERATOR, CORES, NPROC)


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """Allocatable resources of one node. `reserved_milli` of its cores are for pods that run on every node (DaemonSets,
    the collector): a pod that requests all GPUs and all cores would never fit."""

    cpu_milli: int
    gpus: int
    reserved_milli: int = 0


def needs_node_capacity(app: AppDef) -> bool:
    """Whether a role has automatic resource requests."""
    return any(_is_auto(role, key) for role in app.roles for key in (ACCELERATOR, CORES))


def resolve_auto_resources(
    app: AppDef, nodes: Sequence[NodeCapacity], oversubscribe: bool = False
) -> tuple[AppDef, list[str]]:
    """The app with all resources set, and notices for the user. Raises SubmissionRefused, also for more processes than
    the largest node has GPUs or CPU cores unless `oversubscribe`."""
    app = copy.deepcopy(app)
    notices: list[str] = []
    for role in app.roles:
        _check_metadata_keys(role)
        nproc = _nproc(role)
        if _is_auto(role, ACCELERATOR):
            notices += _fill_in_gpus(role, nproc, nodes, oversubscribe)
        if not oversubscribe:
            _check_processes(role, nproc, nodes)
        if _is_auto(role, CORES):
            notices += _fill_in_cores(role, nproc, nodes)
    return app, notices


def _fill_in_gpus(role: Role, nproc: int, nodes: Sequence[NodeCapacity], oversubscribe: bool) -> list[str]:
    most = max((node.gpus for node in nodes), default=0)
    role.resource.gpu = nproc if most >= nproc else 0
    if not 0 < most < nproc:
        return []
    if not oversubscribe:
        raise _too_many_processes(
            nproc, f"the largest node has {most} GPUs; use at most {most}, or --gpu 0 to run on CPU"
        )
    return [f"{nproc} processes per node, but no node has more than {most} GPUs: they run on CPU"]


def _check_processes(role: Role, nproc: int, nodes: Sequence[NodeCapacity]) -> None:
    gpus = role.resource.gpu
    if 0 < gpus < nproc:
        raise _too_many_processes(nproc, f"--gpu is {gpus}; use one GPU per process")
    cores = max((whole_cores(node.cpu_milli) for node in nodes), default=nproc)
    if gpus <= 0 and nproc > cores:
        raise _too_many_processes(nproc, f"the largest node has {cores} CPU cores; use at most {cores}")


def _too_many_processes(nproc: int, limit: str) -> SubmissionRefused:
    return SubmissionRefused(
        f"-j requests {nproc} processes per node, but {limit}, or allow more with -cfg oversubscribe=true"
    )


def _fill_in_cores(role: Role, nproc: int, nodes: Sequence[NodeCapacity]) -> list[str]:
    gpus = role.resource.gpu
    if gpus > 0:  # their share of a node's cores, which leaves the other GPUs theirs
        shares = [(node.cpu_milli - node.reserved_milli) // node.gpus for node in nodes if node.gpus >= gpus]
        role.resource.cpu = max(1, gpus * min(shares, default=1000) // 1000)
        return []
    cores = max((node.cpu_milli for node in nodes), default=nproc * 1000) // 1000
    role.resource.cpu = max(1, min(nproc, cores))
    return [f"{nproc} processes share the {cores} CPU cores of a node"] if cores < nproc else []


def _is_auto(role: Role, key: str) -> bool:
    return bool(role.metadata.get(key) == "auto")


def _nproc(role: Role) -> int:
    text = str(role.metadata.get(NPROC, "1"))
    if not text.isdecimal() or int(text) < 1:
        raise SubmissionRefused(f"role {role.name}: metadata {NPROC}: must be a positive integer; got {text!r}")
    return int(text)


def _check_metadata_keys(role: Role) -> None:
    for key in role.metadata:
        if key.startswith(PREFIX) and key not in ROLE_KEYS:
            raise SubmissionRefused(
                f"role {role.name}: metadata {key}: must be one of {', '.join(ROLE_KEYS)}; set other keys in the app's"
                " metadata"
            )
