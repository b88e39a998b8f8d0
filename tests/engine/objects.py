"""Small objects for tests of the engine: whole objects, as users would write them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.simulate.scenario_cluster import ScenarioCluster

from muster.api import spec
from muster.cluster import NodeView
from muster.engine import CycleResult, Engine, run_cycle
from muster.kinds.trainingjob.adapter import TrainingJobWorkload
from muster.model import Resources


def nodes(count: int, gpus: int = 8, **labels: str) -> list[NodeView]:
    amounts = {"nvidia.com/gpu": gpus, "cpu": 64_000, "memory": 2**38, "pods": 110}
    return [NodeView(f"n{i}", Resources.of(amounts), labels) for i in range(count)]


def flavor(
    name: str = "any", labels: dict[str, str] | None = None, levels: dict[str, str] | None = None
) -> spec.Flavor:
    topology = [{"name": level, "nodeLabel": label} for level, label in (levels or {}).items()]
    return spec.Flavor.model_validate(
        {"metadata": {"name": name}, "spec": {"nodeLabels": labels or {}, "topology": topology}}
    )


def queue(name: str = "default", gpus: int | None = 16, parent: str | None = None, **fields: Any) -> spec.Queue:
    resources = [] if gpus is None else [{"flavor": "any", "guaranteed": {"nvidia.com/gpu": gpus}}]
    body = {"parent": parent, "namespaceSelector": {}, "resources": resources, **fields}
    return spec.Queue.model_validate({"metadata": {"name": name}, "spec": body})


def job(
    name: str, pods: int = 2, gpus: int = 8, *, least: int | None = None, grace: int = 30, **fields: Any
) -> spec.TrainingJob:
    container = {"resources": {"limits": {"nvidia.com/gpu": gpus}}}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": grace}}
    role = {"name": "trainer", "replicas": pods, "minReplicas": least, "template": template}
    return spec.TrainingJob.model_validate({"metadata": {"name": name}, "spec": {"roles": [role], **fields}})


def adapted(jobs: Iterable[spec.TrainingJob]) -> tuple[TrainingJobWorkload, ...]:
    """The jobs as the engine sees them."""
    return tuple(map(TrainingJobWorkload, jobs))


def settle(engine: Engine, cluster: ScenarioCluster, *, until: float) -> list[CycleResult]:
    """Run engine and cluster, event by event, up to a time; the cycles in order."""
    cycles = []
    for _ in range(10_000):
        cycles.append(run_cycle(cluster, engine))
        times = [at for at in (cluster.next_event_time(), cycles[-1].wake_at) if at is not None]
        if not times or min(times) > until:
            cluster.advance(until)
            return cycles
        cluster.advance(max(cluster.now, min(times)))
    raise AssertionError("never settles")
