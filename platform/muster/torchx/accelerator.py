"""What a component leaves open: one GPU a process where a node has that many, else one CPU core a process (pure).

A component that runs on a laptop and on a GPU host without a change of its command cannot say what it needs before it
is known where it runs. `muster.dev/accelerator: auto` and `muster.dev/cores: auto` say which numbers are open.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

from torchx.specs import AppDef, Role

from muster.torchx.refusal import SubmissionRefused
from muster.torchx.settings import PREFIX

GPU = "nvidia.com/gpu"
ACCELERATOR = PREFIX + "accelerator"
CORES = PREFIX + "cores"
NPROC = PREFIX + "nproc"
ROLE_KEYS = (ACCELERATOR, CORES, NPROC)


@dataclass(frozen=True, slots=True)
class NodeSize:
    """What one node can give: milli-cores and GPUs."""

    cpu_milli: int
    gpus: int


def asks_for_nodes(app: AppDef) -> bool:
    """Whether some role leaves a number to the cluster."""
    return any(_is_open(role, key) for role in app.roles for key in (ACCELERATOR, CORES))


def with_accelerators(app: AppDef, nodes: Sequence[NodeSize]) -> tuple[AppDef, list[str]]:
    """The app with every number filled in, and what a person should know about it. Raises SubmissionRefused."""
    app = copy.deepcopy(app)
    notices: list[str] = []
    for role in app.roles:
        _refuse_unknown(role)
        nproc = _nproc(role)
        if _is_open(role, ACCELERATOR):
            notices += _fill_in_gpus(role, nproc, nodes)
        if _is_open(role, CORES):
            notices += _fill_in_cores(role, nproc, nodes)
    return app, notices


def _fill_in_gpus(role: Role, nproc: int, nodes: Sequence[NodeSize]) -> list[str]:
    most = max((node.gpus for node in nodes), default=0)
    role.resource.gpu = nproc if most >= nproc else 0
    if 0 < most < nproc:
        return [f"{nproc} processes a node, but no node has more than {most} GPUs: they run on CPU"]
    return []


def _fill_in_cores(role: Role, nproc: int, nodes: Sequence[NodeSize]) -> list[str]:
    gpus = role.resource.gpu
    if gpus > 0:  # their share of a node, so that the GPUs left over keep theirs
        shares = [node.cpu_milli // node.gpus for node in nodes if node.gpus >= gpus]
        role.resource.cpu = max(1, gpus * min(shares, default=1000) // 1000)
        return []
    cores = max((node.cpu_milli for node in nodes), default=nproc * 1000) // 1000
    role.resource.cpu = max(1, min(nproc, cores))
    return [f"{nproc} processes share the {cores} CPU cores of a node"] if cores < nproc else []


def _is_open(role: Role, key: str) -> bool:
    return bool(role.metadata.get(key) == "auto")


def _nproc(role: Role) -> int:
    text = str(role.metadata.get(NPROC, "1"))
    if not text.isdecimal() or int(text) < 1:
        raise SubmissionRefused(f"role {role.name}: metadata {NPROC}: {text!r} is no whole number from 1 up")
    return int(text)


def _refuse_unknown(role: Role) -> None:
    for key in role.metadata:
        if key.startswith(PREFIX) and key not in ROLE_KEYS:
            raise SubmissionRefused(
                f"role {role.name}: metadata {key}: roles know {', '.join(ROLE_KEYS)}; other keys belong to the app"
            )
