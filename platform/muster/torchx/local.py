"""`torchx run -s muster_local`: the embedded engine of this host as a TorchX scheduler.

One class for TorchX 0.7.0 and the nightlies, whose interfaces differ in few places: `list` and `_validate` may or may
not be given the options, and a submission may be deleted.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import yaml
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream, filter_regex
from torchx.specs import AppDef, AppDryRunInfo, CfgVal, runopts
from torchx.version import TORCHX_IMAGE

from muster.errors import DaemonError, NotFound
from muster.local.capacity import measure
from muster.local.client import LocalClient
from muster.quantity import parse_quantity
from muster.spec import TrainingJob, longest_job_name
from muster.torchx.accelerator import GPU, NodeSize, asks_for_nodes, with_accelerators
from muster.torchx.appdef import app_id, split_app_id, training_job
from muster.torchx.follow import Pod, Told, follow
from muster.torchx.forms import kubernetes_name, unique_name
from muster.torchx.readback import app_state, description
from muster.torchx.refusal import SubmissionRefused, refusing
from muster.torchx.run_options import run_options

BACKEND = "muster_local"
logger = logging.getLogger(__name__)


class LocalScheduler(Scheduler):  # type: ignore[misc]  # TorchX is not typed
    """Jobs of the daemon of one home (default $MUSTER_HOME, else ~/.muster)."""

    def __init__(self, session_name: str, home: str | None = None) -> None:
        super().__init__(BACKEND, session_name)
        self._home = home
        self._connected: LocalClient | None = None
        self._submitted: set[str] = set()
        self._told = Told()

    # ---- submitting

    def _run_opts(self) -> runopts:
        return run_options()

    def _validate(self, app: AppDef, scheduler: str, cfg: object = None) -> None:
        """Roles need no resources here: what is not asked for is not limited."""

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo:
        with refusing():
            nodes = self._node_sizes() if asks_for_nodes(app) else []
            sized, notices = with_accelerators(app, nodes)
            for notice in notices:
                logger.warning(notice)
            longest = longest_job_name((kubernetes_name(role.name), role.num_replicas) for role in sized.roles)
            name = unique_name(app.name, secrets.token_hex(3), longest)
            return AppDryRunInfo(training_job(_without_default_image(sized), name, cfg, img_root=os.getcwd()), to_yaml)

    def schedule(self, dryrun_info: AppDryRunInfo) -> str:
        with refusing():
            job = self._client().submit(dryrun_info.request)
        submitted = app_id(job.metadata.name, job.metadata.namespace or "default")
        self._submitted.add(submitted)
        return submitted

    # ---- looking

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        client = self._client()
        try:
            job = client.job(*split_app_id(app_id))
            run_dir = client.run_dir(*split_app_id(app_id))
        except NotFound:
            return None
        if app_id in self._submitted and (sentence := self._told.tell(app_id, job)):
            # `torchx run --wait` asks every second and shows nothing of it while the job waits
            logger.info(sentence)
        return description(job, str(run_dir))

    def describe_native(self, app_id: str) -> AppDryRunInfo | None:
        try:
            return AppDryRunInfo(self._client().job(*split_app_id(app_id)), to_yaml)
        except NotFound:
            return None

    def list(self, cfg: object = None) -> list[ListAppResponse]:
        return [
            ListAppResponse(app_id=app_id(job.metadata.name, job.metadata.namespace or "default"), state=app_state(job))
            for job in self._client().jobs()
        ]

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        if streams not in (None, Stream.COMBINED):
            raise ValueError(f"streams {streams.value}: stdout and stderr are one log here; leave it out, or combined")
        client = self._client()
        name, namespace = split_app_id(app_id)
        job = client.job(name, namespace)
        role = kubernetes_name(role_name)
        if should_tail and since is None and until is None:
            pod = Pod(name, namespace, role, k, speaks=k == 0 and role == job.spec.roles[0].name)
            first_attempt = 0 if app_id in self._submitted else None
            lines = follow(client, pod, first_attempt, app_id, self._told)
        else:
            lines = client.log_lines(
                name, namespace, role, k, since=_seconds(since), until=_seconds(until), follow=should_tail
            )
        ended = (line + "\n" for line in lines)
        return filter_regex(regex, ended) if regex else ended

    # ---- ending

    def _cancel_existing(self, app_id: str) -> None:
        self._client().cancel(*split_app_id(app_id))

    def _delete_existing(self, app_id: str) -> None:
        self._client().delete("TrainingJob", *split_app_id(app_id))

    # ---- small things

    def _client(self) -> LocalClient:
        if self._connected is None:
            self._connected = LocalClient.connect(self._home)
        return self._connected

    def _node_sizes(self) -> Sequence[NodeSize]:
        """The nodes of the daemon; a dry run does not start one, but looks at this host."""
        try:
            nodes = LocalClient.connect(self._home, start=False).nodes()
        except DaemonError:
            host = measure()
            return [NodeSize(cpu_milli=host.cpu_milli, gpus=len(host.gpus))]
        amounts = [node["allocatable"] for node in nodes]
        return [
            NodeSize(parse_quantity(amount.get("cpu", "0"), "cpu"), parse_quantity(amount.get(GPU, "0"), GPU))
            for amount in amounts
        ]


def _without_default_image(app: AppDef) -> AppDef:
    """Components name TorchX's own image where their user names none; to tell that it is ignored would be noise."""
    roles = [replace(role, image="") if role.image == TORCHX_IMAGE else role for role in app.roles]
    return replace(app, roles=roles)


def to_yaml(job: TrainingJob) -> str:
    """What `muster submit` would take for the same job."""
    document = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return str(yaml.safe_dump(document, sort_keys=False, width=120))


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


__all__ = ["BACKEND", "LocalScheduler", "SubmissionRefused", "to_yaml"]
