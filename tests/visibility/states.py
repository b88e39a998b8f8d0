"""Read states of small clusters."""

from __future__ import annotations

from typing import Any

from tests.engine.objects import queue
from tests.state.observed_states import NOW, admitted, observed_state

from muster.api import spec
from muster.kinds.suspended.read import read_object
from muster.kinds.suspended.table import BATCH_JOB
from muster.kinds.suspended.workload import SuspendedWorkload
from muster.model import Wait
from muster.state import snapshot_of
from muster.visibility.items import MayRead
from muster.visibility.lists import answer
from muster.visibility.requests import parse_request
from muster.visibility.state import CycleView, ReadState
from muster.visibility.types import BASE_PATH
from muster.workload import transitions
from muster.workload.observed import ObservedState


def in_state(job: spec.TrainingJob, **fields: Any) -> spec.TrainingJob:
    """The job with these fields of its status."""
    return job.model_copy(update={"status": job.status.model_copy(update=fields)})


def in_namespace(job: spec.TrainingJob, namespace: str) -> spec.TrainingJob:
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"namespace": namespace})})


def failed(name: str, log_tail: str) -> spec.TrainingJob:
    """A job that has failed, with this end of its log."""
    job = admitted(name)
    status = transitions.finish(job.status, "Failed", "Error", "exited with code 1", NOW)
    failure = spec.LastFailure(pod=f"{name}-trainer-0", exit_code=1, log_tail=log_tail)
    return job.model_copy(update={"status": status.model_copy(update={"last_failure": failure, "phase": "Failed"})})


def two_queues(*jobs: spec.TrainingJob) -> ObservedState:
    """A root with 16 GPUs and its leaf `default`, which has all jobs."""
    return observed_state(*jobs, queues=(queue("root"), queue(gpus=None, parent="root")))


def leader(observed: ObservedState, waits: dict[str, Wait] | None = None, **fields: Any) -> ReadState:
    """The state of a process that has decided on `observed`."""
    cycle = CycleView("t-7", waits or {}, snapshot_of(observed).snapshot)
    return ReadState(observed, cycle, "leader", leading=True, **fields)


def read(state: ReadState, route: str, may_read: MayRead = lambda namespace: True) -> dict[str, Any]:
    """The JSON of the answer to a route below the base path."""
    return answer(state, parse_request(f"{BASE_PATH}/{route}"), may_read).model_dump(
        mode="json", by_alias=True, exclude_none=True
    )


def names(found: dict[str, Any]) -> list[str]:
    return [item["metadata"]["name"] for item in found["items"]]


def batch_job(name: str, priority: int = 0) -> SuspendedWorkload:
    """A Job of two pods that waits in queue `default`."""
    pod = {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}
    meta = {"labels": {"muster.dev/queue": "default"}, "annotations": {"muster.dev/priority": str(priority)}}
    document = {"metadata": meta, "spec": {"suspend": True, "parallelism": 2, "template": {"spec": pod}}}
    metadata = spec.ObjectMeta(name=name, namespace="default", uid=f"job-{name}", resource_version="7/8")
    return SuspendedWorkload(BATCH_JOB, metadata, "7", read_object(BATCH_JOB, document), spec.QueueingStatus())
