"""The jobs of the cases, for every scheduler: pods request one CPU and 1 GiB for every GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.controlplane.nodes import GPU

Json = dict[str, Any]

NAMESPACE = "bench"
JOB = "muster.dev/job"  # the label by which the watch knows a pod's job, with other schedulers too


@dataclass(frozen=True, slots=True)
class Jobs:
    """`count` jobs that are alike, named PREFIX-0 and so on; `gpus` 0: pods of some CPUs and nothing else.

    `queue`, `more` and `does` are Muster's.
    """

    prefix: str
    count: int
    pods: int
    gpus: int
    queue: str = "all"
    more: Mapping[str, Any] = field(default_factory=dict)  # fields of the job's spec
    does: Mapping[str, str] = field(default_factory=dict)  # annotations of its pods
    cpus: int = 1  # of a pod without GPUs

    def names(self) -> Iterator[str]:
        """In the order in which they are created."""
        return (f"{self.prefix}-{index}" for index in range(self.count))

    def resources(self, pods: int = 1) -> dict[str, str]:
        """What so many of a job's pods request."""
        wanted = {"cpu": str((self.gpus or self.cpus) * pods)}
        if self.gpus:
            wanted |= {"memory": f"{self.gpus * pods}Gi", GPU: str(self.gpus * pods)}
        return wanted

    def pod_spec(self) -> Json:
        """The spec of each pod."""
        limits = {GPU: str(self.gpus)} if self.gpus else {}
        container = {"name": "main", "image": "none", "resources": {"requests": self.resources(), "limits": limits}}
        return {"containers": [container], "terminationGracePeriodSeconds": 1}
