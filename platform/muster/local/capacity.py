"""What this host has for replicas: CPUs, memory, NVIDIA GPUs; no more than we may use ourselves.

A container or a batch system often gives a process fewer CPUs and less memory than the machine has, so the affinity
mask and the cgroup (both versions) are looked at. GPUs are asked of nvidia-smi: no torch, no CUDA context.
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
    """What can be given out. `gpus` are the names CUDA_VISIBLE_DEVICES takes; `gpu_model` is empty without one."""

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
    """Milli-cores: the affinity mask, or the cgroup's CPU quota where that is less."""
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
    """Bytes: all memory of the machine, or the cgroup's limit where that is less."""
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
    """Our group of this controller and all groups above it; both cgroup versions."""
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
    """(index, model) of the NVIDIA GPUs; those that CUDA_VISIBLE_DEVICES leaves us, when it is set."""
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

    With `visible` only those that it names: by index, by UUID (`GPU-...`, its beginning will do), or slices of a GPU
    (`MIG-...`), which nvidia-smi does not list here: each is given out as one GPU.
    """
    rows = [[part.strip() for part in line.split(",", 2)] for line in answer.splitlines() if line.count(",") >= 2]
    if visible is None:
        return [(index, model) for index, _, model in rows]
    wanted = [name.strip() for name in visible.split(",") if name.strip()]
    gpus = [
        (index, model)
        for index, uuid, model in rows
        if any(name == index or (name.startswith("GPU-") and uuid.startswith(name)) for name in wanted)
    ]
    models = {model for _, _, model in rows}
    of_slices = f"{models.pop()} MIG" if len(models) == 1 else ""
    return gpus + [(name, of_slices) for name in dict.fromkeys(wanted) if name.startswith("MIG-")]


def _node_name(hostname: str) -> str:
    """A host name as Kubernetes writes one: lower case, no odd characters."""
    name = "".join(char if char.isalnum() or char in "-." else "-" for char in hostname.lower()).strip("-.")
    return name or "localhost"


def _read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
