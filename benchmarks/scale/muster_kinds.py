"""Muster as the cases see it with objects of other kinds: the same suspended Jobs and JobSets that Kueue gets.

Pods are created by the controllers of these kinds. As with the other schedulers a first pod shows that all works; its
template is known from then on. Neither Muster's admission policies nor Kueue's webhooks are part of the control plane.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path

from benchmarks.scale.client import Request
from benchmarks.scale.contender import Contender, Site
from benchmarks.scale.muster import Muster, running
from benchmarks.scale.peers import job_objects
from benchmarks.scale.peers.peer import CANARY, SETTLES_S, pod_makers
from benchmarks.scale.work import NAMESPACE, Jobs
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.controlplane.supervised import Supervised
from tests.cluster.kinds import controllers

_FLAGS = ("--queued-kinds", '["Job", "JobSet"]', "--trust-pods")
_NEEDS = Callable[[ControlPlane, Path], AbstractContextManager[Supervised | None]]


@dataclass(frozen=True, slots=True)
class MusterOfKind(Muster):
    """It with objects of another kind. `beside`: the controller of that kind, if it is none of Kubernetes."""

    form: job_objects.Form = job_objects.muster
    beside: Supervised | None = None

    @property
    def others(self) -> dict[str, int]:
        return {} if self.beside is None else {self.beside.name: self.beside.pid}

    def requests(self, jobs: Jobs) -> Iterator[Request]:
        return job_objects.requests(self.form, jobs)

    def agrees(self, own: Mapping[str, float], served: Mapping[str, float]) -> bool:
        """Whether the API server served as many writes of Workloads as the operator sent."""
        return all(own.get(key, 0.0) == served.get(key, 0.0) for key in ("POST workloads", "PATCH workloads"))

    def show_up(self) -> None:
        """Let one pod start, and remove it again."""
        ((path, body),) = self.form(CANARY, next(CANARY.names()))
        self.one_queue()
        self.plane.api.create(path, body)
        self.plane.wait_for("it has started a pod", self._is_ready)
        self.plane.api.delete(f"{path}/{body['metadata']['name']}", propagationPolicy="Background")
        self.plane.wait_for("that pod is deleted", lambda: not self.plane.api.items(job_objects.PODS))
        self.plane.api.delete("/apis/muster.dev/v1alpha1/queues/all")
        self.plane.wait_for("its queue too", lambda: self.plane.api.gone("/apis/muster.dev/v1alpha1/queues/all"))
        time.sleep(SETTLES_S)

    def _is_ready(self) -> bool:
        pods = self.plane.api.items(job_objects.PODS)
        conditions = [one for pod in pods for one in pod.get("status", {}).get("conditions") or ()]
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _contender(name: str, form: job_objects.Form, needs: _NEEDS) -> Contender:
    @contextmanager
    def begin(site: Site) -> Iterator[MusterOfKind]:
        labels = {"metadata": {"labels": {"muster.dev/queueing": "enabled"}}}
        site.plane.api.patch(f"/api/v1/namespaces/{NAMESPACE}", labels)
        with needs(site.plane, site.plane.folder / "controller") as beside, running(site, *_FLAGS) as one:
            given = {part.name: getattr(one, part.name) for part in fields(Muster)}
            found = MusterOfKind(**{**given, "name": name}, form=form, beside=beside)
            found.show_up()
            yield found

    return Contender(name, begin, controllers=pod_makers)


JOBS = _contender("muster-jobs", job_objects.muster, lambda plane, folder: nullcontext())
JOB_SETS = _contender("muster-job-sets", job_objects.muster_job_set, controllers.job_sets)
