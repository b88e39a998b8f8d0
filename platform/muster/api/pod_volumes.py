"""Volumes that a pod template gets in a cluster: shared memory for data loaders, and the run folder's claim.

A template is a plain value as in YAML: the spec of a pod, whose first container gets the mounts.
"""

from __future__ import annotations

from typing import Any

RUN_VOLUME, RUN_DIR = "muster-run", "/muster/run"
"""The operator's names (docs/operator.md): a volume of this name replaces its emptyDir."""
_SHM_DIR = "/dev/shm"


def add_shared_memory(pod: dict[str, Any]) -> None:
    """Mount memory at /dev/shm, which has 64 MB otherwise; nothing if something is mounted there."""
    mounted = {mount["mountPath"].rstrip("/") for mount in pod["containers"][0].get("volumeMounts") or ()}
    if _SHM_DIR not in mounted:
        _add_volume(pod, {"name": "dshm", "emptyDir": {"medium": "Memory"}}, {"mountPath": _SHM_DIR})


def add_run_volume(pod: dict[str, Any], claim: str) -> None:
    """Keep the run folder in a PersistentVolumeClaim: each job has a folder of its own in it."""
    volume = {"name": RUN_VOLUME, "persistentVolumeClaim": {"claimName": claim}}
    _add_volume(
        pod, volume, {"mountPath": RUN_DIR, "subPathExpr": "$(MUSTER_NAMESPACE)/$(MUSTER_JOB)-$(MUSTER_JOB_UID)"}
    )


def _add_volume(pod: dict[str, Any], volume: dict[str, Any], mount: dict[str, Any]) -> None:
    pod["volumes"] = [*(pod.get("volumes") or ()), volume]
    container = pod["containers"][0]
    container["volumeMounts"] = [*(container.get("volumeMounts") or ()), {"name": volume["name"], **mount}]
