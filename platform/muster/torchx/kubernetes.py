"""`torchx run -s muster`: a cluster of Kubernetes with Muster's operator as a TorchX scheduler."""

from __future__ import annotations

import builtins
import logging
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchx.specs import AppDef, AppDryRunInfo, CfgVal, runopts
from torchx.version import TORCHX_IMAGE

from muster.errors import ClusterError, NotFound, Refused
from muster.kubernetes.access import DEFAULT_NAMESPACE, Target, find_access
from muster.kubernetes.client import KubernetesClient
from muster.spec import TrainingJob
from muster.torchx.accelerator import GPU, NodeSize, asks_for_nodes, with_accelerators
from muster.torchx.appdef import training_job
from muster.torchx.in_cluster import for_cluster
from muster.torchx.refusal import refusing
from muster.torchx.run_options import run_options
from muster.torchx.scheduler import MusterScheduler, cfg_of, name_of, to_yaml
from muster.torchx.settings import settings_of

BACKEND = "muster"
CONTEXT = "MUSTER_CONTEXT"
logger = logging.getLogger(__name__)
_LARGE_ENOUGH = (NodeSize(cpu_milli=1_000_000, gpus=1000),)


@dataclass(frozen=True, slots=True)
class Submission:
    """A job, and the cluster that is to have it."""

    job: TrainingJob
    target: Target


class KubernetesScheduler(MusterScheduler):
    """Jobs of the cluster of a context: of the options where one submits, else of $MUSTER_CONTEXT or the current one
    in $KUBECONFIG."""

    def __init__(self, session_name: str, target: Target | None = None) -> None:
        super().__init__(BACKEND, session_name)
        self._usual = target or Target(context=os.environ.get(CONTEXT) or None)
        self._clients: dict[Target, KubernetesClient] = {}
        self._homes: dict[str, Target] = {}  # where this session has submitted what, by app id

    # ---- submitting

    def _run_opts(self) -> runopts:
        return run_options(BACKEND)

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo:
        with refusing():
            settings = settings_of(cfg, app.metadata)
            target = self._target({name: settings.get(f".{name}") for name in ("kubeconfig", "context")})
            sizes = self._node_sizes(target) if asks_for_nodes(app) else []
            sized, notices = with_accelerators(app, sizes, bool(settings.get(".oversubscribe")))
            for notice in (*notices, *_about_images(app)):
                logger.warning(notice)
            job = training_job(sized, name_of(sized), cfg, namespace=_namespace(target))
            return AppDryRunInfo(Submission(for_cluster(job, sized, settings), target), _yaml_of)

    def schedule(self, dryrun_info: AppDryRunInfo) -> str:
        submission: Submission = dryrun_info.request
        with refusing():
            submitted = self._was_submitted(self._client_of(submission.target).submit(submission.job))
        self._homes[submitted] = submission.target
        if submission.target != self._usual:
            logger.info(
                "%s is in context %s; elsewhere: %s", submitted, self._context(submitted), _said(submission.target)
            )
        return submitted

    # ---- which cluster

    def _client(self, app_id: str | None = None) -> KubernetesClient:
        return self._client_of(self._homes.get(app_id or "", self._usual))

    def _context(self, app_id: str) -> str:
        return self._client(app_id).context

    def _client_of(self, target: Target) -> KubernetesClient:
        if target not in self._clients:
            self._clients[target] = KubernetesClient.connect(target)
        return self._clients[target]

    def _target(self, cfg: Mapping[str, object]) -> Target:
        kubeconfig, context = cfg.get("kubeconfig"), cfg.get("context")
        if kubeconfig is None and context is None:
            return self._usual
        return Target(
            self._usual.kubeconfig if kubeconfig is None else str(kubeconfig),
            self._usual.context if context is None else str(context),
        )

    def _listed(self, cfg: object) -> builtins.list[TrainingJob]:
        options = cfg_of(cfg)
        client = self._client_of(self._target(options))
        listing = client.listing(str(options.get("namespace") or client.namespace))
        for one in listing.unreadable:
            logger.warning("job %s is left out, since it cannot be read: %s", one.name, one.complaint)
        return listing.jobs

    def _node_sizes(self, target: Target) -> Sequence[NodeSize]:
        """The nodes, if they may be read; else what a component asks for is taken to be there."""
        try:
            views = self._client_of(target).node_views()
        except (ClusterError, Refused) as error:
            logger.warning("the cluster's nodes cannot be read: a GPU for each process is asked for (%s)", error)
            return _LARGE_ENOUGH
        return [NodeSize(view.allocatable.get("cpu"), view.allocatable.get(GPU)) for view in views]


def _namespace(target: Target) -> str:
    """That of the context; a dry run needs no kubeconfig."""
    try:
        return find_access(target).namespace
    except (ClusterError, NotFound) as error:
        if target != Target():
            raise
        logger.debug("%s", error)
        return DEFAULT_NAMESPACE


def _said(target: Target) -> str:
    """How another shell finds the same cluster."""
    named = {"KUBECONFIG": target.kubeconfig, CONTEXT: target.context}
    return "export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in named.items() if value)


def _about_images(app: AppDef) -> list[str]:
    roles = [role.name for role in app.roles if role.image == TORCHX_IMAGE]
    told = f"role {', '.join(roles)}: no image was named, so TorchX's own is used: {TORCHX_IMAGE}; see --image"
    return [told] if roles else []


def _yaml_of(submission: Submission) -> str:
    return to_yaml(submission.job)
