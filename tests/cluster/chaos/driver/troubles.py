"""What goes wrong, each a function that does it and notes in the diary when it is mended again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from tests.cluster.chaos.driver import cluster_objects
from tests.cluster.chaos.driver.operators import LEASE_S
from tests.cluster.chaos.driver.stage import GROUP, Stage
from tests.cluster.chaos.judge.objects import DISRUPTED

Json = dict[str, Any]
Trouble = Callable[[Stage, Random], None]


def plan(stage: Stage) -> None:
    """Note all troubles of a run in the diary, by the seed."""
    times, at, number = stage.size.chance("times"), 2.0, 0
    names = [trouble for trouble, weight in TROUBLES for _ in range(weight)]
    while at < stage.size.busy_s:
        chance = stage.size.chance("trouble", number)
        stage.at(at, _happens(stage, chance.choice(names), chance))
        at += times.expovariate(1.0 / stage.size.trouble_every_s)
        number += 1


def _happens(stage: Stage, trouble: Trouble, chance: Random) -> Callable[[], None]:
    def happen() -> None:
        stage.counts[trouble.__name__] += 1
        trouble(stage, chance)

    happen.__qualname__ = trouble.__name__
    return happen


# ---- operators


def operator_killed(stage: Stage, chance: Random) -> None:
    """SIGKILL at some moment; it comes back at once, half of the time as the same one."""
    slots = stage.operators.slots
    slot = chance.choice(slots) if slots else 0
    identity = stage.operators.kill(slot)
    stage.operators.start(slot, same=identity if chance.random() < 0.5 else "")


def second_operator(stage: Stage, chance: Random) -> None:
    """Another one comes, or one of two goes."""
    if len(stage.operators.slots) > 1:
        stage.operators.kill(chance.choice(stage.operators.slots))
    else:
        stage.operators.start(1 if 0 in stage.operators.slots else 0)


def leader_frozen(stage: Stage, chance: Random) -> None:
    """SIGSTOP of the leader while there is another one; it wakes when that one leads."""
    stage.operators.start(0)
    stage.operators.start(1)
    slot = stage.leader()
    if slot is not None:
        stage.operators.freeze(slot)
        stage.at(stage.now + LEASE_S + chance.uniform(0.0, 5.0), lambda: stage.operators.thaw(slot))


def connections_cut(stage: Stage, chance: Random) -> None:
    """Some or all connections of an operator break: watches, calls under way."""
    if stage.operators.slots:
        stage.operators.proxy(chance.choice(stage.operators.slots)).cut(chance.choice((0.2, 0.5, 1.0)))


def connections_slow(stage: Stage, chance: Random) -> None:
    """What an operator says and hears comes late for a while."""
    if stage.operators.slots:
        slot, delay_s = chance.choice(stage.operators.slots), chance.uniform(0.02, 0.3)
        stage.operators.proxy(slot).slow(chance.uniform(1.0, 4.0), delay_s)


def api_server_killed(stage: Stage, chance: Random) -> None:
    """SIGKILL; it is started again at once."""
    stage.plane.restart_apiserver()


# ---- nodes


def _a_node(stage: Stage, chance: Random, *, in_use: bool = False) -> str | None:
    """A node that nothing is wrong with; `in_use`: most often one that a pod of ours is on."""
    names = [name for name in stage.node_names() if name not in stage.away]
    if in_use and chance.random() < 0.8:
        pods = stage.pods(labelSelector="muster.dev/job")
        used = {pod["spec"].get("nodeName") for pod in pods if pod["status"].get("phase") in ("Pending", "Running")}
        names = [name for name in names if name in used] or names
    return chance.choice(names) if names else None


def _away(stage: Stage, name: str, seconds: float, mend: Callable[[], Any]) -> None:
    stage.away.add(name)

    def back() -> None:
        stage.persist(mend)
        stage.away.discard(name)

    stage.at(stage.now + seconds, back)


def node_deleted(stage: Stage, chance: Random) -> None:
    """A node is gone, and comes back under its name."""
    name = _a_node(stage, chance, in_use=True)
    if name is not None:
        _away(stage, name, chance.uniform(0.5, 8.0), lambda: stage.add_node(name))
        stage.persist(lambda: stage.api.delete(f"/api/v1/nodes/{name}"))


def node_cordoned(stage: Stage, chance: Random) -> None:
    """Nothing new may come to a node for a while."""
    name = _a_node(stage, chance)
    if name is not None:
        path = f"/api/v1/nodes/{name}"
        _away(stage, name, chance.uniform(2.0, 10.0), lambda: stage.api.patch(path, {"spec": {"unschedulable": None}}))
        stage.persist(lambda: stage.api.patch(path, {"spec": {"unschedulable": True}}))


def node_tainted(stage: Stage, chance: Random) -> None:
    """A taint that keeps pods away, one that throws them out, one that asks for a drain, one that declares it dead."""
    name = _a_node(stage, chance, in_use=True)
    if name is None:
        return
    key, effect = chance.choice(
        (
            ("example.com/maintenance", "NoSchedule"),
            ("example.com/maintenance", "NoExecute"),
            ("muster.dev/drain", "NoSchedule"),
            ("node.kubernetes.io/out-of-service", "NoExecute"),
        )
    )
    path = f"/api/v1/nodes/{name}"
    _away(stage, name, chance.uniform(2.0, 8.0), lambda: stage.api.patch(path, {"spec": {"taints": None}}))
    stage.persist(lambda: stage.api.patch(path, {"spec": {"taints": [{"key": key, "effect": effect}]}}))


def node_not_ready(stage: Stage, chance: Random) -> None:
    """A kubelet says nothing any more: since a moment ago, or for so long that its pods are given up."""
    name = _a_node(stage, chance, in_use=True)
    if name is None:
        return
    since = datetime.now(UTC) - timedelta(seconds=chance.choice((0, 400)))
    ready = chance.choice(("Unknown", "Unknown", "False"))

    def mend() -> None:
        stage.plane.set_ready(name, "True")
        stage.plane.resume_kubelet(name)

    _away(stage, name, chance.uniform(2.0, 8.0), mend)
    stage.persist(lambda: stage.plane.stop_kubelet(name))
    stage.persist(lambda: stage.plane.set_ready(name, ready, since))


# ---- pods and quotas


def _a_pod(stage: Stage, chance: Random) -> Json | None:
    pods = [pod for pod in stage.pods(labelSelector="muster.dev/job") if "deletionTimestamp" not in pod["metadata"]]
    alive = [pod for pod in pods if pod["status"].get("phase") in ("Pending", "Running")]
    return chance.choice(sorted(alive, key=lambda pod: str(pod["metadata"]["name"]))) if alive else None


def pod_evicted(stage: Stage, chance: Random) -> None:
    """Somebody evicts a pod through the eviction API, as a drain by kubectl does."""
    pod = _a_pod(stage, chance)
    if pod is not None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        _own_up(stage, path)
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": meta["name"]}}
        stage.persist(lambda: stage.api.create(f"{path}/eviction", body))


def pod_deleted(stage: Stage, chance: Random) -> None:
    """Somebody deletes a pod, with its grace or without a trace."""
    pod = _a_pod(stage, chance)
    if pod is not None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        options = chance.choice(({}, {"gracePeriodSeconds": 0}))
        _own_up(stage, path)
        stage.persist(lambda: stage.api.delete(path, **options))


def _own_up(stage: Stage, path: str) -> None:
    """Say on the pod that it is not the operator who stops it."""
    stage.persist(lambda: stage.api.patch(path, {"metadata": {"annotations": {DISRUPTED: "by the driver"}}}))


def foreign_pods(stage: Stage, chance: Random) -> None:
    """Pods that are not ours come, and take room somewhere."""
    for _ in range(chance.randint(1, max(2, stage.size.nodes // 20))):
        stage.foreign += 1
        stage.create_foreign_pod(stage.foreign)


def quota_edited(stage: Stage, chance: Random) -> None:
    """A queue gets more or less than it had; later it gets what it should have."""
    name = chance.choice(sorted(cluster_objects.TREE))
    resources = cluster_objects.edited(stage.size, name, chance)
    stage.persist(lambda: stage.api.patch(f"{GROUP}/queues/{name}", {"spec": {"resources": resources}}))


TROUBLES: tuple[tuple[Trouble, int], ...] = (
    (operator_killed, 6),
    (second_operator, 3),
    (leader_frozen, 2),
    (connections_cut, 5),
    (connections_slow, 3),
    (api_server_killed, 1),
    (node_deleted, 3),
    (node_cordoned, 3),
    (node_tainted, 3),
    (node_not_ready, 3),
    (pod_evicted, 3),
    (pod_deleted, 4),
    (foreign_pods, 4),
    (quota_edited, 2),
)
