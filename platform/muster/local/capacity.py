"""The CPUs, memory and NVIDIA GPUs of this host that this process may use.

A container or a batch system often gives a process fewer CPUs and less memory than the machine has, so the affinity
mask and the cgroup limits (v1 and v2) apply. GPUs are listed by nvidia-smi, without torch or a CUDA context.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

GPU = "nvidia.com/gpu"
POD_SLOTS = 110  # pod slots of a node, as a kubelet has by default
_NVIDIA_SMI_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """Allocatable resources. `gpus` are names for CUDA_VISIBLE_DEVICES; `gpu_model` is empty without a GPU."""

    hostname: str
    cpu_milli: int
    memory_bytes: int
    gpus: tuple[str, ...] = ()
    gpu_model: str = ""


def measure_capacity(environ: Mapping[str, str] = os.environ) -> Capacity:
    """The capacity of this host as this process may use it."""
    gpus = _gpus(environ)
    return Capacity(
        hostname=_node_name(socket.gethostname()),
        cpu_milli=cpu_milli(),
        memory_bytes=memory_bytes(),
        gpus=tuple(name for name, _ in gpus),
        gpu_model=gpus[0][1] if gpus else "",
    )


def cpu_milli(root: Path = Path("/")) -> int:
    """Milli-cores: the smaller of the affinity mask and the cgroup's CPU quota."""
    limits = [len(os.sched_getaffinity(0)) * 1000]
    for folder in _cgroup_folders(root, "cpu"):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            quota, period = _read_text(folder / "cpu.cfs_quota_us"), _read_text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            limits.append(max(1, int(quota) * 1000 // int(period)))
    return min(limits)


def memory_bytes(root: Path = Path("/")) -> int:
    """Bytes: the smaller of the machine's memory and the cgroup's limit."""
    total = next(
        int(line.split()[1]) * 1024
        for line in (root / "proc/meminfo").read_text().splitlines()
        if line.startswith("MemTotal:")
    )
    limits = [total]
    for folder in _cgroup_folders(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read_text(folder / name)
            if text.isdigit() and int(text):
                limits.append(int(text))
    return min(limits)


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """This process's cgroup of the controller and its ancestors; v1 and v2."""
    folders: list[Path] = []
    for line in _read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            base = root / "sys/fs/cgroup" / controller
        else:
            continue
        group = Path(path.lstrip("/"))
        folders += [base / part for part in (group, *group.parents)]
    return folders


def _gpus(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """(index, model) of the NVIDIA GPUs, restricted to CUDA_VISIBLE_DEVICES if it is set."""
    if not (os.path.isdir("/proc/driver/nvidia") or os.path.exists("/dev/nvidiactl")):
        return []
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return []
    query = [program, "--query-gpu=index,uuid,name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=_NVIDIA_SMI_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return visible_gpus(answer.stdout, environ.get("CUDA_VISIBLE_DEVICES"))


def visible_gpus(answer: str, visible: str | None) -> list[tuple[str, str]]:
    """(name for CUDA_VISIBLE_DEVICES, model) from nvidia-smi's lines "index, uuid, name".

    With `visible` only those that it names: by index, by UUID or its prefix (`GPU-...`), or MIG slices (`MIG-...`),
    which nvidia-smi does not list here: each counts as one GPU.
    """
    rows = [[part.strip() for part in line.split(",", 2)] for line in answer.splitlines() if line.count(",") >= 2]
    if visible is None:
        return [(index, model) for index, _, model in rows]
    requested = [name.strip() for name in visible.split(",") if name.strip()]
    gpus = [
        (index, model)
        for index, uuid, model in rows
        if any(name == index or (name.startswith("GPU-") and uuid.startswith(name)) for name in requested)
    ]
    models = {model for _, _, model in rows}
    of_slices = f"{models.pop()} MIG" if len(models) == 1 else ""
    return gpus + [(name, of_slices) for name in dict.fromkeys(requested) if name.startswith("MIG-")]


def _node_name(hostname: str) -> str:
    """The host name as a Kubernetes node name: lower case, other characters replaced by `-`."""
    name = "".join(char if char.isalnum() or char in "-." else "-" for char in hostname.lower()).strip("-.")
    return name or "localhost"


def _read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
