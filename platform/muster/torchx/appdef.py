"""Converts an AppDef into one TrainingJob, whose size does not depend on the number of replicas (pure).

TorchX's macros: `app_id` is the job's name and `rank0_env` a variable of the contract in docs/reference/run-folder.md;
`replica_id` differs between pods of one template, so it becomes `$(MUSTER_REPLICA)`, which the kubelet expands.
References `$(NAME)` to variables of the container are expanded and `$$(NAME)` is a literal `$(NAME)`, as by Kubernetes
and with TorchX's own Kubernetes scheduler; other runs of dollar signs are literal, hence they are doubled.

A component that runs unchanged on a laptop and on a GPU host does not know its resources before the nodes are known. It
marks them by the metadata `muster.dev/accelerator: auto` and `muster.dev/cores: auto`: one GPU per process if a node
has enough, else one CPU core.
"""

from __future__ import annotations

import copy
import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from torchx.specs import AppDef, BindMount, DeviceMount, Role, VolumeMount, macros

from muster.api.job_documents import to_kubernetes_name
from muster.api.quantity import whole_cores
from muster.api.spec import API_VERSION, TrainingJob
from muster.api.yaml_input.field_errors import to_field_error
from muster.api.yaml_input.source_map import SourceMap
from muster.local.command_lines import trainer_arguments
from muster.text import is_count
from muster.torchx.errors import SubmissionRefused, with_options
from muster.torchx.settings import PREFIX, resolve_settings

RANK0_HOST = "MUSTER_RANK0_HOST"
REPLICA = "MUSTER_REPLICA"
APP_LABEL = "muster.dev/app"
DEFAULT_NAMESPACE = "default"
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_REPLICA_TOKEN = "\0replica\0"
_LITERAL_DOLLARS = re.compile(rf"\$+(?={_REPLICA_TOKEN})|\${{2,}}(?![$(])")
TRACE_STEPS = "trace_steps"
_TRACING_MODULE = re.compile(r"\bmuster_components\.(trainer|titan)\b")
_TORCHRUN = re.compile(r"\btorchrun\b|\btorch\.distributed\.(run|launch)\b")
TORCHRUN_STOP_S = 30
GPU = "nvidia.com/gpu"
ACCELERATOR = PREFIX + "accelerator"
CORES = PREFIX + "cores"
NPROC = PREFIX + "nproc"
ROLE_KEYS = (ACCELERATOR, CORES, NPROC)


def to_training_job(
    app: AppDef, name: str, cfg: Mapping[str, object], img_root: str = "", namespace: str = DEFAULT_NAMESPACE
) -> TrainingJob:
    """The job of `app`, named `name`, in `namespace` unless the settings name one. Raises SubmissionRefused."""
    settings = resolve_settings(cfg, app.metadata)
    namespace = settings.get(".namespace", namespace)
    values = macros.Values(
        img_root=img_root, app_id=app_id(name, namespace), replica_id=_REPLICA_TOKEN, rank0_env=RANK0_HOST
    )
    roles = [values.apply(role) for role in app.roles]
    spec = {field: value for field, value in settings.items() if not field.startswith(".")}
    spec["roles"] = [_role_manifest(role, settings.get(".grace")) for role in roles]
    if ".min_replicas" in settings:
        _make_elastic(spec["roles"], settings[".min_replicas"])
    for role, entry in zip(roles, spec["roles"], strict=True):
        if "minReplicas" in entry:
            _check_elastic(role, entry["minReplicas"])
    spec["failurePolicy"] = {"maxRestarts": max(role.max_retries for role in roles)}
    if ".rules" in settings:
        spec["failurePolicy"]["rules"] = settings[".rules"]
    if (window := settings.get(".trace_window")) is not None:
        if cfg.get(TRACE_STEPS):
            _check_traceable(roles, cfg[TRACE_STEPS])
            _check_trained(roles, window)
        spec["trace"] = {"startStep": window[0], "steps": window[1], "ranks": settings.get(".ranks", [])}
        if ".trace_every" in settings:
            spec["trace"]["every"] = settings[".trace_every"]
        if ".trace_when_slower" in settings:
            spec["trace"]["whenSlower"] = settings[".trace_when_slower"]
    else:
        _check_untraced(roles)
    metadata = {"name": name, "namespace": namespace, "labels": {APP_LABEL: to_kubernetes_name(app.name)}}
    return validate_job({"apiVersion": API_VERSION, "kind": "TrainingJob", "metadata": metadata, "spec": spec})


def app_id(name: str, namespace: str) -> str:
    """The job's app id in TorchX: its name, prefixed with `namespace:` unless that is the default."""
    return name if namespace == DEFAULT_NAMESPACE else f"{namespace}:{name}"


def split_app_id(text: str) -> tuple[str, str]:
    """(name, namespace) of an app id."""
    namespace, colon, name = text.rpartition(":")
    return (name, namespace) if colon else (text, DEFAULT_NAMESPACE)


def _role_manifest(role: Role, grace_s: int | None) -> dict[str, Any]:
    name = to_kubernetes_name(role.name)
    container: dict[str, Any] = {
        "name": name,
        "image": role.image or None,
        "command": [_escape_dollars(role.entrypoint)],
        "args": [_escape_dollars(arg) for arg in role.args],
        "env": [{"name": variable, "value": _escape_dollars(str(value))} for variable, value in role.env.items()],
        "resources": _resources(role),
        "ports": [
            {"name": to_kubernetes_name(port, 15), "containerPort": number} for port, number in role.port_map.items()
        ],
    }
    pod: dict[str, Any] = {"terminationGracePeriodSeconds": grace_s, "nodeSelector": _node_selector(role)}
    pod["volumes"], container["volumeMounts"] = _volumes_and_mounts(role.mounts)
    pod["containers"] = [_drop_empty(container)]
    entry = {"name": name, "replicas": role.num_replicas, "minReplicas": role.min_replicas}
    if role.min_replicas == role.num_replicas:
        del entry["minReplicas"]
    return _drop_empty(entry) | {"template": {"spec": _drop_empty(pod)}}


def _make_elastic(roles: list[dict[str, Any]], min_replicas: int) -> None:
    if len(roles) > 1:
        names = ", ".join(role["name"] for role in roles)
        message = f"min_replicas: must be set for a role in the component, since the app has several roles ({names})"
        raise SubmissionRefused(message)
    roles[0]["minReplicas"] = min_replicas


def _check_traceable(roles: list[Role], steps: object) -> None:
    """Raises SubmissionRefused if the option trace_steps is used with an app that records no traces.

    Traces are recorded by Muster's trainer, or for other scripts by `muster_components.trainer.instrument`. A component
    that requests traces in its own metadata is not checked.
    """
    if any(_TRACING_MODULE.search(text) for role in roles for text in (role.entrypoint, *role.args)):
        return
    raise SubmissionRefused(
        f"trace_steps: {steps!r} would record nothing: {_entrypoints(roles)}; use the component "
        f"muster.train.script, or "
        "start the script through `python -m muster_components.trainer.instrument SCRIPT args...` "
        "(dist.torchrun, with TorchX 0.7.0 dist.ddp, -m muster_components.trainer.instrument -- SCRIPT args...)"
    )


def _check_trained(roles: list[Role], window: tuple[int, int]) -> None:
    """Raises SubmissionRefused if the steps of the option trace_steps begin after the last step of Muster's trainer."""
    for role in roles:
        traced = [f"--trace_steps={window[0]}:{sum(window)}"]
        if (why := _rejection(role, traced)) is not None and _rejection(role) is None:
            raise SubmissionRefused(f"trace_steps: {why}")


def _check_untraced(roles: list[Role]) -> None:
    """Raises SubmissionRefused if Muster's trainer needs steps to trace, which the job does not have."""
    for role in roles:
        if "MUSTER_TRACE_STEPS" in role.env or _rejection(role) is not None:
            continue
        if (why := _rejection(role, has_trace_variable=False)) is not None:
            raise SubmissionRefused(why)


def _check_elastic(role: Role, min_replicas: int) -> None:
    """Raises SubmissionRefused if Muster's trainer cannot run with its flags in an elastic job, or if one of TorchTitan
    was not checked for that by its component."""
    if "muster_components.titan" in role.args and min_replicas != role.min_replicas:
        raise SubmissionRefused("min_replicas: must be given to muster.train.titan as -j MIN:MAXxPROCESSES")
    if (why := _rejection(role, min_pods=min_replicas)) is not None and _rejection(role) is None:
        raise SubmissionRefused(f"min_replicas: {why}")


def _rejection(
    role: Role, more_flags: Sequence[str] = (), min_pods: int | None = None, *, has_trace_variable: bool = True
) -> str | None:
    """Why Muster's trainer rejects its flags in this role; None if it does not, or the role does not start it."""
    flags = trainer_arguments([role.entrypoint, *role.args])
    if flags is None or any("$" in flag for flag in flags):
        return None
    # By name, as in `muster submit`: no package of `muster` needs the trainer's.
    rejection = importlib.import_module("muster_components.trainer.submission").rejection
    found: str | None = rejection(
        [*more_flags, *flags],
        min_pods=role.num_replicas if min_pods is None else min_pods,
        pods=role.num_replicas,
        processes=None,  # the flags alone
        on_gpus=False,
        has_trace_variable=has_trace_variable,
    )
    return found


def _entrypoints(roles: list[Role]) -> str:
    starts = ", ".join(f"role {role.name!r} starts {role.entrypoint!r}" for role in roles[:3])
    more = f" and {len(roles) - 3} more" if len(roles) > 3 else ""
    return f"{starts}{more}, without Muster's trainer or instrument"


def _drop_empty(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that are not empty."""
    return {key: value for key, value in fields.items() if value not in (None, [], {})}


def _escape_dollars(text: str) -> str:
    """Double runs of `$` that do not belong to a reference, so that expansion restores them, and insert the reference
    to the replica."""
    doubled = _LITERAL_DOLLARS.sub(lambda match: match[0] * 2, text)
    return doubled.replace(_REPLICA_TOKEN, f"$({REPLICA})")


def _resources(role: Role) -> dict[str, dict[str, str]]:
    """Requests, and limits for devices and memory. TorchX uses -1 or 0 for unset values."""
    resource = role.resource
    devices = {"nvidia.com/gpu": resource.gpu, **{str(name): count for name, count in resource.devices.items()}}
    limits = {name: str(count) for name, count in devices.items() if count > 0}
    requests = dict(limits)
    if resource.cpu > 0:
        requests["cpu"] = str(resource.cpu)
    if resource.memMB > 0:
        requests["memory"] = limits["memory"] = f"{resource.memMB}Mi"
    return {key: amounts for key, amounts in (("requests", requests), ("limits", limits)) if amounts}


def _node_selector(role: Role) -> dict[str, str]:
    """Capabilities that are node labels, such as node.kubernetes.io/instance-type; others are ignored."""
    capabilities = role.resource.capabilities
    return {key: str(value) for key, value in capabilities.items() if "/" in key and _LABEL_VALUE.fullmatch(str(value))}


def _volumes_and_mounts(
    mounts: list[BindMount | VolumeMount | DeviceMount],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(volumes, volumeMounts) as TorchX's own Kubernetes scheduler writes them."""
    volumes: list[dict[str, Any]] = []
    mounted: list[dict[str, Any]] = []
    for number, mount in enumerate(mounts):
        source: dict[str, Any] = (
            {"persistentVolumeClaim": {"claimName": mount.src}}
            if isinstance(mount, VolumeMount)
            else {"hostPath": {"path": mount.src_path}}
        )
        read_only = "w" not in mount.permissions if isinstance(mount, DeviceMount) else mount.read_only
        volumes.append({"name": f"mount-{number}", **source})
        mounted.append({"name": f"mount-{number}", "mountPath": mount.dst_path, "readOnly": read_only})
    return volumes, mounted


def validate_job(document: dict[str, Any]) -> TrainingJob:
    """Parse a TrainingJob. Raises SubmissionRefused naming every invalid field."""
    try:
        return TrainingJob.model_validate(document)
    except ValidationError as error:
        errors = [to_field_error(detail, SourceMap(document, {})) for detail in error.errors()]
        raise SubmissionRefused("; ".join(with_options(f"{item.field}: {item.message}") for item in errors)) from error


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """Allocatable resources of one node. `reserved_milli` of its cores are for pods that run on every node (DaemonSets,
    the collector): a pod that requests all GPUs and all cores would never fit."""

    cpu_milli: int
    gpus: int
    reserved_milli: int = 0


def torchrun_notices(job: TrainingJob) -> list[str]:
    """What differs from Muster's launcher in roles that start torchrun."""
    notices = []
    for role in job.spec.roles:
        pod = role.template.spec
        grace_s = pod.termination_grace_period_seconds
        texts = [text for container in pod.containers for text in (*container.command, *container.args)]
        if grace_s > TORCHRUN_STOP_S and any(_TORCHRUN.search(text) for text in texts):
            notices.append(
                f"role {role.name}: torchrun kills its processes {TORCHRUN_STOP_S} s after SIGTERM, whatever the grace "
                f"period, which is {grace_s} s; the component muster.train.script gives them {grace_s - 10} s"
            )
    return notices


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
    if gpus > 0:  # their share of a node's cores; the rest is for the other GPUs
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
    if not is_count(text) or int(text) < 1:
        raise SubmissionRefused(f"role {role.name}: metadata {NPROC}: must be a positive integer; got {text!r}")
    return int(text)


def _check_metadata_keys(role: Role) -> None:
    for key in role.metadata:
        if key.startswith(PREFIX) and key not in ROLE_KEYS:
            raise SubmissionRefused(
                f"role {role.name}: metadata {key}: must be one of {', '.join(ROLE_KEYS)}; set other keys in the app's"
                " metadata"
            )
