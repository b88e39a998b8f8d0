"""Batch Jobs and JobSets among the jobs of a run, with the label and without it, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.cluster.chaos.driver.environment import GROUP, Environment
from tests.cluster.chaos.driver.settings import Size
from tests.cluster.chaos.driver.users import GPU, LEAVES, NAMESPACES

Json = dict[str, Any]
FLAGS = ("--queued-kinds", '["Job", "JobSet"]', "--trust-pods")
_PREFIX = "kwok.muster.dev/"
_PATHS = {"Job": "/apis/batch/v1", "JobSet": "/apis/jobset.x-k8s.io/v1alpha2"}
_NOT_COUNTED = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}
_MANY = 1000  # failures of pods by the faults


@dataclass(frozen=True, slots=True)
class PlannedObject:
    """An object, and when it is created; it completes in the end. `queued`: it has the label."""

    at: float
    kind: str
    name: str
    namespace: str
    queued: bool
    body: Json

    @property
    def path(self) -> str:
        """The objects of its kind and namespace."""
        return f"{_PATHS[self.kind]}/namespaces/{self.namespace}/{self.kind.lower()}s"


def planned_objects(size: Size) -> list[PlannedObject]:
    """All of a run: a fifth as many as TrainingJobs. Every eighth has no label, and runs at once."""
    return [_planned(size, number) for number in range(max(4, size.jobs // 5))]


def _planned(size: Size, number: int) -> PlannedObject:
    rng = size.rng("object", number)
    kind, queued = ("Job", "JobSet")[number % 2], number % 8 != 0
    behaviour = {"run-seconds": f"{rng.uniform(1.0, 8.0):.1f}", "exit-code": "0"}
    if rng.random() < 0.3:
        behaviour["stop-seconds"] = f"{rng.uniform(0.2, 3.0):.1f}"
    gpus = rng.choice((1, 2, 4)) if queued else 0
    limits = {"cpu": "1", "memory": "1Gi"} | ({GPU: str(gpus)} if gpus else {})
    container = {"name": "main", "image": "trainer", "resources": {"limits": limits}}
    annotations = {_PREFIX + name: value for name, value in behaviour.items()}
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": rng.choice((1, 2)), "containers": [container]}
    template = {"metadata": {"annotations": annotations}, "spec": pod}
    pods = rng.choice((1, 1, 2, 4))
    spec: Json = {
        "parallelism": pods,
        "completions": pods,
        "backoffLimit": _MANY,
        "podFailurePolicy": _NOT_COUNTED,
        "template": template,
    }
    if kind == "JobSet":
        job = {"name": "w", "replicas": rng.choice((1, 2)), "template": {"spec": spec}}
        spec = {"replicatedJobs": [job], "failurePolicy": {"maxRestarts": _MANY}}
    meta: Json = {"name": f"{kind.lower()}-{number:03d}"}
    if queued:
        spec["suspend"] = True
        meta["labels"] = {"muster.dev/queue": rng.choice(LEAVES)}
        meta["annotations"] = {"muster.dev/priority": str(rng.choice((0, 0, 1, 5)))}
    body = {"apiVersion": _PATHS[kind].removeprefix("/apis/"), "kind": kind, "metadata": meta, "spec": spec}
    at, namespace = rng.uniform(0.0, 0.85 * size.fault_s), NAMESPACES[rng.random() < 0.3]
    return PlannedObject(at, kind, meta["name"], namespace, queued, body)


def opt_in(env: Environment) -> None:
    """Labelled objects of the namespaces of jobs queue."""
    for name in NAMESPACES:
        labels = {"metadata": {"labels": {"muster.dev/queueing": "enabled"}}}
        env.retry(lambda name=name, labels=labels: env.api.patch(f"/api/v1/namespaces/{name}", labels))  # type: ignore[misc]


def plan(env: Environment, planned: list[PlannedObject]) -> None:
    """Create them as scheduled."""
    for one in planned:
        env.at(one.at, lambda one=one: _create(env, one))  # type: ignore[misc]


def _create(env: Environment, one: PlannedObject) -> None:
    env.retry(lambda: env.api.create(one.path, one.body))
    env.counts[f"{one.kind} created"] += 1


def unfinished(env: Environment, planned: list[PlannedObject]) -> list[str]:
    """Which have not completed, and what they are."""
    phases = {
        (one["metadata"]["namespace"], one["spec"]["objectRef"]["name"]): (one.get("status") or {}).get("phase", "new")
        for one in env.retry(lambda: env.api.items(f"{GROUP}/workloads"))
    }
    found = []
    for one, document in _stored(env, planned):
        done = _has_completed(document)
        phase = phases.get((one.namespace, one.name), "none") if one.queued else "Succeeded"
        if not done or phase != "Succeeded":
            found.append(f"{one.namespace}/{one.name}: {'completed' if done else 'not completed'}, Workload {phase}")
    return found


def _stored(env: Environment, planned: list[PlannedObject]) -> Iterator[tuple[PlannedObject, Json]]:
    stored = {
        (kind, one["metadata"]["namespace"], one["metadata"]["name"]): one
        for kind, path in _PATHS.items()
        for one in env.retry(lambda path=path, kind=kind: env.api.items(f"{path}/{kind.lower()}s"))  # type: ignore[misc]
    }
    for one in planned:
        yield one, stored.get((one.kind, one.namespace, one.name), {})


def _has_completed(document: Json) -> bool:
    conditions = (document.get("status") or {}).get("conditions") or ()
    return any(one["type"] in ("Complete", "Completed") and one["status"] == "True" for one in conditions)


def delete_all(env: Environment) -> None:
    """Delete all of them."""
    for kind, path in _PATHS.items():
        for name in NAMESPACES:
            collection = f"{path}/namespaces/{name}/{kind.lower()}s"
            env.retry(lambda collection=collection: env.api.delete(collection, propagationPolicy="Background"))  # type: ignore[misc]
