"""Builds the objects of a recorded workload: nodes, flavors, a queue tree, and jobs with their behavior.

There is one flavor per type of GPU. Unless a queue tree is given, the workload's queues are siblings below a root that
owns the whole cluster: each has an equal guaranteed share of every flavor's GPUs and may borrow the rest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from muster.api import spec
from muster.cluster import NodeView
from muster.errors import InvalidTrace
from muster.model import Resources
from muster.simulate.pods import JobBehavior
from muster.simulate.trace_csv import TRAINING_JOB, CsvTable, InvalidRow, TraceJob, TraceNode, read_jobs, read_nodes

GPU = "nvidia.com/gpu"
GPU_TYPE_LABEL, BLOCK_LABEL, RACK_LABEL, HOST_LABEL = (
    "muster.dev/gpu-type",
    "muster.dev/block",
    "muster.dev/rack",
    "kubernetes.io/hostname",
)
ROOT_QUEUE = "cluster"
_POD_SLOTS = 1_000_000  # pods of a node; traces have no limit


@dataclass(frozen=True, slots=True)
class WorkloadAssumptions:
    """How jobs behave where the recording has no data. Times in seconds.

    `bound_factor`: the maximum run time of jobs without `max_runtime_s`, as a multiple of their recorded run time
    (None: no maximum). `qos_priorities`: added to the priority of an OpenB job, by its QoS class.
    """

    start_delay_s: float = 0.0
    stop_s: float = 10.0
    grace_s: int = 30
    checkpoint_every_s: float | None = 1800.0
    checkpoint_on_stop: bool = False
    bound_factor: float | None = None
    qos_priorities: Mapping[str, int] = field(default_factory=dict)

    def priority(self, row: TraceJob) -> int:
        """The job's priority plus that of its QoS class."""
        return row.priority + self.qos_priorities.get(row.qos, 0)


@dataclass(frozen=True, slots=True)
class RecordedWorkload:
    """The nodes and jobs to replay, and the invalid rows that were skipped."""

    nodes: tuple[TraceNode, ...]
    jobs: tuple[TraceJob, ...]
    invalid_rows: tuple[InvalidRow, ...] = ()

    @property
    def fractional_jobs(self) -> int:
        """The number of jobs that requested a fraction of a GPU and get a whole one."""
        return sum(job.fractional_gpu for job in self.jobs)

    @property
    def never_scheduled(self) -> int:
        """The number of jobs that were never scheduled in the recording."""
        return sum(job.never_scheduled for job in self.jobs)

    @property
    def gpus(self) -> int:
        return sum(node.gpus for node in self.nodes)


def read_workload(nodes: Path, jobs: Path, *, skip_invalid: bool = False) -> RecordedWorkload:
    """Read both tables. Raises InvalidTrace if a file is invalid, or has invalid rows and they are not skipped."""
    node_table, job_table = read_nodes(nodes), read_jobs(jobs)
    if not skip_invalid:
        _require_valid(node_table, job_table)
    for table, what in ((node_table, "nodes"), (job_table, "jobs")):
        if not table.rows:
            raise InvalidTrace(f"{table.path}: all {len(table.invalid_rows)} rows of {what} are invalid")
    return RecordedWorkload(node_table.rows, job_table.rows, (*node_table.invalid_rows, *job_table.invalid_rows))


def _require_valid(nodes: CsvTable[TraceNode], jobs: CsvTable[TraceJob]) -> None:
    problems = []
    for table in (nodes, jobs):
        try:
            table.require_valid()
        except InvalidTrace as error:
            problems.append(str(error))
    if problems:
        raise InvalidTrace("\n".join(problems))


def build_nodes(rows: Iterable[TraceNode], flavors: dict[str, str]) -> Iterator[NodeView]:
    """The nodes; `flavors` is by GPU type."""
    rows = tuple(rows)
    blocks, racks = any(row.block for row in rows), any(row.rack for row in rows)
    for row in rows:
        amounts = {GPU: row.gpus, "cpu": row.cpu_milli, "memory": row.memory_mib << 20, "pods": _POD_SLOTS}
        labels = {GPU_TYPE_LABEL: flavors[_gpu_type(row)], HOST_LABEL: row.name}
        if blocks:
            labels[BLOCK_LABEL] = row.block or "unnamed"
        if racks:
            labels[RACK_LABEL] = row.rack or "unnamed"
        yield NodeView(row.name, Resources.of(amounts), labels)


def flavor_names(rows: Iterable[TraceNode]) -> dict[str, str]:
    """Flavor names by type of GPU: "V100M16" -> "v100m16"; nodes without GPUs are "cpu"."""
    names: dict[str, str] = {}
    for gpu_type in sorted({_gpu_type(row) for row in rows}):
        base = _dns_label(gpu_type)
        name, number = base, 2
        while name in names.values():
            name, number = f"{base}-{number}", number + 1
        names[gpu_type] = name
    return names


def build_flavors(rows: Sequence[TraceNode], names: dict[str, str]) -> list[spec.Flavor]:
    """One flavor per type of GPU, with the topology levels of the nodes: block, rack, host."""
    levels = []
    if any(row.block for row in rows):
        levels.append({"name": "block", "nodeLabel": BLOCK_LABEL})
    if any(row.rack for row in rows):
        levels.append({"name": "rack", "nodeLabel": RACK_LABEL})
    levels.append({"name": "host", "nodeLabel": HOST_LABEL})
    return [
        spec.Flavor.model_validate(
            {"metadata": {"name": name}, "spec": {"nodeLabels": {GPU_TYPE_LABEL: name}, "topology": levels}}
        )
        for name in names.values()
    ]


def build_queues(workload: RecordedWorkload, names: dict[str, str]) -> list[spec.Queue]:
    """A root queue with all GPUs; the workload's queues share it equally."""
    totals = dict.fromkeys(names.values(), 0)
    for node in workload.nodes:
        totals[names[_gpu_type(node)]] += node.gpus
    leaves = sorted({job.queue for job in workload.jobs})
    if len(leaves) == 1:
        return [_queue(leaves[0], None, totals)]
    root = ROOT_QUEUE if ROOT_QUEUE not in leaves else f"{ROOT_QUEUE}-root"
    share = {flavor: total // len(leaves) for flavor, total in totals.items()}
    return [_queue(root, None, totals), *(_queue(leaf, root, share) for leaf in leaves)]


def _queue(name: str, parent: str | None, guaranteed: dict[str, int]) -> spec.Queue:
    resources = [{"flavor": f, "guaranteed": {GPU: total} if total else {}} for f, total in guaranteed.items()]
    body: dict[str, object] = {"parent": parent, "namespaceSelector": {}, "resources": resources}
    return spec.Queue.model_validate({"metadata": {"name": name}, "spec": body})


class JobFactory:
    """Converts rows into jobs; rows with the same requirements share one spec."""

    def __init__(self, names: dict[str, str], assumptions: WorkloadAssumptions) -> None:
        self._names = names
        self._assumptions = assumptions
        self._specs: dict[object, spec.TrainingJobSpec] = {}

    def job(self, row: TraceJob, number: int) -> spec.TrainingJob:
        """The job of a row. Its name is `j` and the row's number, since names in traces may be invalid."""
        name = f"j{number:07d}"
        return spec.TrainingJob.model_construct(
            metadata=spec.ObjectMeta.model_construct(name=name, uid=name), spec=self._spec(row)
        )

    def behavior(self, row: TraceJob) -> JobBehavior:
        """The behavior of the job's pods. Those of other kinds write no checkpoint that counts."""
        assumptions = self._assumptions
        checkpoints = row.kind == TRAINING_JOB
        return JobBehavior(
            runtime_s=row.runtime_s,
            start_delay_s=assumptions.start_delay_s,
            stop_s=assumptions.stop_s,
            checkpoint_every_s=assumptions.checkpoint_every_s if checkpoints else None,
            checkpoint_on_stop=assumptions.checkpoint_on_stop and checkpoints,
        )

    def _spec(self, row: TraceJob) -> spec.TrainingJobSpec:
        bound = row.max_runtime_s
        if bound is None and self._assumptions.bound_factor is not None:
            # The start of the pods counts towards the maximum run time.
            bound = max(1, math.ceil(row.runtime_s * self._assumptions.bound_factor + self._assumptions.start_delay_s))
        requests = (row.pods, row.min_pods, row.gpus_per_pod, row.cpu_milli, row.memory_mib)
        priority = self._assumptions.priority(row)
        key = (requests, row.queue, priority, bound, row.gpu_types, row.topology)
        if key not in self._specs:
            self._specs[key] = self._build_spec(row, priority, bound)
        return self._specs[key]

    def _build_spec(self, row: TraceJob, priority: int, bound: int | None) -> spec.TrainingJobSpec:
        requests = {GPU: row.gpus_per_pod, "cpu": f"{row.cpu_milli}m", "memory": f"{row.memory_mib}Mi"}
        pod = {
            "containers": [
                {"resources": {"requests": {k: v for k, v in requests.items() if v not in (0, "0m", "0Mi")}}}
            ],
            "terminationGracePeriodSeconds": self._assumptions.grace_s,
        }
        role = {"name": "pod", "replicas": row.pods, "minReplicas": row.min_pods, "template": {"spec": pod}}
        body = {
            "queue": row.queue,
            "priority": priority,
            "maxRuntimeSeconds": bound,
            "flavors": [self._names.get(gpu_type, _dns_label(gpu_type)) for gpu_type in row.gpu_types],
            "topology": {"required": row.topology} if row.topology else None,
            "roles": [role],
            "ttlSecondsAfterFinished": 0,
        }
        return spec.TrainingJobSpec.model_validate(body)


def _dns_label(gpu_type: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", gpu_type.lower()).strip("-")[:200] or "gpu"


def _gpu_type(row: TraceNode) -> str:
    return row.gpu_type or ("gpu" if row.gpus else "cpu")
