"""What TorchX and pipelines add to the document of a job: a name made of other text (of an app, of a step), and to pods
in a cluster volumes (shared memory for data loaders, the run folder's claim) and a restricted security context.

A template is a plain value as in YAML: the spec of a pod, whose first container gets the mounts.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from muster.api.spec import MAX_JOB_NAME

RUN_VOLUME, RUN_DIR = "muster-run", "/muster/run"
"""The operator's names (docs/operations/operator.md): a volume of this name replaces its emptyDir."""
_SHM_DIR = "/dev/shm"


def to_kubernetes_name(text: str, max_length: int = MAX_JOB_NAME) -> str:
    """The text as a Kubernetes name: lower-case letters without accents, digits and single dashes; `job` when nothing
    is left."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    name = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")[:max_length].strip("-")
    return name or "job"[:max_length]


def with_suffix(text: str, suffix: str, max_length: int = MAX_JOB_NAME) -> str:
    """A Kubernetes name that ends with `-suffix`, of at most `max_length` characters if suffix and a letter fit."""
    return f"{to_kubernetes_name(text, max(1, max_length - len(suffix) - 1))}-{suffix}"


def add_shared_memory(pod: dict[str, Any]) -> None:
    """Mount memory at /dev/shm, which has 64 MB otherwise; nothing if something is mounted there."""
    mounted = {mount["mountPath"].rstrip("/") for mount in pod["containers"][0].get("volumeMounts") or ()}
    if _SHM_DIR not in mounted:
        _add_volume(pod, {"name": "dshm", "emptyDir": {"medium": "Memory"}}, {"mountPath": _SHM_DIR})


def restrict_pod(pod: dict[str, Any]) -> None:
    """Let a pod whose image does not run as root pass Pod Security `restricted`."""
    pod["securityContext"] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    for container in pod["containers"]:
        container["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


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
