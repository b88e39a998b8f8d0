"""`torchx run -s muster_local`: the TorchX scheduler for the daemon on this host."""

from __future__ import annotations

import builtins
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torchx.specs import AppDef, AppDryRunInfo, CfgVal, runopts
from torchx.version import TORCHX_IMAGE

from muster.api.quantity import parse_quantity
from muster.api.spec import TrainingJob
from muster.errors import DaemonError, MusterError
from muster.local.client import LocalClient
from muster.local.environment import allow_oversubscription, annotate_submitter, pass_variables, submitter_environment
from muster.local.job_checks import check_local_support, check_processes
from muster.local.nodes import host_node, measure_capacity
from muster.torchx.appdef import (
    GPU,
    NodeCapacity,
    needs_node_capacity,
    resolve_auto_resources,
    to_training_job,
    torchrun_notices,
)
from muster.torchx.errors import SubmissionRefused, as_submission_refused, with_options
from muster.torchx.scheduler import MusterScheduler, to_yaml, unique_job_name
from muster.torchx.settings import resolve_settings, run_options

BACKEND = "muster_local"
logger = logging.getLogger(__name__)


class LocalScheduler(MusterScheduler):
    """Jobs of the daemon of one home (default $MUSTER_HOME, else ~/.muster)."""

    def __init__(self, session_name: str, home: str | None = None) -> None:
        super().__init__(BACKEND, session_name)
        self._home = home
        self._cached_client: LocalClient | None = None

    def _run_opts(self) -> runopts:
        return run_options(BACKEND)

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo:
        with as_submission_refused():
            nodes = self._node_capacities() if needs_node_capacity(app) else []
            settings = resolve_settings(cfg, app.metadata)
            oversubscribe = bool(settings.get(".oversubscribe"))
            passed = settings.get(".env", [])
            try:
                sized, notices = resolve_auto_resources(app, nodes, oversubscribe)
            except SubmissionRefused as refused:
                sized, _ = resolve_auto_resources(app, nodes, oversubscribe=True)
                try:  # report further errors together with this one
                    self._dry_run_submit(pass_variables(allow_oversubscription(_job_of(sized, cfg)), passed))
                except (MusterError, SubmissionRefused) as other:
                    raise SubmissionRefused(f"{refused}; also: {with_options(str(other))}") from other
                raise
            job = _job_of(sized, cfg)
            for notice in (*notices, *torchrun_notices(job)):
                logger.warning(notice)
            job = pass_variables(allow_oversubscription(job) if oversubscribe else job, passed)
            self._dry_run_submit(job)
            return AppDryRunInfo(job, to_yaml)

    def schedule(self, dryrun_info: AppDryRunInfo) -> str:
        with as_submission_refused():
            client, job = self._client(), dryrun_info.request
            submitted = self._record_submission(client.submit(job))
            if omitted := client.newly_omitted([job]):
                logger.info(omitted.message("-cfg env="))
            return submitted

    def _client(self, app_id: str | None = None) -> LocalClient:
        if self._cached_client is None:
            self._cached_client = LocalClient.connect(self._home)
        return self._cached_client

    def _list_jobs(self, cfg: object) -> builtins.list[TrainingJob]:
        return self._client().jobs()

    def _dry_run_submit(self, job: TrainingJob) -> None:
        """Validate as a submit does, without starting a daemon: if none runs, check the program, script and data on
        this host, but no queues."""
        try:
            LocalClient.connect(self._home, start=False).submit(job, dry_run=True)
        except DaemonError:
            check_local_support(annotate_submitter(job), submitter_environment(job))
            check_processes(job, [host_node(measure_capacity())])

    def _node_capacities(self) -> Sequence[NodeCapacity]:
        """The nodes of the daemon; if none runs, the capacity of this host."""
        try:
            nodes = LocalClient.connect(self._home, start=False).nodes()
        except DaemonError:
            host = measure_capacity()
            return [NodeCapacity(cpu_milli=host.cpu_milli, gpus=len(host.gpus))]
        amounts = [node["allocatable"] for node in nodes]
        return [
            NodeCapacity(parse_quantity(amount.get("cpu", "0"), "cpu"), parse_quantity(amount.get(GPU, "0"), GPU))
            for amount in amounts
        ]


def _job_of(app: AppDef, cfg: Mapping[str, CfgVal]) -> TrainingJob:
    return to_training_job(_without_default_image(app), unique_job_name(app), cfg, img_root=os.getcwd())


def _without_default_image(app: AppDef) -> AppDef:
    """Without TorchX's default image, whose notice "ignored on this host" would not help the user."""
    roles = [replace(role, image="") if role.image == TORCHX_IMAGE else role for role in app.roles]
    return replace(app, roles=roles)


__all__ = ["BACKEND", "LocalScheduler", "SubmissionRefused", "to_yaml"]
