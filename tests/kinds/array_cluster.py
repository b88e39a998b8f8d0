"""A cluster in memory for arrays: statuses are written one by one, so that it can be killed between any two writes.

`python -m tests.kinds.array_cluster 10000 50` runs an array of 10,000 indices with 50 kills, and prints what it cost.
"""

from __future__ import annotations

import heapq
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.engine.objects import flavor, job, nodes, queue

from muster.api.spec import (
    ArraySpec,
    FailurePolicy,
    Flavor,
    Queue,
    TrainingJob,
    TrainingJobStatus,
    index_set,
)
from muster.cluster import CreatePod, DeletePod, NodeView, PodView, RemoveJob, Write, WriteStatus
from muster.engine import Engine, run_cycle
from muster.errors import Conflict
from muster.kinds.trainingjob.array_changes import with_array_status, with_index_statuses
from muster.kinds.trainingjob.array_workloads import ArrayView, array_view, workloads_of
from muster.kinds.trainingjob.arrays import split_index_key
from muster.workload.conditions import has_terminated, is_finished
from muster.workload.observed import ObservedState


class Killed(Exception):
    """The process that writes was killed."""


class ArrayCluster:
    """One array. `kill_after`: writes until it is killed. `starts`: pods that were created, by index; `succeeded`:
    indices of which a pod has exited with 0; `written`: bytes of all statuses that were written."""

    def __init__(
        self,
        job: TrainingJob,
        nodes: Sequence[NodeView],
        flavors: Sequence[Flavor],
        queues: Sequence[Queue],
        others: Sequence[TrainingJob] = (),
    ) -> None:
        self.job = job
        self._others = tuple(one for other in others for one in workloads_of(other))
        self.now = 0.0
        self.kill_after: int | None = None
        self.starts: dict[int, int] = {}
        self.succeeded: set[int] = set()
        self.fails: dict[int, int] = {}  # how often the pod of an index still fails
        self.written = self.status_writes = self.largest = 0
        self._random = random.Random(1)
        self._parts = tuple(nodes), tuple(flavors), tuple(queues)
        self._view: ArrayView | None = None
        self._pods: dict[str, tuple[PodView, ...]] = {}
        self._ends: list[tuple[float, str, str]] = []
        self._version = 0

    def observe(self) -> ObservedState:
        self._view = array_view(self.job, self._view)
        nodes, flavors, queues = self._parts
        return ObservedState(
            now=self.now,
            nodes=nodes,
            flavors=flavors,
            queues=queues,
            workloads=(*self._others, *self._view.workloads()),
            pods=dict(self._pods),
        )

    def apply(self, writes: Sequence[Write]) -> None:
        for write in writes:
            if self.kill_after is not None:
                self.kill_after -= 1
                if self.kill_after < 0:
                    self.kill_after = None
                    raise Killed
            self._apply_one(write)

    def restarted(self) -> None:
        """What the killed process knew is lost."""
        self._view = None

    def run_until(self, now: float) -> None:
        """Pods end until then."""
        while self._ends and self._ends[0][0] <= now:
            at, key, name = heapq.heappop(self._ends)
            self._end(key, name, at)
        self.now = now

    def next_end(self) -> float | None:
        return self._ends[0][0] if self._ends else None

    def edit(self, **fields: object) -> None:
        """Change fields of `spec.array`."""
        assert self.job.spec.array is not None
        array = self.job.spec.array.model_copy(update=fields)
        meta = self.job.metadata.model_copy(update={"generation": self.job.metadata.generation + 1})
        self.job = self.job.model_copy(
            update={"metadata": meta, "spec": self.job.spec.model_copy(update={"array": array})}
        )

    def _apply_one(self, write: Write) -> None:
        if isinstance(write, WriteStatus):
            self._write_status(write)
        elif isinstance(write, CreatePod):
            self._create(write)
        elif isinstance(write, DeletePod):
            left = tuple(one for one in self._pods.get(write.job_uid, ()) if one.name != write.name)
            self._set_pods(write.job_uid, left)
        else:
            assert not isinstance(write, RemoveJob)

    def _write_status(self, write: WriteStatus) -> None:
        _, index = split_index_key(write.job_uid)
        view = array_view(self.job, self._view)
        status = write.status
        assert isinstance(status, TrainingJobStatus)
        before = self.job
        if index is None:
            assert isinstance(write.old, TrainingJobStatus)
            self.job = with_array_status(self.job, write.old, status)
        else:
            known = view.indices.get(index)
            if known is None or known.metadata.resource_version != write.resource_version:
                raise Conflict(f"index {index} was changed")
            self.job = with_index_statuses(self.job, {index: status}, self.now)
            if has_terminated(status):
                self._set_pods(write.job_uid, ())
        if self.job is not before:
            self.status_writes += 1

    def size(self) -> int:
        """Bytes of the status."""
        return len(self.job.status.model_dump_json(by_alias=True, exclude_none=True))

    def _create(self, write: CreatePod) -> None:
        _, index = split_index_key(write.job_uid)
        assert index is not None
        there = self._pods.get(write.job_uid, ())
        if any(one.name == write.name for one in there):
            return
        assert not any(one.holds_capacity for one in there), f"index {index} runs twice at once"
        assert index not in self.succeeded, f"index {index} has succeeded and runs again"
        self.starts[index] = self.starts.get(index, 0) + 1
        view = PodView(write.name, write.job_uid, write.role, write.index, write.attempt, write.node, "Running", True)
        self._set_pods(write.job_uid, (*there, view))
        heapq.heappush(self._ends, (self.now + self._random.uniform(1.0, 20.0), write.job_uid, write.name))

    def _end(self, key: str, name: str, at: float) -> None:
        _, index = split_index_key(key)
        pods = self._pods.get(key, ())
        if index is None or all(one.name != name for one in pods):
            return
        failed = self.fails.get(index, 0) > 0
        if failed:
            self.fails[index] -= 1
        else:
            self.succeeded.add(index)
        ended = [
            replace(one, phase="Failed" if failed else "Succeeded", ready=False, exit_code=int(failed), finished_at=at)
            if one.name == name
            else one
            for one in pods
        ]
        self._set_pods(key, tuple(ended))

    def _set_pods(self, key: str, pods: tuple[PodView, ...]) -> None:
        if pods:
            self._pods[key] = pods
        else:
            self._pods.pop(key, None)


def array_job(indices: str = "0-9", **fields: Any) -> TrainingJob:
    """An array of one pod with one GPU for each index, without restarts."""
    one = job("sweep", pods=1, gpus=1)
    metadata = one.metadata.model_copy(update={"uid": "uid-sweep", "generation": 1, "creation_timestamp": 0.0})
    update = {"array": ArraySpec(indices=indices, **fields), "failure_policy": FailurePolicy(max_restarts=0)}
    return one.model_copy(update={"metadata": metadata, "spec": one.spec.model_copy(update=update)})


def array_cluster(one: TrainingJob, gpus: int = 16) -> ArrayCluster:
    """A cluster of nodes of 8 GPUs, all of which one queue has."""
    return ArrayCluster(one, nodes(gpus // 8), [flavor()], [queue("default", gpus)])


def run_to_end(cluster: ArrayCluster, kills: int = 0, seed: int = 1, every: int = 400) -> int:
    """Run engines on the cluster until the array has ended; a killed one is replaced. Returns how many were killed."""
    chance, killed, engine = random.Random(seed), 0, Engine()
    while not is_finished(cluster.job.status):
        if cluster.kill_after is None and killed < kills:
            cluster.kill_after = chance.randrange(1, every)
        try:
            result = run_cycle(cluster, engine)
        except Killed:
            killed, engine = killed + 1, Engine()
            cluster.restarted()
            continue
        cluster.largest = max(cluster.largest, cluster.size())
        times = [at for at in (cluster.next_end(), result.wake_at) if at is not None]
        assert times, "nothing would ever happen again"
        cluster.run_until(max(cluster.now, min(times)))
    return killed


def main(indices: int, kills: int, parallelism: int = 500) -> None:
    """Run the whole once. Raises AssertionError if an index was forgotten, ran twice at once, or again."""
    world = array_cluster(array_job(f"0-{indices - 1}", parallelism=parallelism), gpus=512)
    world.fails = dict.fromkeys(range(0, indices, 333), 1)
    began = time.process_time()
    killed = run_to_end(world, kills, every=max(2, 6 * indices // max(kills, 1)))
    ended = world.job.status.array
    assert ended is not None
    assert index_set(ended.succeeded) == world.succeeded
    assert index_set(ended.succeeded) | index_set(ended.failed) == set(range(indices))
    assert set(world.starts) == set(range(indices))
    print(
        f"{indices} indices, {killed} kills: {len(world.succeeded)} succeeded, {len(index_set(ended.failed))} failed;"
        f" largest status {world.largest / 1024:.0f} KiB; {time.process_time() - began:.0f} s of CPU time"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
