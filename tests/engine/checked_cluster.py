"""A cluster that watches every write and kills the engine between two, and random workloads for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from hypothesis import strategies as st
from tests.engine.objects import flavor, job, nodes, queue
from tests.simulate.scenario_cluster import ScenarioCluster

from muster.api import spec
from muster.cluster import CreatePod, DeletePod, Write, WriteStatus
from muster.kinds.trainingjob.pods import matches_spec
from muster.simulate import JobBehavior
from muster.usage.time_spent import time_spent
from muster.workload.conditions import is_admitted, is_evicting
from muster.workload.observation import ACTIVE_POD_PHASES
from muster.workload.observed import ObservedState
from muster.workload.placement import from_status, held_placement
from muster.workload.transitions import retained_placement

GPU = "nvidia.com/gpu"
MANY = 10**9


class Killed(Exception):
    """The engine's process is gone."""


class Watched(ScenarioCluster):
    """Kills the engine after some writes, and looks at every pod that is made."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.writes_left: int | None = None
        self.edits: dict[int, tuple[str, dict[str, object]]] = {}
        self.written = 0
        self.created: list[CreatePod] = []
        self.held: dict[str, int] = {}  # GPUs of pods as they were made, by name
        self.deleted: set[str] = set()  # uids of jobs that a user deleted
        self.limits: dict[str, int] = {}  # of queues, as the engine saw them last

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
        if isinstance(write, WriteStatus) and self._is_current(write):
            self._check_status(write)
        super().apply_one(write)
        self.check()

    def delete(self, uid: str) -> None:
        super().delete(uid)
        self.deleted.add(uid)

    def observe(self) -> ObservedState:
        observed = super().observe()
        self.limits = {
            queue.metadata.name: int(entry.limit[GPU])
            for queue in observed.queues
            for entry in queue.spec.resources
            if GPU in entry.limit
        }
        return observed

    def _is_current(self, write: WriteStatus) -> bool:
        """Whether the write will not be refused."""
        uid = write.job_uid
        return self.has_job(uid) and self.job(uid).metadata.resource_version == write.resource_version

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
            self.held[write.name] = _gpus(self.job(write.job_uid))

    def _check_delete(self, write: DeletePod) -> None:
        pod = next((pod for pod in self.pods(write.job_uid) if pod.name == write.name), None)
        if pod is None:
            return
        if pod.deleting:
            return  # it was deleted before; the cause may be over, but a deletion is final
        status = self.job(write.job_uid).status
        present = pod.attempt == status.attempt and is_admitted(status)
        deleted = self.job(write.job_uid).metadata.deletion_timestamp is not None
        assert deleted or not present or is_evicting(status), "a pod is stopped without a word"

    def _check_status(self, write: WriteStatus) -> None:
        before, after = self.job(write.job_uid).status, write.status
        if after.eviction is not None and before.eviction != after.eviction:
            hold = self.job(after.eviction.beneficiary).status.nomination
            assert hold is not None, "a gang is evicted before capacity is nominated"
            assert write.job_uid in hold.victims, "a gang is evicted that the nomination does not name"
        if is_admitted(after) and not is_admitted(before):
            self._check_admission(write)
        self._check_time(write)

    def _check_time(self, write: WriteStatus) -> None:
        """Each second since the submission has one cause."""
        job = self.job(write.job_uid)
        written = job.model_copy(update={"status": write.status})
        submitted, ended = job.metadata.creation_timestamp, write.status.finished_at
        if submitted is not None and sum(time_spent(written, self.now).values()) != round(
            ((self.now if ended is None else ended) - submitted) * 1000
        ):
            raise AssertionError(f"{write.status.time_spent} at {self.now} is not the time since {submitted}")

    def _check_admission(self, write: WriteStatus) -> None:
        """On paper, too, nothing is promised twice, and no queue gets more than the limit that the engine saw."""
        nodes: dict[str, int] = {}
        queues: dict[str, int] = {}
        for uid in self.job_uids():
            one = self.job(uid)
            status = write.status if uid == write.job_uid else one.status
            gpus = _gpus(one)
            claims = is_admitted(status) and one.metadata.deletion_timestamp is None  # then only its pods count
            for pod in () if claims else self.pods(uid):
                if pod.phase in ACTIVE_POD_PHASES and pod.node in self.nodes:
                    nodes[pod.node] = nodes.get(pod.node, 0) + self.held[pod.name]
                    queues[one.spec.queue] = queues.get(one.spec.queue, 0) + self.held[pod.name]
            retained = retained_placement(status, self.now)
            retained = retained if matches_spec(retained, one.spec) else []
            for part in held_placement(status, self.pods(uid), retained) if claims else ():  # without pods that ended
                for node, pods in part.nodes:
                    nodes[node] = nodes.get(node, 0) + pods * gpus
                    queues[one.spec.queue] = queues.get(one.spec.queue, 0) + pods * gpus
        for share in (share for part in write.status.placement for share in part.nodes):
            if share.node in self.nodes:
                assert nodes[share.node] <= self.nodes[share.node].allocatable.get(GPU), "capacity is assigned twice"
        queue = self.job(write.job_uid).spec.queue
        assert queues[queue] <= self.limits.get(queue, MANY), f"{queue} is above its limit"

    def check(self) -> None:
        """No node holds more than it has."""
        used: dict[str, int] = {}
        for uid in self.job_uids():
            for pod in self.pods(uid):
                if pod.phase in ACTIVE_POD_PHASES:
                    used[pod.node] = used.get(pod.node, 0) + self.held[pod.name]
        for name, amount in used.items():
            if name in self.nodes:
                assert amount <= self.nodes[name].allocatable.get(GPU), f"{name} is oversubscribed"


def _gpus(one: spec.TrainingJob) -> int:
    return int(one.spec.roles[0].template.spec.containers[0].resources.limits[GPU])


@st.composite
def workloads(draw: st.DrawFn) -> list[tuple[float, spec.TrainingJob, JobBehavior]]:
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
        work = JobBehavior(
            runtime_s=draw(st.integers(1, 60)),
            start_delay_s=draw(st.sampled_from([0.0, 2.0])),
            stop_s=draw(st.sampled_from([0.0, 1.0, 40.0])),
            checkpoint_every_s=draw(st.none() | st.just(10.0)),
            exit_codes=draw(st.sampled_from([(), (), (1,), (1, 1, 1)])),
            fails_after_s=draw(st.sampled_from([0.0, 5.0])),
        )
        arrivals.append((float(draw(st.integers(0, 60))), wanted, work))
    return arrivals


def submit(cluster: Watched, wanted: spec.TrainingJob, work: JobBehavior) -> None:
    cluster.submit(wanted, work)


def cluster_of(arrivals: list[tuple[float, spec.TrainingJob, JobBehavior]]) -> Watched:
    tree = [queue("all", 8), queue("red", 4, "all"), queue("blue", 4, "all")]
    cluster = Watched(nodes(2, gpus=4), [flavor()], tree)
    for at, wanted, work in arrivals:
        cluster.schedule(at, partial(submit, cluster, wanted, work))
    return cluster
