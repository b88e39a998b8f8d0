"""`torchx run -s muster`: the TorchX scheduler for a Kubernetes cluster with Muster's operator.

Pods get settings beyond those of the AppDef. As in TorchX's own Kubernetes scheduler: shared memory for data loaders,
and privileges for device mounts. From options: service account, image pull secrets, and the run folder's volume.
"""

from __future__ import annotations

import builtins
import logging
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from torchx.specs import AppDef, AppDryRunInfo, CfgVal, DeviceMount, Role, runopts
from torchx.version import TORCHX_IMAGE
from torchx.workspace.api import walk_workspace

from muster.api.job_documents import add_run_volume, add_shared_memory, restrict_pod
from muster.api.pod_security import pod_security_violations
from muster.api.spec import TrainingJob
from muster.cluster_client.client import KubernetesClusterClient
from muster.cluster_client.workspace import pack_files, unpack_in_pod
from muster.errors import ClusterError, InvalidSpec, NotFound, Refused
from muster.kube.config import DEFAULT_NAMESPACE, KubeContext, load_config
from muster.torchx.appdef import (
    GPU,
    NodeCapacity,
    needs_node_capacity,
    resolve_auto_resources,
    to_training_job,
    torchrun_notices,
    validate_job,
)
from muster.torchx.errors import SubmissionRefused, as_submission_refused
from muster.torchx.scheduler import MusterScheduler, cfg_mapping, to_yaml, unique_job_name
from muster.torchx.settings import resolve_settings, run_options

BACKEND = "muster"
CONTEXT_ENV = "MUSTER_CONTEXT"
logger = logging.getLogger(__name__)
_RESERVED_SHARE = 10
"""One core in this number is left to DaemonSets and collectors, which users may not be allowed to list."""
_IGNORED_FOLDERS = frozenset((".git", "__pycache__", ".venv"))
_UNLIMITED_NODES = (NodeCapacity(cpu_milli=1_000_000, gpus=1000),)


@dataclass(frozen=True, slots=True)
class Submission:
    """A job, its target cluster, and the code that its pods unpack."""

    job: TrainingJob
    context: KubeContext
    archive: bytes | None = None  # of the workspace


class KubernetesScheduler(MusterScheduler):
    """Jobs in the cluster of a kubeconfig context: that of the options at submission, else $MUSTER_CONTEXT or the
    current context of $KUBECONFIG."""

    def __init__(self, session_name: str, target: KubeContext | None = None) -> None:
        super().__init__(BACKEND, session_name)
        self._default_context = target or KubeContext(context=os.environ.get(CONTEXT_ENV) or None)
        self._clients: dict[KubeContext, KubernetesClusterClient] = {}
        self._context_by_app: dict[str, KubeContext] = {}  # of jobs submitted in this session, by app id

    # ---- submitting

    def _run_opts(self) -> runopts:
        return run_options(BACKEND)

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo:
        with as_submission_refused():
            settings = resolve_settings(cfg, app.metadata)
            target = self._resolve_context({name: settings.get(f".{name}") for name in ("kubeconfig", "context")})
            sizes = self._node_capacities(target) if needs_node_capacity(app) else []
            sized, notices = resolve_auto_resources(app, sizes, bool(settings.get(".oversubscribe")))
            job = to_training_job(sized, unique_job_name(sized), cfg, namespace=_context_namespace(target))
            for notice in (*notices, *_default_image_notices(app), *torchrun_notices(job)):
                logger.warning(notice)
            archive = pack_workspace(settings[".workspace"]) if settings.get(".workspace") else None
            request = Submission(with_cluster_settings(job, sized, settings), target, archive)
            return AppDryRunInfo(request, _submission_yaml)

    def schedule(self, dryrun_info: AppDryRunInfo) -> str:
        submission: Submission = dryrun_info.request
        with as_submission_refused():
            client, archive = self._client_of(submission.context), submission.archive
            job = (
                client.submit(submission.job)
                if archive is None
                else client.submit_with_archive(submission.job, archive)
            )
            submitted = self._record_submission(job)
        self._context_by_app[submitted] = submission.context
        if submission.context != self._default_context:
            logger.info(
                "%s is in context %s; in other shells: %s",
                submitted,
                self._context_name(submitted),
                _export_command(submission.context),
            )
        return submitted

    # ---- which cluster

    def _client(self, app_id: str | None = None) -> KubernetesClusterClient:
        return self._client_of(self._context_by_app.get(app_id or "", self._default_context))

    def _context_name(self, app_id: str) -> str:
        return self._client(app_id).context_name

    def _client_of(self, context: KubeContext) -> KubernetesClusterClient:
        if context not in self._clients:
            self._clients[context] = KubernetesClusterClient.connect(context)
        return self._clients[context]

    def _resolve_context(self, cfg: Mapping[str, object]) -> KubeContext:
        kubeconfig, context = cfg.get("kubeconfig"), cfg.get("context")
        if kubeconfig is None and context is None:
            return self._default_context
        return KubeContext(
            self._default_context.kubeconfig if kubeconfig is None else str(kubeconfig),
            self._default_context.context if context is None else str(context),
        )

    def _list_jobs(self, cfg: object) -> builtins.list[TrainingJob]:
        options = cfg_mapping(cfg)
        client = self._client_of(self._resolve_context(options))
        listing = client.job_list(str(options.get("namespace") or client.namespace))
        for one in listing.unreadable:
            logger.warning("job %s is not listed because it cannot be decoded: %s", one.name, one.error)
        return listing.jobs

    def _node_capacities(self, target: KubeContext) -> Sequence[NodeCapacity]:
        """The nodes; if they cannot be read, unlimited ones, so that the request is not reduced."""
        try:
            views = self._client_of(target).node_views()
        except (ClusterError, Refused) as error:
            logger.warning("the cluster's nodes cannot be read: requesting one GPU per process (%s)", error)
            return _UNLIMITED_NODES
        sizes = [(view.allocatable.get("cpu"), view.allocatable.get(GPU)) for view in views]
        return [NodeCapacity(cpu, gpus, reserved_milli=cpu // _RESERVED_SHARE) for cpu, gpus in sizes]


def _context_namespace(target: KubeContext) -> str:
    """The context's namespace; without a kubeconfig, the default one, as in a dry run."""
    try:
        return load_config(target).namespace
    except (ClusterError, NotFound) as error:
        if target != KubeContext():
            raise
        logger.debug("%s", error)
        return DEFAULT_NAMESPACE


def _export_command(target: KubeContext) -> str:
    """The shell command that selects the same cluster."""
    named = {"KUBECONFIG": target.kubeconfig, CONTEXT_ENV: target.context}
    return "export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in named.items() if value)


def _default_image_notices(app: AppDef) -> list[str]:
    roles = [role.name for role in app.roles if role.image == TORCHX_IMAGE]
    message = (
        f"role {', '.join(roles)}: no image is set, so TorchX's default image is used: {TORCHX_IMAGE}; see --image"
    )
    return [message] if roles else []


def _submission_yaml(submission: Submission) -> str:
    return to_yaml(submission.job)


def with_cluster_settings(job: TrainingJob, app: AppDef, settings: Mapping[str, Any]) -> TrainingJob:
    """The job of `to_training_job` with the settings for a cluster. Raises SubmissionRefused."""
    document = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if settings.get(".priority_class"):
        document["spec"]["priorityClassName"] = settings[".priority_class"]
    for role, entry in zip(app.roles, document["spec"]["roles"], strict=True):
        if not role.image:
            raise SubmissionRefused(f"role {role.name}: image: must not be empty in a cluster; use --image")
        _complete_pod(entry["template"]["spec"], role, settings)
        if settings.get(".workspace"):
            unpack_in_pod(entry["template"]["spec"], job.metadata.name)
        if settings.get(".pod_security") == "restricted":
            _check_restricted(entry["template"], role)
    return validate_job(document)


def _complete_pod(pod: dict[str, Any], role: Role, settings: Mapping[str, Any]) -> None:
    if settings.get(".service_account"):
        pod["serviceAccountName"] = settings[".service_account"]
    if settings.get(".image_pull_secrets"):
        pod["imagePullSecrets"] = [{"name": name} for name in settings[".image_pull_secrets"]]
    add_shared_memory(pod)
    if settings.get(".run_volume"):
        add_run_volume(pod, settings[".run_volume"])
    if any(isinstance(mount, DeviceMount) for mount in role.mounts):
        pod["containers"][0]["securityContext"] = {"privileged": True}
    elif settings.get(".pod_security") == "restricted":
        restrict_pod(pod)
    if settings.get(".host_users") is False:
        pod["hostUsers"] = False


def _check_restricted(template: Mapping[str, Any], role: Role) -> None:
    """Raises SubmissionRefused where mounts of the role need more than `restricted` allows."""
    forbidden = pod_security_violations(template).restricted
    if forbidden:
        raise SubmissionRefused(
            f"pod_security: 'restricted' forbids what role {role.name} mounts: {forbidden}; use pod_security=privileged"
        )


def pack_workspace(folder: str) -> bytes:
    """The regular files of a folder as a compressed archive, equal for equal files: without those that its
    `.torchxignore` names, .git, .venv and byte code. Raises SubmissionRefused for another path, and above 1 MB."""
    root = Path(folder).absolute()
    if not root.is_dir():
        raise SubmissionRefused(f"workspace: must be a folder; got {folder!r}")
    try:
        return pack_files(root, _workspace_files(root), ".torchxignore")
    except InvalidSpec as error:
        raise SubmissionRefused(str(error)) from error


def _workspace_files(root: Path) -> Iterator[Path]:
    for folder, _, files in walk_workspace(fsspec.filesystem("file"), str(root)):
        if _IGNORED_FOLDERS.isdisjoint(Path(folder).relative_to(root).parts):
            paths = (Path(folder) / file for file in files)
            yield from (path for path in paths if path.is_file() and not path.is_symlink())
