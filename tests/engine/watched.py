"""A cluster that watches every write and kills the engine between two, random workloads for it, and what goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from hypothesis import strategies as st
from tests.engine.worlds import flavor, job, nodes, queue

from muster import spec
from muster.cluster import CreatePod, DeletePod, Write
from muster.lifecycle import LIVE_PHASES, find, from_status, is_admitted
from muster.simulate import SimCluster, Work

GPU = "nvidia.com/gpu"


class Killed(Exception):
    """The engine's process is gone."""


class Watched(SimCluster):
    """Kills the engine after some writes, and looks at every pod that is made."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.writes_left: int | None = None
        self.edits: dict[int, tuple[str, dict[str, object]]] = {}
        self.written = 0
        self.created: list[CreatePod] = []

    def apply(self, writes: Sequence[Write]) -> None:
        for write in writes:
            if self.writes_left is not None:
                if self.writes_left == 0:
                    raise Killed
                self.writes_left -= 1
            edit = self.edits.pop(self.written, None)
            if edit is not None and self.has_job(edit[0]):
                self.edit(edit[0], **edit[1])  # a user was quicker: the next write of this job is refused
            self.written += 1
            self.apply_one(write)

    def apply_one(self, write: Write) -> None:
        if isinstance(write, CreatePod):
            self._check_create(write)
        if isinstance(write, DeletePod):
            self._check_delete(write)
        super().apply_one(write)
        self.check()

    def _check_create(self, write: CreatePod) -> None:
        status = self.job(write.job_uid).status
        assert is_admitted(status), "a pod before its admission is written"
        assert write.attempt == status.attempt
        places = {(part.role, node) for part in from_status(status.placement) for node, _ in part.nodes}
        assert (write.role, write.node) in places, "a pod outside of its placement"
        assert all(pod.attempt == write.attempt for pod in self.pods(write.job_uid)), "two attempts at once"
        known = [pod for pod in self.created if pod.name == write.name]
        assert all(pod == write for pod in known), "one name for two pods"
        if not any(pod.name == write.name for pod in self.pods(write.job_uid)):
            assert not known, "a pod runs twice"
            self.created.append(write)

    def _check_delete(self, write: DeletePod) -> None:
        pod = next((pod for pod in self.pods(write.job_uid) if pod.name == write.name), None)
        if pod is None:
            return
        if pod.deleting:
            return  # it was told to stop before; what made it stop may be over, but it goes all the same
        status = self.job(write.job_uid).status
        present = pod.attempt == status.attempt and is_admitted(status)
        evicted = find(status, "Evicted")
        assert not present or (evicted is not None and evicted.status == "True"), "a pod is stopped without a word"
        if evicted is not None and evicted.status == "True" and evicted.reason in ("Preempted", "Reclaimed"):
            beneficiary = status.eviction.beneficiary if status.eviction is not None else None
            if beneficiary is not None and present and self.has_job(beneficiary):
                other = self.job(beneficiary).status
                gone = {"Failed", "Suspended", "Succeeded"}
                assert other.hold is not None or other.phase in gone or self.job(beneficiary).spec.suspend

    def check(self) -> None:
        """No node holds more than it has."""
        used: dict[str, int] = {}
        for uid in self.uids():
            gpus = self.job(uid).spec.roles[0].template.spec.containers[0].resources.limits[GPU]
            for pod in self.pods(uid):
                if pod.phase in LIVE_PHASES:
                    used[pod.node] = used.get(pod.node, 0) + int(gpus)
        for name, amount in used.items():
            if name in self.nodes:
                assert amount <= self.nodes[name].allocatable.get(GPU), f"{name} is oversubscribed"


@st.composite
def workloads(draw: st.DrawFn) -> list[tuple[float, spec.TrainingJob, Work]]:
    """A handful of jobs that arrive within a minute: plain, elastic, of high priority, failing, borrowed."""
    arrivals = []
    for number in range(draw(st.integers(2, 6))):
        gpus = draw(st.sampled_from([1, 2, 4]))
        pods = draw(st.integers(1, 8 // gpus))
        wanted = job(
            f"j{number}",
            pods,
            gpus,
            least=draw(st.none() | st.integers(1, pods)),
            priority=draw(st.sampled_from([0, 0, 5])),
            queue=draw(st.sampled_from(["red", "blue"])),
            maxRuntimeSeconds=draw(st.none() | st.just(500)),
            failurePolicy={"maxRestarts": 2},
        )
        work = Work(
            runtime_s=draw(st.integers(1, 60)),
            start_delay_s=draw(st.sampled_from([0.0, 2.0])),
            stop_s=draw(st.sampled_from([0.0, 1.0, 40.0])),
            checkpoint_every_s=draw(st.none() | st.just(10.0)),
            exits=draw(st.sampled_from([(), (), (1,), (1, 1, 1)])),
            fails_after_s=draw(st.sampled_from([0.0, 5.0])),
        )
        arrivals.append((float(draw(st.integers(0, 60))), wanted, work))
    return arrivals


def submit(cluster: Watched, wanted: spec.TrainingJob, work: Work) -> None:
    cluster.submit(wanted, work)


def cluster_of(arrivals: list[tuple[float, spec.TrainingJob, Work]]) -> Watched:
    tree = [queue("all", 8), queue("red", 4, "all"), queue("blue", 4, "all")]
    cluster = Watched(nodes(2, gpus=4), [flavor()], tree)
    for at, wanted, work in arrivals:
        cluster.at(at, partial(submit, cluster, wanted, work))
    return cluster


Trouble = tuple[float, str, int]


def plan_trouble(cluster: Watched, troubles: list[Trouble]) -> None:
    """Pods vanish, and nodes stop answering or are deleted; nodes come back after a while."""

    def strike(kind: str, number: int) -> None:
        name = f"n{number % 2}"
        if kind == "pod":
            running = [pod for uid in cluster.uids() for pod in cluster.pods(uid) if pod.phase == "Running"]
            if running:
                pod = running[number % len(running)]
                cluster.lose_pod(pod.job_uid, pod.index)
        elif name in cluster.nodes and cluster.nodes[name].ready:
            view = cluster.nodes[name]
            cluster.lose_node(name, deleted=kind == "deleted node")
            cluster.at(cluster.now + (50 if number % 3 else 400), lambda: cluster.bring_back(view))

    for at, kind, number in troubles:
        cluster.at(at, partial(strike, kind, number))
