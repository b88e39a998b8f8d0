"""Settings of a pod in a cluster beyond those of the AppDef (pure).

As in TorchX's own Kubernetes scheduler: shared memory for data loaders, and privileges for device mounts. From options:
the service account, image pull secrets, and the volume of the run folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchx.specs import AppDef, DeviceMount, Role

from muster.spec import TrainingJob
from muster.torchx.appdef import validate_job
from muster.torchx.errors import SubmissionRefused

RUN_VOLUME, RUN_DIR = "muster-run", "/muster/run"
"""The operator's names (docs/operator.md): a volume of this name replaces its emptyDir."""
_SHM_DIR = "/dev/shm"


def with_cluster_settings(job: TrainingJob, app: AppDef, settings: Mapping[str, Any]) -> TrainingJob:
    """The job of `to_training_job` with the settings for a cluster. Raises SubmissionRefused."""
    document = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if settings.get(".priority_class"):
        document["spec"]["priorityClassName"] = settings[".priority_class"]
    for role, entry in zip(app.roles, document["spec"]["roles"], strict=True):
        if not role.image:
            raise SubmissionRefused(f"role {role.name}: image: must not be empty in a cluster; use --image")
        _complete_pod(entry["template"]["spec"], role, settings)
    return validate_job(document)


def _complete_pod(pod: dict[str, Any], role: Role, settings: Mapping[str, Any]) -> None:
    if settings.get(".service_account"):
        pod["serviceAccountName"] = settings[".service_account"]
    if settings.get(".image_pull_secrets"):
        pod["imagePullSecrets"] = [{"name": name} for name in settings[".image_pull_secrets"]]
    container = pod["containers"][0]
    mounted = {mount["mountPath"].rstrip("/") for mount in container.get("volumeMounts", ())}
    if _SHM_DIR not in mounted:  # 64 MB otherwise
        _add_volume(pod, {"name": "dshm", "emptyDir": {"medium": "Memory"}}, {"mountPath": _SHM_DIR})
    claim = settings.get(".run_volume")
    if claim:
        volume = {"name": RUN_VOLUME, "persistentVolumeClaim": {"claimName": claim}}
        _add_volume(
            pod, volume, {"mountPath": RUN_DIR, "subPathExpr": "$(MUSTER_NAMESPACE)/$(MUSTER_JOB)-$(MUSTER_JOB_UID)"}
        )
    if any(isinstance(mount, DeviceMount) for mount in role.mounts):
        container["securityContext"] = {"privileged": True}


def _add_volume(pod: dict[str, Any], volume: dict[str, Any], mount: dict[str, Any]) -> None:
    pod.setdefault("volumes", []).append(volume)
    pod["containers"][0].setdefault("volumeMounts", []).append({"name": volume["name"], **mount})
