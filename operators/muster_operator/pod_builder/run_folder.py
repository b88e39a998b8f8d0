"""Location of the run folder in a pod: in a volume of the pod, or in one that the template defines; and whether the
job's checkpoints outlive the pod. Pure.

Many jobs may share a volume `muster-run` of the template: each has a folder of its own in it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from typing import Any

from muster.api import spec
from muster.errors import InvalidSpec
from muster.kinds.trainingjob.arrays import path_uid

RUN_VOLUME = "muster-run"
RUN_DIR = "/muster/run"
RUN_DIR_VARIABLE = "MUSTER_RUN_DIR"
JOB_FOLDER = "$(MUSTER_NAMESPACE)/$(MUSTER_JOB)-$(MUSTER_JOB_UID)"
"""A job's folder in a shared volume or store."""

_EPHEMERAL_VOLUMES = ("emptyDir", "ephemeral")
_MAX_MOUNTS = 32  # that are kept of a template; of one with more, only that of the run folder


def has_durable_run_folder(role: spec.RoleSpec) -> bool:
    """Whether the role's run folder is in a volume that outlives its pods."""
    return _durable_volume(role) is not None


def has_durable_checkpoints(job_spec: spec.TrainingJobSpec, role: spec.RoleSpec) -> bool:
    """Whether the job's checkpoints, in its `checkpointDir` or else in the role's run folder, are in a volume that
    outlives the role's pods."""
    if job_spec.checkpoint_dir is None:
        return has_durable_run_folder(role)
    pod = role.template.spec
    own, run_mount = _trainer_mount(pod)
    run_dir = own or (RUN_DIR if run_mount is None else str(run_mount.get("mountPath", "")))
    folder = posixpath.normpath(posixpath.join(run_dir, job_spec.checkpoint_dir))
    mounts: list[Mapping[str, Any]] = list(pod.containers[0].volume_mounts)
    if own is None and run_mount is None:
        mounts.append({"name": RUN_VOLUME, "mountPath": RUN_DIR})
    mount = max((one for one in mounts if contains_path(one, folder)), key=_mount_depth, default=None)
    return mount is not None and _durable(pod, mount.get("name")) is not None


def job_folder(job: spec.TrainingJob) -> str:
    """`NAMESPACE/JOB-UID`: the value of `JOB_FOLDER` in the job's pods."""
    return _expand(JOB_FOLDER, job)


def volume_location(job: spec.TrainingJob, role: spec.RoleSpec) -> str:
    """Location of a role's durable run folder, as pvc://CLAIM/FOLDER or volume://NAME/FOLDER; "" if it is not
    durable."""
    durable = _durable_volume(role)
    if durable is None:
        return ""
    volume, folder = durable
    claim = volume.get("persistentVolumeClaim")
    location = f"pvc://{claim['claimName']}" if isinstance(claim, Mapping) and "claimName" in claim else ""
    folder = _expand(folder, job).strip("/")
    return (location or f"volume://{volume['name']}") + (f"/{folder}" if folder else "")


def run_folder_fields(pod: spec.PodSpec) -> tuple[list[spec.EnvVar], list[dict[str, Any]], list[dict[str, Any]]]:
    """The variables and mounts of the first container, and the volumes, that determine the run folder and whether
    checkpoints outlive the pod, with only the fields that are read: volumes that do not outlive it are left out."""
    own, run_mount = _trainer_mount(pod)
    env = [] if own is None else [spec.EnvVar(name=RUN_DIR_VARIABLE, value=own)]
    run_volume = _run_folder_volume(pod, own, run_mount)
    mounts, volumes = [], [] if run_volume is None else [_volume_fields(run_volume)]
    is_small = len(pod.containers[0].volume_mounts) <= _MAX_MOUNTS
    for mount in pod.containers[0].volume_mounts:
        if mount is run_mount:
            mounts.append(_select(mount, ("name", "mountPath", "subPath", "subPathExpr")))
        elif is_small:
            mounts.append(_select(mount, ("name", "mountPath")))
            volume = _durable(pod, mount.get("name"))
            if volume is not None and all(one["name"] != volume["name"] for one in volumes):
                volumes.append({"name": volume["name"]})
    return env, mounts, volumes


def _volume_fields(volume: Mapping[str, Any]) -> dict[str, Any]:
    claim = volume.get("persistentVolumeClaim")
    kind = {"persistentVolumeClaim": _select(claim, ("claimName",))} if isinstance(claim, Mapping) else {}
    return {"name": volume["name"], **kind}


def _select(fields: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: fields[name] for name in names if name in fields}


def _durable_volume(role: spec.RoleSpec) -> tuple[Mapping[str, Any], str] | None:
    """The volume of a durable run folder, and the unexpanded path of the folder in it; None: not durable."""
    pod = role.template.spec
    own, mount = _trainer_mount(pod)
    volume = _run_folder_volume(pod, own, mount)
    if volume is None:
        return None
    if own is not None:
        return volume, _path_in_volume(mount or {}, own)
    return volume, JOB_FOLDER if mount is None else _path_in_volume(mount, str(mount.get("mountPath", "")))


def _trainer_mount(pod: spec.PodSpec) -> tuple[str | None, Mapping[str, Any] | None]:
    """The value of the trainer's own variable for the run folder, if set; and the mount that contains the folder."""
    main = pod.containers[0]
    own = next((one.value for one in main.env if one.name == RUN_DIR_VARIABLE), None)
    if own is None:
        return None, next((one for one in main.volume_mounts if one.get("name") == RUN_VOLUME), None)
    return own, max((one for one in main.volume_mounts if contains_path(one, own)), key=_mount_depth, default=None)


def _run_folder_volume(pod: spec.PodSpec, own: str | None, mount: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The volume of the run folder, if it outlives the pod."""
    return _durable(pod, RUN_VOLUME if own is None else (mount or {}).get("name", ""))


def _durable(pod: spec.PodSpec, name: object) -> Mapping[str, Any] | None:
    """The volume of this name, if it outlives the pod."""
    volumes = (one for one in pod.volumes if one.get("name") == name)
    return next((one for one in volumes if not any(kind in one for kind in _EPHEMERAL_VOLUMES)), None)


def _path_in_volume(mount: Mapping[str, Any], path: str) -> str:
    """Path in the volume of a path below a mount."""
    inside = path[len(str(mount.get("mountPath", "")).rstrip("/")) :].strip("/")
    above = str(mount.get("subPathExpr") or mount.get("subPath") or "").strip("/")
    return "/".join(part for part in (above, inside) if part)


def _expand(text: str, job: spec.TrainingJob) -> str:
    """Expand the job's variables; those of pods are left unexpanded."""
    meta = job.metadata
    values = {"NAMESPACE": meta.namespace or "", "JOB": meta.name, "JOB_UID": path_uid(job)}
    for name, value in values.items():
        text = text.replace(f"$(MUSTER_{name})", value)
    return text


def find_run_folder(container: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The run folder's path in a container, and the mount that contains it. Raises InvalidSpec where the collector
    could not read it."""
    run_dir = next((one.get("value") for one in container["env"] if one["name"] == RUN_DIR_VARIABLE), None)
    if not isinstance(run_dir, str):
        raise InvalidSpec(
            f"{RUN_DIR_VARIABLE} of container {container.get('name')!r} must have a literal value, because the "
            "collector has to find the run folder; set value, or remove the variable",
            field="env",
        )
    if ".." in run_dir.split("/"):
        raise InvalidSpec(f"{RUN_DIR_VARIABLE} must be a path without '..'; got {run_dir!r}", field="env")
    other_variables = [part for part in run_dir.split("$(")[1:] if not part.startswith("MUSTER_")]
    if other_variables:
        raise InvalidSpec(
            f"{RUN_DIR_VARIABLE}: {run_dir!r} refers to $({other_variables[0]}, which the collector does not have; use "
            "variables MUSTER_... only",
            field="env",
        )
    mounts = [one for one in container.get("volumeMounts") or () if contains_path(one, run_dir)]
    if not mounts:
        raise InvalidSpec(
            f"{RUN_DIR_VARIABLE}: {run_dir!r} of container {container.get('name')!r} is not in a volume, so the "
            f"collector cannot read it; mount a volume there, or remove the variable",
            field="env",
        )
    mount = max(mounts, key=_mount_depth)
    return run_dir, {name: value for name, value in mount.items() if name != "readOnly"}


def contains_path(mount: Mapping[str, Any], path: str) -> bool:
    """Whether a path is the mount's or below it."""
    folder = str(mount.get("mountPath", "")).rstrip("/")
    return bool(folder) and (path == folder or path.startswith(f"{folder}/"))


def _mount_depth(mount: Mapping[str, Any]) -> int:
    return len(str(mount.get("mountPath", "")))


def is_pod_volume(volumes: Iterable[Mapping[str, Any]], mount: Mapping[str, Any]) -> bool:
    """Whether the mounted volume belongs to this pod only."""
    return any(volume.get("name") == mount.get("name") and "emptyDir" in volume for volume in volumes)
