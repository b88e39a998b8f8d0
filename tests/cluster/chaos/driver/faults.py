"""Faults, each a function that injects it and schedules its repair."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from tests.cluster.chaos.checker.objects import DISRUPTED
from tests.cluster.chaos.driver import cluster_objects
from tests.cluster.chaos.driver.environment import GROUP, Environment
from tests.cluster.chaos.driver.hostile import hostile_messages
from tests.cluster.chaos.driver.operators import LEASE_S
from tests.cluster.controlplane.rejecting import RejectingKubelets

Json = dict[str, Any]
Fault = Callable[[Environment, Random], None]
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_DENIED_WITHIN_S = 60.0  # after the last other fault


def plan(env: Environment) -> None:
    """Schedule all faults of a run, by the seed; those of every run that it does not choose, once."""
    times, at, number = env.size.rng("times"), 2.0, 0
    names = [fault for fault, weight in FAULTS for _ in range(weight)]
    chosen = set[str]()
    while at < env.size.fault_s:
        rng = env.size.rng("trouble", number)  # not renamed: the faults of a seed follow from it
        fault = rng.choice(names)
        chosen.add(fault.__name__)
        env.at(at, _injected(env, fault, rng))
        at += times.expovariate(1.0 / env.size.fault_interval_s)
        number += 1
    for fault, _ in (*FAULTS, (admissions_refused, 0)):
        if fault.__name__ in IN_EVERY_RUN and fault.__name__ not in chosen:
            rng = env.size.rng("once", fault.__name__)
            env.at(rng.uniform(0.2, 0.6) * env.size.fault_s, _injected(env, fault, rng))


def _injected(env: Environment, fault: Fault, rng: Random) -> Callable[[], None]:
    def inject() -> None:
        env.counts[fault.__name__] += 1
        fault(env, rng)

    inject.__qualname__ = fault.__name__
    return inject


# ---- operators


def operator_killed(env: Environment, rng: Random) -> None:
    """SIGKILL; it restarts at once, half of the time with the same identity."""
    slots = env.operators.slots
    slot = rng.choice(slots) if slots else 0
    identity = env.operators.kill(slot)
    env.operators.start(slot, same=identity if rng.random() < 0.5 else "")


def second_operator(env: Environment, rng: Random) -> None:
    """A second one starts, or one of two is killed."""
    if len(env.operators.slots) > 1:
        env.operators.kill(rng.choice(env.operators.slots))
    else:
        env.operators.start(1 if 0 in env.operators.slots else 0)


def leader_frozen(env: Environment, rng: Random) -> None:
    """SIGSTOP of the leader while there is another one; SIGCONT when that one leads."""
    env.operators.start(0)
    env.operators.start(1)
    slot = env.leader()
    if slot is not None:
        env.operators.freeze(slot)
        env.at(env.now + LEASE_S + rng.uniform(0.0, 5.0), lambda: env.operators.thaw(slot))


def connections_cut(env: Environment, rng: Random) -> None:
    """Some or all connections of an operator break, with the watches and calls in them."""
    if env.operators.slots:
        env.operators.proxy(rng.choice(env.operators.slots)).cut(rng.choice((0.2, 0.5, 1.0)))


def connections_slow(env: Environment, rng: Random) -> None:
    """Requests and answers of an operator are delayed for a while."""
    if env.operators.slots:
        slot, delay_s = rng.choice(env.operators.slots), rng.uniform(0.02, 0.3)
        env.operators.proxy(slot).slow(rng.uniform(1.0, 4.0), delay_s)


def api_server_killed(env: Environment, rng: Random) -> None:
    """SIGKILL; it restarts at once."""
    env.plane.restart_apiserver()


# ---- nodes


def _a_node(env: Environment, rng: Random, *, in_use: bool = False) -> str | None:
    """A node without a fault; `in_use`: mostly one with a pod of a job."""
    names = [name for name in env.node_names() if name not in env.faulty_nodes]
    if in_use and rng.random() < 0.8:
        pods = env.pods(labelSelector="muster.dev/job")
        used = {pod["spec"].get("nodeName") for pod in pods if pod["status"].get("phase") in ("Pending", "Running")}
        names = [name for name in names if name in used] or names
    return rng.choice(names) if names else None


def _faulty(env: Environment, name: str, seconds: float, repair: Callable[[], Any]) -> None:
    env.faulty_nodes.add(name)

    def recover() -> None:
        env.retry(repair)
        env.faulty_nodes.discard(name)

    env.at(env.now + seconds, recover)


def node_deleted(env: Environment, rng: Random) -> None:
    """A node is deleted, and created again with its name."""
    name = _a_node(env, rng, in_use=True)
    if name is not None:
        _faulty(env, name, rng.uniform(0.5, 8.0), lambda: env.add_node(name))
        env.retry(lambda: env.api.delete(f"/api/v1/nodes/{name}"))


def node_cordoned(env: Environment, rng: Random) -> None:
    """No new pod may be scheduled on a node for a while."""
    name = _a_node(env, rng)
    if name is not None:
        path = f"/api/v1/nodes/{name}"
        _faulty(env, name, rng.uniform(2.0, 10.0), lambda: env.api.patch(path, {"spec": {"unschedulable": None}}))
        env.retry(lambda: env.api.patch(path, {"spec": {"unschedulable": True}}))


def node_tainted(env: Environment, rng: Random) -> None:
    """A taint that repels pods, evicts them, requests a drain, or declares the node out of service."""
    name = _a_node(env, rng, in_use=True)
    if name is None:
        return
    key, effect = rng.choice(
        (
            ("example.com/maintenance", "NoSchedule"),
            ("example.com/maintenance", "NoExecute"),
            ("muster.dev/drain", "NoSchedule"),
            ("node.kubernetes.io/out-of-service", "NoExecute"),
        )
    )
    path = f"/api/v1/nodes/{name}"
    _faulty(env, name, rng.uniform(2.0, 8.0), lambda: env.api.patch(path, {"spec": {"taints": None}}))
    env.retry(lambda: env.api.patch(path, {"spec": {"taints": [{"key": key, "effect": effect}]}}))


def node_tainted_briefly_tolerated(env: Environment, rng: Random) -> None:
    """A taint that evicts pods after a second: those of some jobs tolerate it for so long (`users.py`)."""
    name = _a_node(env, rng, in_use=True)
    if name is not None:
        path, taint = f"/api/v1/nodes/{name}", {"key": cluster_objects.BRIEF_TAINT, "effect": "NoExecute"}
        _faulty(env, name, rng.uniform(3.0, 12.0), lambda: env.api.patch(path, {"spec": {"taints": None}}))
        env.retry(lambda: env.api.patch(path, {"spec": {"taints": [taint]}}))


def node_rejects_pods(env: Environment, rng: Random) -> None:
    """A kubelet rejects every new pod for a while, as one without healthy devices does; if possible one that has not
    started a pod yet. One node at a time, since a pod that three nodes reject fails its job."""
    if env.rejecting_until > env.now:
        return
    pods = env.pods(labelSelector="muster.dev/job", fieldSelector="status.phase=Pending")
    starting = {str(pod["spec"].get("nodeName", "")) for pod in pods} - env.faulty_nodes - {""}
    name = rng.choice(sorted(starting)) if starting else _a_node(env, rng, in_use=True)
    if name is None:
        return
    env.rejecting_until = until = env.now + rng.uniform(4.0, 12.0)
    kubelet = RejectingKubelets(env.api, name)

    def reject() -> None:
        env.retry(kubelet.reject_pending)
        if env.now < until:
            env.at(env.now + 0.1, reject)

    _faulty(env, name, until - env.now, lambda: env.plane.resume_kubelet(name))
    env.retry(lambda: env.plane.stop_kubelet(name))
    reject()


def node_not_ready(env: Environment, rng: Random) -> None:
    """A kubelet stops reporting: just now, or for so long that its pods count as lost."""
    name = _a_node(env, rng, in_use=True)
    if name is None:
        return
    since = datetime.now(UTC) - timedelta(seconds=rng.choice((0, 400)))
    ready = rng.choice(("Unknown", "Unknown", "False"))

    def repair() -> None:
        env.plane.set_ready(name, "True")
        env.plane.resume_kubelet(name)

    _faulty(env, name, rng.uniform(2.0, 8.0), repair)
    env.retry(lambda: env.plane.stop_kubelet(name))
    env.retry(lambda: env.plane.set_ready(name, ready, since))


# ---- pods and quotas


def _a_pod(env: Environment, rng: Random) -> Json | None:
    pods = [pod for pod in env.pods(labelSelector="muster.dev/job") if "deletionTimestamp" not in pod["metadata"]]
    live = [pod for pod in pods if pod["status"].get("phase") in ("Pending", "Running")]
    return rng.choice(sorted(live, key=lambda pod: str(pod["metadata"]["name"]))) if live else None


def pod_evicted(env: Environment, rng: Random) -> None:
    """Another client evicts a pod through the eviction API, as `kubectl drain` does."""
    pod = _a_pod(env, rng)
    if pod is not None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        _mark_disrupted(env, path)
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": meta["name"]}}
        env.retry(lambda: env.api.create(f"{path}/eviction", body))


def pod_deleted(env: Environment, rng: Random) -> None:
    """Another client deletes a pod, with or without its grace period."""
    pod = _a_pod(env, rng)
    if pod is not None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        options = rng.choice(({}, {"gracePeriodSeconds": 0}))
        _mark_disrupted(env, path)
        env.retry(lambda: env.api.delete(path, **options))


def _mark_disrupted(env: Environment, path: str) -> None:
    """Mark the pod: another client than the operator stops it."""
    env.retry(lambda: env.api.patch(path, {"metadata": {"annotations": {DISRUPTED: "by the driver"}}}))


def unmanaged_pods(env: Environment, rng: Random) -> None:
    """Unmanaged pods use capacity of some nodes."""
    for _ in range(rng.randint(1, max(2, env.size.nodes // 20))):
        env.unmanaged += 1
        env.create_unmanaged_pod(env.unmanaged)


def quota_edited(env: Environment, rng: Random) -> None:
    """A queue gets more or less quota; it is repaired at the end."""
    name = rng.choice(sorted(cluster_objects.TREE))
    resources = cluster_objects.edited(env.size, name, rng)
    env.retry(lambda: env.api.patch(f"{GROUP}/queues/{name}", {"spec": {"resources": resources}}))


def statuses_refused(env: Environment, rng: Random) -> None:
    """An admission policy refuses some statuses of every second or fifth job for a while."""
    refused = rng.choice(cluster_objects.REFUSED_STATUSES)
    jobs = rng.choice(("[02468]$", "[13579]$", "[05]$"))
    _refuse(env, jobs, refused, rng.uniform(4.0, 12.0))


def admissions_refused(env: Environment, rng: Random) -> None:
    """Every second job is not admitted for a while, and until one was refused: what the seed refuses may not be written
    at that time, and no operator may lead at this one."""
    _refuse(env, "[02468]$", cluster_objects.REFUSED_ADMISSION, 0.25 * env.size.fault_s, least=1)


def _refuse(env: Environment, jobs: str, refused: str, seconds: float, least: int = 0) -> None:
    env.policies += 1
    name = f"chaos-{env.policies}"
    for resource, body in cluster_objects.status_policy(name, jobs, refused).items():
        env.retry(lambda resource=resource, body=body: env.api.create(f"{ADMISSION}/{resource}", body))  # type: ignore[misc]

    def recover() -> None:
        denied = _denials(env, name)
        if denied < least and env.now < env.size.fault_s + _DENIED_WITHIN_S:
            env.at(env.now + 1.0, recover)
            return
        env.counts["status_denied"] += denied
        for resource in reversed(cluster_objects.POLICY_RESOURCES):
            env.retry(lambda resource=resource: env.api.delete_if_exists(f"{ADMISSION}/{resource}/{name}"))  # type: ignore[misc]

    env.at(env.now + seconds, recover)


def _denials(env: Environment, policy: str) -> int:
    """How many writes this policy has refused since the API server started."""
    lines = env.plane.kubectl("get", "--raw", "/metrics").splitlines()
    name = "apiserver_validating_admission_policy_check_total{"
    denied = (one for one in lines if one.startswith(name) and f'policy="{policy}"' in one and '="deny"' in one)
    return int(sum(float(one.rpartition(" ")[2]) for one in denied))


FAULTS: tuple[tuple[Fault, int], ...] = (
    (operator_killed, 6),
    (second_operator, 3),
    (leader_frozen, 2),
    (connections_cut, 5),
    (connections_slow, 3),
    (api_server_killed, 1),
    (node_deleted, 3),
    (node_cordoned, 3),
    (node_tainted, 3),
    (node_tainted_briefly_tolerated, 3),
    (node_rejects_pods, 4),
    (node_not_ready, 3),
    (pod_evicted, 3),
    (pod_deleted, 4),
    (unmanaged_pods, 4),
    (quota_edited, 2),
    (hostile_messages, 2),
    (statuses_refused, 3),
)

IN_EVERY_RUN = (
    "node_rejects_pods",
    "node_tainted_briefly_tolerated",
    "admissions_refused",
    "status_denied",
    "job_orphaned",
    "hostile_messages",
    "large_gang",
)
"""Faults without which a run proves less than its text says; `status_denied`: statuses that were refused. Orphaned jobs
are in `users.py`; a run ends with the large gang, and with hostile messages."""
