"""One step of a pipeline: submits a TrainingJob, or adopts the one of an earlier try, and follows it to its end.

Both forms of the component call `run_step`. The cluster is the one that the environment names, else that of the step's
pod, or this host. SIGTERM and SIGINT cancel the job, or leave it running (`on_terminate`).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from muster.api.spec import TrainingJob
from muster.client import ClusterClient
from muster.errors import Conflict, InvalidSpec, MusterError, NotFound, Refused
from muster.follow import FollowedPod, StatusReporter, follow, status_message
from muster.kfp.job import SPEC_HASH, Resources, Target, build_job, parse_parameters, without_changeable_fields
from muster.kfp.parameters import TrainParameters
from muster.kfp.results import collect_metrics, run_location, write_report
from muster.workload.conditions import has_terminated, is_finished

EXIT_TERMINATED = 143
"""128 + SIGTERM."""
_POD_NAME = "KFP_POD_NAME"
"""Variable that Kubeflow Pipelines sets in the pod of a step."""
_STEP_CONTAINER = "main"


@dataclass(frozen=True, slots=True)
class StepCluster:
    """`namespace` is that of jobs without one. `step_resources` reads the resources set on the step."""

    client: ClusterClient
    namespace: str
    in_cluster: bool
    step_resources: Callable[[], Resources]


def connect(environ: Mapping[str, str] = os.environ) -> StepCluster:
    """The cluster of MUSTER_CONTEXT or MUSTER_CLUSTER; without them, that of the pod, or this host, whose daemon starts
    on demand. Raises `InvalidSpec` for another MUSTER_CLUSTER, and the errors of the clients."""
    kind, context = environ.get("MUSTER_CLUSTER") or None, environ.get("MUSTER_CONTEXT") or None
    if kind not in (None, "local", "kubernetes"):
        raise InvalidSpec(f"MUSTER_CLUSTER: must be local or kubernetes; got {kind!r}", field="MUSTER_CLUSTER")
    if kind == "local" or (kind is None and context is None and "KUBERNETES_SERVICE_HOST" not in environ):
        from muster.local.client import LocalClient

        return StepCluster(LocalClient.connect(), "default", in_cluster=False, step_resources=dict)
    from muster.cluster_client.client import KubernetesClusterClient
    from muster.kube.config import KubeContext, load_config
    from muster.kube.sync_client import KubeClient

    kube_client = KubeClient(load_config(KubeContext(context=context)))
    return StepCluster(
        KubernetesClusterClient(kube_client),
        kube_client.config.namespace,
        in_cluster=True,
        step_resources=lambda: _resources_of_pod(kube_client, environ.get(_POD_NAME, "")),
    )


def _resources_of_pod(kube_client: Any, pod_name: str) -> Resources:
    """Requests and limits of the step's container; none if the pod may not be read, which is printed."""
    if not pod_name:
        return {}
    try:
        pod = kube_client.get(f"/api/v1/namespaces/{kube_client.config.namespace}/pods/{pod_name}")
    except MusterError as error:
        print(f"muster: the resources set on the step cannot be read, and are not passed on: {error}", flush=True)
        return {}
    containers = {container["name"]: container for container in pod["spec"]["containers"]}
    resources = containers.get(_STEP_CONTAINER, {}).get("resources", {})
    return {kind: resources.get(kind, {}) for kind in ("requests", "limits")}


class JobNotSucceeded(MusterError):
    """The job failed or was cancelled."""

    reason = "JobNotSucceeded"


class StepTerminated(BaseException):
    """Raised by the signal handler; not an Exception, so that nothing on the way handles it."""


@dataclass(frozen=True, slots=True)
class PipelineStepResult:
    """`job_name` is NAMESPACE/NAME; `run_folder` a path or URL, empty if the run was deleted with the pods."""

    job_name: str
    run_folder: str
    metrics: Mapping[str, float]


def run_step(values: Mapping[str, Any], *, task: str, report_path: str) -> PipelineStepResult:
    """Run one step with these parameters; writes the report as an HTML page.

    `task` is the URI of one of the task's outputs, which is the same in every retry. Raises `InvalidSpec`, `Refused` if
    the job could never start or its name belongs to another job, `ClusterError`, and `JobNotSucceeded`. A signal ends
    the process with 143.
    """
    parameters = parse_parameters(values)
    step: _Step | None = None
    _raise_on_signals()
    try:
        cluster = connect()
        target = Target(task, parameters.namespace or cluster.namespace, cluster.in_cluster, cluster.step_resources())
        step = _Step(parameters, target, cluster)
        job = step.follow(step.submit_or_adopt())
        step.job = None  # it has ended
        metrics = collect_metrics(cluster.client, job)
        write_report(cluster.client, job, Path(report_path))
    except StepTerminated:
        ignore_signals()
        if step is not None:
            step.terminate()
        sys.exit(EXIT_TERMINATED)
    if job.status.phase != "Succeeded":
        raise JobNotSucceeded(f"job {_label(job)} {job.status.phase.lower()}: {status_message(job)}")
    return PipelineStepResult(_label(job), run_location(cluster.client, job), metrics)


@dataclass(slots=True)
class _Step:
    parameters: TrainParameters
    target: Target
    cluster: StepCluster
    job: TrainingJob | None = None
    """What a signal cancels: set before it is looked for and submitted, since an earlier try's may run, and an answer
    can be lost."""

    def submit_or_adopt(self) -> TrainingJob:
        """The job of an earlier try that runs or has succeeded, else a new one: a failed or cancelled job stays, and
        the next gets a number."""
        number = 1
        while True:
            wanted = build_job(self.parameters, self.target, number)
            self.job = wanted
            found = self._find(wanted)
            if found is None:
                try:
                    submitted = self.cluster.client.submit_all([wanted])[0]
                    _print(f"submitted {_label(submitted)} to queue {submitted.spec.queue}")
                    return submitted
                except Conflict as error:
                    if error.reason != "AlreadyExists":
                        raise
                    continue
            _check_same_spec(found, wanted)
            if not _is_lost(found):
                self.job = found
                _print(f"adopted {_label(found)}, which an earlier try of this step submitted")
                return found
            _print(f"{_label(found)} {found.status.phase.lower()}; submitting it again")
            number += 1

    def _find(self, wanted: TrainingJob) -> TrainingJob | None:
        try:
            return self.cluster.client.job(wanted.metadata.name, wanted.metadata.namespace or "default")
        except NotFound:
            return None

    def follow(self, job: TrainingJob) -> TrainingJob:
        """Print the log of the first pod and the job's states; the job after its end."""
        name, namespace, client = job.metadata.name, job.metadata.namespace or "default", self.cluster.client
        pod = FollowedPod(name, namespace, job.spec.roles[0].name, 0, is_primary=True)
        for line in follow(client, pod, None, _label(job), StatusReporter()):
            print(line, flush=True)
        for job in client.watch(name, namespace):
            if has_terminated(job.status):
                break
        return client.job(name, namespace)

    def terminate(self) -> None:
        """Cancel the job or leave it, by a connection of its own: the signal may have interrupted an answer."""
        if self.job is None:
            return
        if self.parameters.on_terminate == "leave":
            _print(f"terminated; {_label(self.job)} continues (on_terminate=leave)")
            return
        name, namespace = self.job.metadata.name, self.job.metadata.namespace or "default"
        try:
            client = connect().client
            _check_same_spec(client.job(name, namespace), self.job)
            client.cancel(name, namespace)
            _print(f"terminated; {_label(self.job)} is being cancelled")
        except MusterError as error:
            _print(f"terminated; {_label(self.job)} was not cancelled: {error}")


def _check_same_spec(found: TrainingJob, wanted: TrainingJob) -> None:
    """Raises `Refused` if another step or a user has submitted a job of this name. The annotation is not enough: anyone
    who may create jobs in the namespace can write it, and compute the name."""
    submitted, found_hash = (job.metadata.annotations.get(SPEC_HASH) for job in (wanted, found))
    if submitted != found_hash or without_changeable_fields(found) != without_changeable_fields(wanted):
        raise Refused(
            f"job {_label(found)} exists with another spec, so this step does not adopt it; set `name` to another one"
            + (f", or delete it: muster delete job {_label(found)}" if is_finished(found.status) else ""),
            field="name",
            reason="AlreadyExists",
        )


def _is_lost(job: TrainingJob) -> bool:
    """Whether the job ends or has ended without success."""
    return job.spec.cancel or (is_finished(job.status) and job.status.phase != "Succeeded")


def _raise_on_signals() -> None:
    def handle(number: int, frame: FrameType | None) -> None:
        raise StepTerminated(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


def ignore_signals() -> None:
    """SIGTERM and SIGINT have no effect from now on."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def _label(job: TrainingJob) -> str:
    return f"{job.metadata.namespace or 'default'}/{job.metadata.name}"


def _print(message: str) -> None:
    print(f"muster: {message}", flush=True)
