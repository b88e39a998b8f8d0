"""Pods whose termination messages are expensive to analyse: as a fault among others, and alone at the end of a run,
when the leader must keep its Lease."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.cluster.chaos.checker.objects import HOSTILE
from tests.cluster.chaos.driver.environment import GROUP, Environment, wait_for
from tests.cluster.chaos.driver.users import NAMESPACES
from tests.operator.hostile_messages import hostile_message

Json = dict[str, Any]
_JOBS, _PODS = 5, 8
_EVENT = "RanksDidNotStop"


def write_hostile_messages(env: Environment, pods: list[Json], *, alone: bool) -> None:
    """Write such a message into the status of each pod, as the kubelet does when a collector has ended."""
    for index, pod in enumerate(pods):
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        if alone:
            env.retry(lambda path=path: env.api.patch(path, {"metadata": {"annotations": {HOSTILE: "true"}}}))  # type: ignore[misc]
        ended = {"exitCode": 0, "message": hostile_message(64 * index), "reason": "Completed"}
        one = {"name": "muster-collector", "image": "i", "imageID": "", "ready": True, "restartCount": 0}
        body = {"status": {"initContainerStatuses": [{**one, "state": {"terminated": ended}}]}}
        env.retry(lambda path=path, body=body: env.api.patch(f"{path}/status", body))  # type: ignore[misc]


def hostile_messages(env: Environment, rng: Random) -> None:
    """The pods of a running job."""
    pods = [pod for pod in env.pods(labelSelector="muster.dev/job") if pod["status"].get("phase") == "Running"]
    if pods:
        job = rng.choice(sorted({pod["metadata"]["labels"]["muster.dev/job"] for pod in pods}))
        write_hostile_messages(
            env, [one for one in pods if one["metadata"]["labels"]["muster.dev/job"] == job], alone=False
        )


def end_with_hostile_messages(env: Environment, progress: Callable[[], None]) -> list[str]:
    """Jobs with such pods, and two operators without any other fault: each job gets its Event. What went wrong."""
    for slot in (0, 1):
        env.operators.start(slot)
    path = f"{GROUP}/namespaces/{NAMESPACES[0]}/trainingjobs"
    names = [f"hostile-{number}" for number in range(_JOBS)]
    for name in names:
        env.retry(lambda name=name: env.api.create(path, _job(name)))  # type: ignore[misc]
    wrong = []
    if not wait_for(progress, lambda: len(_running(env, names)) == _JOBS * _PODS):
        wrong.append(f"{len(_running(env, names))} of {_JOBS * _PODS} pods of {', '.join(names)} run")
    for name in names:
        write_hostile_messages(env, _running(env, [name]), alone=True)
    for name in names:
        env.retry(lambda name=name: env.api.patch(f"{path}/{name}", {"spec": {"cancel": True}}))  # type: ignore[misc]
    if not wait_for(progress, lambda: _explained(env) >= set(names)):
        wrong.append(f"no Event {_EVENT} of {', '.join(sorted(set(names) - _explained(env)))}")
    return wrong


def _job(name: str) -> Json:
    annotations = {"kwok.muster.dev/run-seconds": "3600", "kwok.muster.dev/exit-code": "0"}
    container = {"name": "main", "image": "trainer", "resources": {"limits": {"cpu": "1m"}}}
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}
    spec = {"queue": "research", "roles": [{"name": "w", "replicas": _PODS, "template": template}]}
    return {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name}, "spec": spec}


def _running(env: Environment, jobs: list[str]) -> list[Json]:
    pods = env.pods(labelSelector="muster.dev/job")
    of_jobs = [pod for pod in pods if pod["metadata"]["labels"]["muster.dev/job"] in jobs]
    return [pod for pod in of_jobs if pod["status"].get("phase") == "Running"]


def _explained(env: Environment) -> set[str]:
    path = f"/api/v1/namespaces/{NAMESPACES[0]}/events"
    events = env.retry(lambda: env.api.items(path, fieldSelector=f"reason={_EVENT}"))
    return {event["involvedObject"]["name"] for event in events}
