"""Random faults while jobs run, and actions of users and administrators; faults end after a while."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from hypothesis import strategies as st
from tests.engine.checked_cluster import Watched
from tests.engine.objects import job, queue

from muster.api import spec
from muster.simulate import JobBehavior
from muster.workload.conditions import is_admitted, is_finished

Fault = tuple[float, str, int]
"""When, what, and a number that chooses the pod, node, job or queue."""


def _lose_pod(cluster: Watched, number: int) -> None:
    running = [pod for uid in cluster.job_uids() for pod in cluster.pods(uid) if pod.phase == "Running"]
    if running:
        pod = running[number % len(running)]
        cluster.lose_pod(pod.job_uid, pod.index)


def _lose_node(cluster: Watched, number: int, *, deleted: bool) -> None:
    name = f"n{number % 2}"
    if name in cluster.nodes and cluster.nodes[name].ready:
        view = cluster.nodes[name]
        cluster.fail_node(name, deleted=deleted)
        cluster.schedule(cluster.now + (50 if number % 3 else 400), lambda: cluster.restore_node(view))


def _cordon(cluster: Watched, number: int) -> None:
    name = f"n{number % 2}"

    def put(cordoned: bool) -> None:
        if name in cluster.nodes and cluster.nodes[name].ready:
            cluster.restore_node(replace(cluster.nodes[name], cordoned=cordoned))
        elif not cordoned:
            cluster.schedule(cluster.now + 450, partial(put, False))  # it is down just now

    put(True)
    cluster.schedule(cluster.now + 40, partial(put, False))


def _reject_pods(cluster: Watched, number: int) -> None:
    name = f"n{number % 2}"
    cluster.set_rejecting(name, True)
    cluster.schedule(cluster.now + 40, lambda: cluster.set_rejecting(name, False))


def _edit(cluster: Watched, number: int, **fields: object) -> str | None:
    uids = cluster.job_uids()
    if not uids:
        return None
    cluster.edit(uids[number % len(uids)], **fields)
    return uids[number % len(uids)]


def _suspend(cluster: Watched, number: int) -> None:
    uid = _edit(cluster, number, suspend=True)
    if uid is not None:
        cluster.schedule(cluster.now + 30, lambda: cluster.edit(uid, suspend=False) if cluster.has_job(uid) else None)


def _delete_job(cluster: Watched, number: int) -> None:
    uids = cluster.job_uids()
    if uids:
        cluster.delete(uids[number % len(uids)])


def _cancel(cluster: Watched, number: int) -> None:
    _edit(cluster, number, cancel=True)


def _raise_priority(cluster: Watched, number: int) -> None:
    _edit(cluster, number, priority=9)


def _lower_replicas(cluster: Watched, number: int) -> None:
    uids = cluster.job_uids()
    if uids:
        uid = uids[number % len(uids)]
        role = cluster.job(uid).spec.roles[0]
        fewer = max(1, role.replicas - 1)
        least = None if role.min_replicas is None else min(role.min_replicas, fewer)
        cluster.edit(uid, roles=[role.model_copy(update={"replicas": fewer, "min_replicas": least})])


def _edit_roles(cluster: Watched, number: int) -> None:
    """Another name, request, size and flavors for a role: a job that is admitted is suspended first, as it has to be,
    and edited while its pods still stop."""
    uids = cluster.job_uids()
    if not uids:
        return
    uid, gpus = uids[number % len(uids)], (1, 2, 4)[number % 3]

    def put() -> None:
        if (
            cluster.has_job(uid)
            and not is_admitted(cluster.job(uid).status)
            and not is_finished(cluster.job(uid).status)
        ):
            role = job("edited", 1 + number % (8 // gpus), gpus).spec.roles[0]
            fields = {"name": ("trainer", "worker")[number % 2], "flavors": [[], ["any"]][number % 2]}
            cluster.edit(uid, roles=[role.model_copy(update=fields)])

    if is_admitted(cluster.job(uid).status):
        cluster.edit(uid, suspend=True)
        cluster.schedule(cluster.now + 30, lambda: cluster.edit(uid, suspend=False) if cluster.has_job(uid) else None)
    cluster.schedule(cluster.now + 1, put)


def _edit_quota(cluster: Watched, number: int) -> None:
    """A queue has next to nothing of its own, and may be bounded; later it is as it was."""
    name = ("red", "blue")[number % 2]
    bound = {"limit": {"nvidia.com/gpu": str(number % 5)}} if number % 3 else {}
    poor = queue(name, parent="all", resources=[{"flavor": "any", "guaranteed": {"nvidia.com/gpu": "0"}, **bound}])
    cluster.put_queue(poor)
    cluster.schedule(cluster.now + 60, lambda: cluster.put_queue(queue(name, 4, "all")))


def _delete_queue(cluster: Watched, number: int) -> None:
    """A queue is being deleted, or cannot be found in the tree; later it is created again."""
    name = ("red", "blue")[number % 2]
    old = queue(name, 4, "all" if number % 3 else "nowhere")
    gone = old.metadata.model_copy(update={"deletion_timestamp": cluster.now if number % 3 else None})
    cluster.put_queue(old.model_copy(update={"metadata": gone}))
    cluster.schedule(cluster.now + 60, lambda: cluster.put_queue(queue(name, 4, "all")))


KINDS: dict[str, Callable[[Watched, int], None]] = {
    "pod": _lose_pod,
    "node": partial(_lose_node, deleted=False),
    "deleted node": partial(_lose_node, deleted=True),
    "cordon": _cordon,
    "rejected pods": _reject_pods,
    "suspend": _suspend,
    "cancel": _cancel,
    "delete": _delete_job,
    "replicas": _lower_replicas,
    "roles": _edit_roles,
    "priority": _raise_priority,
    "quota": _edit_quota,
    "queue": _delete_queue,
}
FAULTS = st.lists(st.tuples(st.floats(0, 120), st.sampled_from(list(KINDS)), st.integers(0, 11)), max_size=5)


def schedule_faults(cluster: Watched, faults: list[Fault]) -> None:
    """Schedule faults of the cluster."""
    for at, kind, number in faults:
        cluster.schedule(at, partial(KINDS[kind], cluster, number))


def check_end(cluster: Watched, names: list[str], may_fail: set[str]) -> None:
    """All jobs but those that may fail, or were cancelled or deleted, have succeeded; no capacity remains in use."""
    for name in names:
        uid = f"uid-default-{name}"
        if not cluster.has_job(uid):
            assert uid in cluster.deleted
            continue
        one = cluster.job(uid)
        assert is_finished(one.status)
        assert one.status.phase == "Succeeded" or name in may_fail or one.spec.cancel, one.status
        assert (one.status.nomination, one.status.eviction) == (None, None)


KILLS = st.lists(st.integers(0, 12), max_size=12)


Arrivals = list[tuple[float, spec.TrainingJob, JobBehavior]]


def may_fail(arrivals: Arrivals) -> set[str]:
    """Jobs whose work fails, or that may run out of time."""
    bounded = (one for one in arrivals if one[2].exit_codes or one[1].spec.max_runtime_seconds is not None)
    return {wanted.metadata.name for _, wanted, _ in bounded}
