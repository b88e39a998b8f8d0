"""The collector sidecar of training pods: which pods have one, its container, and the Secret with its token. Pure.

It is a native sidecar (an init container with restartPolicy Always): it starts before the trainer and is stopped after
the trainer ended, so that it collects everything the trainer writes. The user's containers and volumes stay unchanged;
a conflict is rejected with the field before admission.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from muster.api import spec
from muster.api.spec import JOB_LABEL
from muster.cluster import CreatePod
from muster.errors import InvalidSpec
from muster.kinds.trainingjob.arrays import array_name, split_index_key
from muster_operator.pod_builder.job_objects import JOB_UID_LABEL, owned_metadata, port_by_hash, service_name
from muster_operator.pod_builder.run_folder import (
    JOB_FOLDER,
    RUN_DIR_VARIABLE,
    contains_path,
    find_run_folder,
    has_durable_checkpoints,
    is_pod_volume,
    job_folder,
    volume_location,
)

COLLECTOR_NAME = "muster-collector"
COLLECTOR_PORT, COLLECTOR_PORT_NAME = 29480, "muster-hb"
TOKEN_KEY = "token"
TOKEN_VOLUME, STORE_VOLUME = "muster-collector-token", "muster-collector-store"
STATE_VOLUME, STATE_DIR = "muster-collector-state", "/var/run/muster.dev/state"
"""An emptyDir of the collector alone: the trainer must not decide which uploads it continues."""
_STATE_SIZE = "16Mi"
SECRETS_DIR = "/var/run/secrets/muster.dev"  # mounted in the collector's container only
_SECRET_MODE = 0o444
_HOST_PORTS = (19_000, 20_000)  # below the rendezvous ports
_INHERITED_SECURITY_FIELDS = ("runAsUser", "runAsGroup", "seLinuxOptions")
_TERMINATION_LOG = "/dev/termination-log"  # default of Kubernetes, set explicitly because it may be read-only otherwise
_DEFAULT_RESOURCES = {"cpu": "250m", "memory": "256Mi"}


@dataclass(frozen=True, slots=True)
class CollectorSidecarConfig:
    """The installation's collector configuration; no collectors without `image`.

    Requests equal limits, so that a Guaranteed pod stays Guaranteed. `store` is a URL below which every job has a
    folder; `store_secret` names a Secret in the job's namespace with the store's credentials. With `all_jobs` every pod
    has a collector, so that traces of every job can be requested while it runs.
    """

    image: str = ""
    pull_policy: str = ""
    resources: Mapping[str, Any] = field(
        default_factory=lambda: {"requests": _DEFAULT_RESOURCES, "limits": _DEFAULT_RESOURCES}
    )
    store: str = ""
    store_secret: str = ""
    all_jobs: bool = False


def lead_role(job_spec: spec.TrainingJobSpec) -> spec.RoleSpec:
    """The role whose pod 0 is the job's lead pod: the first essential one."""
    return next(role for role in job_spec.roles if role.essential)


def has_collector(job_spec: spec.TrainingJobSpec, role: str, index: int, config: CollectorSidecarConfig) -> bool:
    """Whether this pod has a collector: every pod of a traced job, or with `all_jobs` of every job, and the lead pod of
    a job with a time-out of steps or durable checkpoints."""
    if not config.image:
        return False
    if job_spec.trace is not None or config.all_jobs:
        return True
    lead = lead_role(job_spec)
    is_needed = job_spec.has_step_timeout or has_durable_checkpoints(job_spec, lead)
    return is_needed and (role, index) == (lead.name, 0)


def run_location(job: spec.TrainingJob, config: CollectorSidecarConfig) -> str:
    """Location of a traced job's run: in the store, else in a durable volume of the job, else ""."""
    if config.store:
        return f"{config.store.rstrip('/')}/{job_folder(job)}"
    return volume_location(job, lead_role(job.spec))


def collector_port(uid: str, role: str, index: int, *, on_host_network: bool) -> int:
    """Port of the collector. On the host network, which pods share, it is derived from the pod."""
    if not on_host_network:
        return COLLECTOR_PORT
    return port_by_hash(f"{uid}/{role}/{index}", _HOST_PORTS)


def secret_name(job: str, uid: str) -> str:
    """Name of the Secret with a job's token."""
    return f"{service_name(job, uid)}-collector"


def secret_manifest(job: spec.TrainingJob, token: str) -> dict[str, Any]:
    """Manifest of the Secret: immutable, owned by the job."""
    name, uid = array_name(job), split_index_key(job.metadata.uid)[0]
    labels = {JOB_LABEL: name, JOB_UID_LABEL: uid}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": owned_metadata(job, secret_name(name, uid), labels),
        "type": "Opaque",
        "immutable": True,
        "stringData": {TOKEN_KEY: token},
    }


def add_collector(
    pod_spec: Mapping[str, Any], job: spec.TrainingJob, pod: CreatePod, config: CollectorSidecarConfig
) -> dict[str, Any]:
    """The pod spec with the collector; `pod_spec` has the environment already. Raises InvalidSpec where the template
    uses its name or port, or where it could not read the run folder."""
    _reject_conflicts(pod_spec)
    main = pod_spec["containers"][0]
    muster_env = [one for one in main["env"] if one["name"].startswith("MUSTER_") and "value" in one]
    run_dir, mount = find_run_folder(main)
    for what, folder in (("the secrets", SECRETS_DIR), ("the state", STATE_DIR)):
        if contains_path(mount, folder):
            raise InvalidSpec(
                f"the volume of the run folder must not be mounted at {mount['mountPath']!r}: {what} of the sidecar "
                f"{COLLECTOR_NAME} {'are' if what.endswith('s') else 'is'} in {folder}",
                field="volumeMounts",
            )
    uid, host_network = job.metadata.uid, bool(pod_spec.get("hostNetwork"))
    secrets = [_secret_volume(TOKEN_VOLUME, secret_name(array_name(job), split_index_key(uid)[0]))]
    state: list[dict[str, Any]] = []
    arguments = [
        f"--run-dir=$({RUN_DIR_VARIABLE})",
        f"--mount={mount['mountPath']}",
        "--role=$(MUSTER_ROLE)",
        "--index=$(MUSTER_REPLICA)",
        "--address=$(MUSTER_POD_IP)",
        f"--port={collector_port(uid, pod.role, pod.index, on_host_network=host_network)}",
        f"--token-file={SECRETS_DIR}/{TOKEN_VOLUME}/{TOKEN_KEY}",
        f"--termination-message-path={_TERMINATION_LOG}",
    ]
    is_own = is_pod_volume(pod_spec.get("volumes") or (), mount)
    if is_own:
        arguments.append("--open-spool")
    if config.store and (job.spec.trace is not None or _may_use_store(pod_spec, config)):
        arguments += [f"--store={config.store.rstrip('/')}/{JOB_FOLDER}", f"--state-dir={STATE_DIR}"]
        state.append({"name": STATE_VOLUME, "emptyDir": {"sizeLimit": _STATE_SIZE}})
        if is_own or (pod.role, pod.index) == (lead_role(job.spec).name, 0):  # in a shared folder one collector reports
            arguments.append("--store-metrics")
        if config.store_secret:
            _reject_shared_process_namespaces(pod_spec)
            arguments.append(f"--store-credentials={SECRETS_DIR}/{STORE_VOLUME}")
            secrets.append(_secret_volume(STORE_VOLUME, config.store_secret, optional=True))
    container: dict[str, Any] = {
        "name": COLLECTOR_NAME,
        "image": config.image,
        "command": ["python", "-m", "muster.tracing.collector"],
        "args": arguments,
        "restartPolicy": "Always",
        "env": [
            *(one for one in muster_env if one["name"] not in (RUN_DIR_VARIABLE, "MUSTER_POD")),
            {"name": RUN_DIR_VARIABLE, "value": run_dir},
            {"name": "MUSTER_POD", "value": pod.name},
            {"name": "MUSTER_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        ],
        "resources": dict(config.resources),
        "securityContext": _security_context(pod_spec, main),
        "volumeMounts": [
            mount,
            *({"name": one["name"], "mountPath": f"{SECRETS_DIR}/{one['name']}", "readOnly": True} for one in secrets),
            *({"name": one["name"], "mountPath": STATE_DIR} for one in state),
        ],
        "terminationMessagePath": _TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if config.pull_policy:
        container["imagePullPolicy"] = config.pull_policy
    if not host_network:
        container["ports"] = [{"name": COLLECTOR_PORT_NAME, "containerPort": COLLECTOR_PORT}]
    return {
        **pod_spec,
        "initContainers": [*(pod_spec.get("initContainers") or ()), container],
        "volumes": [*(pod_spec.get("volumes") or ()), *secrets, *state],
    }


def _secret_volume(name: str, secret: str, *, optional: bool = False) -> dict[str, Any]:
    source = {"secretName": secret, "defaultMode": _SECRET_MODE}
    return {"name": name, "secret": {**source, "optional": True} if optional else source}


def _may_use_store(pod_spec: Mapping[str, Any], config: CollectorSidecarConfig) -> bool:
    """Whether the collector of a job without `trace` gets the store: not where its credentials could be read, which a
    traced job is refused for."""
    exposes = any(pod_spec.get(name) for name in ("shareProcessNamespace", "hostPID"))
    return config.all_jobs and not (config.store_secret and exposes)


def _reject_shared_process_namespaces(pod_spec: Mapping[str, Any]) -> None:
    """A container that sees the collector's process could read the store's credentials from /proc."""
    for name in ("shareProcessNamespace", "hostPID"):
        if pod_spec.get(name):
            raise InvalidSpec(
                f"{name} must be false in a job that is traced; got true: the trainer could read the collector's "
                "credentials of the trace store",
                field=name,
            )


def _reject_conflicts(pod_spec: Mapping[str, Any]) -> None:
    collector_volumes = (TOKEN_VOLUME, STORE_VOLUME, STATE_VOLUME)
    for volume in pod_spec.get("volumes") or ():
        if volume.get("name") in collector_volumes:
            raise InvalidSpec(
                f"volumes: {volume['name']!r} is reserved for a volume that Muster adds; use another name",
                field="volumes",
            )
    for kind in ("containers", "initContainers"):
        for container in pod_spec.get(kind) or ():
            where = f"{kind}: {container.get('name')!r}"
            if container.get("name") == COLLECTOR_NAME:
                raise InvalidSpec(f"{where} is reserved for the sidecar that Muster adds; use another name", field=kind)
            for mount in container.get("volumeMounts") or ():
                if mount.get("name") in collector_volumes:
                    raise InvalidSpec(
                        f"{where} must not mount {mount['name']!r}: it is reserved for the sidecar {COLLECTOR_NAME}",
                        field=kind,
                    )
            for port in container.get("ports") or ():
                if port.get("containerPort") == COLLECTOR_PORT or port.get("name") == COLLECTOR_PORT_NAME:
                    raise InvalidSpec(
                        f"{where} has port {port.get('name') or COLLECTOR_PORT}, which is reserved for the sidecar "
                        f"{COLLECTOR_NAME}; "
                        "use another name and number",
                        field=kind,
                    )


def _security_context(pod_spec: Mapping[str, Any], main: Mapping[str, Any]) -> dict[str, Any]:
    """The restricted settings, with the trainer's user where the template sets one: they share files."""
    of_pod, of_main = pod_spec.get("securityContext") or {}, main.get("securityContext") or {}
    same = {name: of_main[name] for name in _INHERITED_SECURITY_FIELDS if name in of_main}
    user = same.get("runAsUser", of_pod.get("runAsUser"))
    return {
        **same,
        "runAsNonRoot": user != 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
