"""Pods as the engine sees them: those of the jobs it knows, by job; all others as room that is taken on their nodes.

Whether a pod is ours depends on whether its job is shown to the engine: pods may be listed before their job is, and
outlive it. And that it says so is not enough: who may create pods in some namespace may write into them whatever uid,
so a pod is a job's only in the job's namespace and under the very name that we give it. A pod that has ended takes
nothing; one that is gone may be shown all the same (`departed`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from muster.cluster import PodView
from muster.lifecycle import pod_name
from muster.model import Resources
from muster_operator.kube.resources import TRAINING_JOBS
from muster_operator.labels import ATTEMPT, INDEX, ROLE
from muster_operator.manifests.collector import NAME as COLLECTOR
from muster_operator.sight.amounts import asks_for
from muster_operator.sight.departed import Departed
from muster_operator.sight.endings import Ending, ending_of
from muster_operator.sight.shapes import ContainerStatus, Pod, PodMeta, Terminated
from muster_operator.sight.shelf import Shelf
from muster_operator.sight.times import seconds

_ENDED = ("Succeeded", "Failed")
_PHASES: dict[str, Literal["Pending", "Running", "Succeeded", "Failed", "Lost"]] = {
    "Pending": "Pending", "Running": "Running", "Succeeded": "Succeeded", "Failed": "Failed", "Unknown": "Lost",
}  # fmt: skip
_TAIL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class JobName:
    """Which job it is; neither changes as long as there is one of that uid."""

    uid: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class KnownPod:
    """A pod: as the engine sees it if its job is known (`view`), and what it takes of `node` otherwise."""

    uid: str
    version: int
    namespace: str
    name: str
    job: JobName | None  # whose pod it is, if there is such a TrainingJob
    view: PodView | None
    node: str  # where it is bound; "" while it is not
    request: Resources
    ended: bool
    told: bool = False  # by us, to stop
    ip: str = ""
    collector: bool = False  # whether the sidecar of ours is in it
    ending: Ending | None = None  # what that said at its end


class Pods:
    """A sink for pods. `take` is told what foreign pods take more of a node, `changed` when jobs look different,
    `ended` of pods whose collector has said its last words. `named` tells which job has a uid; None: none that is
    known."""

    def __init__(
        self,
        take: Callable[[str, Resources], None],
        changed: Callable[[str], None],
        named: Callable[[str], JobName | None],
        ended: Callable[[KnownPod], None] = lambda pod: None,
    ) -> None:
        self._take = take
        self._changed = changed
        self._named = named
        self._ended = ended
        self._shelf = Shelf[KnownPod](self._note)
        self._by_job: dict[JobName, dict[str, KnownPod]] = {}
        self._shown: dict[str, JobName] = {}  # jobs that the engine knows
        self._stale: set[str] = set()  # of them, those whose views are to be made anew
        self._views: dict[str, tuple[PodView, ...]] = {}
        self._departed = Departed[JobName]()
        self._unbound: set[str] = set()  # of our pods, by namespace/name
        self.served = 0  # how many of them wait no more

    # ---- what is seen

    def replace(self, objects: list[Pod], version: int) -> None:
        """All pods there are."""
        for pod in objects:
            self.put(pod)
        self._shelf.keep_only((_key(pod) for pod in objects), version)

    def put(self, item: Pod) -> None:
        """A pod was created or changed."""
        key, version = _key(item), item.metadata.version
        if self._shelf.is_news(key, version):
            self._shelf.put(key, version, known_pod(item, self._shelf.get(key)))

    def found(self, item: Pod) -> None:
        """A read shows it, which watches may have passed meanwhile."""
        if not self._shelf.is_gone(_key(item), item.metadata.version):
            self.put(item)

    def drop(self, item: Pod) -> None:
        """A pod is gone for good."""
        self._shelf.drop(_key(item), item.metadata.version)

    def progress(self, version: int) -> None:
        """Everything up to here has been told."""
        self._shelf.progress(version)

    # ---- what we did

    def created(self, pod: KnownPod) -> None:
        """We created it."""
        self._shelf.wrote(f"{pod.namespace}/{pod.name}", pod.version, pod)

    def deleted(self, pod: KnownPod) -> None:
        """We asked for its end, knowing this of it, and it is on its way. What has become of it meanwhile counts: it
        may have ended by itself just before."""
        if pod.ended and pod.job is not None:
            self.forget(pod.job.uid, pod.name)
        key = f"{pod.namespace}/{pod.name}"
        now = self._shelf.get(key)
        if now is None or now.uid != pod.uid or now.view is None or (now.ended and not pod.ended):
            return
        self._shelf.amend(key, replace(now, told=True, view=replace(now.view, deleting=True)))

    def forget(self, uid: str, name: str) -> None:
        """The job goes on without this pod, which is gone."""
        job = self._named(uid)
        if job is not None and self._departed.forget(job, name):
            self._differs_by(uid)

    def of_job(self, uid: str, name: str) -> KnownPod | None:
        """A pod of a job, by name."""
        return self._of(self._named(uid)).get(name)

    def speaker(self, uid: str, role: str) -> KnownPod | None:
        """Pod 0 of a role, of the newest attempt that has one: of a job that was told to stop, the one that stops."""
        pods = self._of(self._named(uid)).values()
        found = [(pod.view.attempt, pod) for pod in pods if pod.view and (pod.view.role, pod.view.index) == (role, 0)]
        return max(found, key=lambda one: one[0])[1] if found else None

    def any_of(self, uid: str, phases: Container[str]) -> bool:
        """Whether a pod of the job is in one of these phases."""
        return any(pod.view is not None and pod.view.phase in phases for pod in self._of(self._named(uid)).values())

    def is_there(self, pod: KnownPod) -> bool:
        """Whether that very pod still is."""
        now = self._shelf.get(f"{pod.namespace}/{pod.name}")
        return now is not None and now.uid == pod.uid

    def unbound(self) -> bool:
        """Whether a pod of some job still waits for kube-scheduler."""
        return bool(self._unbound)

    # ---- what the engine sees

    def show(self, uid: str, shown: bool) -> None:
        """From now on the engine knows this job, or no longer: its pods are ours, or foreign."""
        if (uid in self._shown) == shown:
            return
        job = self._named(uid) if shown else self._shown[uid]
        if job is None:
            return
        if shown:
            self._shown[uid] = job
        else:
            del self._shown[uid]
            self._departed.forget_job(job)
        for pod in self._of(job).values():
            self._account(pod, -1 if shown else 1)
            self._wait_for(f"{pod.namespace}/{pod.name}", pod)
        self._stale.add(uid)

    def views(self) -> Mapping[str, tuple[PodView, ...]]:
        """Pods by job uid; tuples are the same as long as nothing about a job's pods changed."""
        for uid in self._stale:
            job = self._shown.get(uid)
            here = (pod.view for pod in self._of(job).values() if pod.view is not None)
            fresh = (*here, *self._departed.of(job))
            if not fresh:
                self._views.pop(uid, None)
            elif self._views.get(uid) != fresh:
                self._views[uid] = fresh
        self._stale.clear()
        return dict(self._views)

    def _of(self, job: JobName | None) -> Mapping[str, KnownPod]:
        return {} if job is None else self._by_job.get(job, {})

    def _is_ours(self, pod: KnownPod | None) -> bool:
        return pod is not None and pod.job is not None and self._shown.get(pod.job.uid) == pod.job

    def _note(self, key: str, old: KnownPod | None, new: KnownPod | None) -> None:
        was_ours, is_ours = self._is_ours(old), self._is_ours(new)
        if old is not None:
            if not was_ours:
                self._account(old, -1)
            if old.job is not None and (new is None or new.job != old.job):
                self._leave(old, old.job)
            if new is None and was_ours and old.job is not None and old.view is not None and old.ended:
                self._departed.add(old.job, old.view)
        if new is not None:
            if not is_ours:
                self._account(new, 1)
            if new.job is not None:
                self._by_job.setdefault(new.job, {})[new.name] = new
                self._departed.forget(new.job, new.name)
        if old is None or new is None or old.view is not new.view:
            for pod in (old, new):
                self._differs(pod)
        if new is not None and new.ending is not None and (old is None or old.ending != new.ending):
            self._ended(new)
        self._wait_for(key, new)

    def _leave(self, pod: KnownPod, job: JobName) -> None:
        pods = self._by_job[job]
        del pods[pod.name]
        if not pods:
            del self._by_job[job]

    def _differs(self, pod: KnownPod | None) -> None:
        if pod is not None and pod.job is not None and self._is_ours(pod):
            self._differs_by(pod.job.uid)

    def _differs_by(self, uid: str) -> None:
        self._stale.add(uid)
        self._changed(uid)

    def _wait_for(self, key: str, pod: KnownPod | None) -> None:
        """Note whether this pod of ours waits for kube-scheduler."""
        waits = pod is not None and pod.view is not None and not (pod.node or pod.ended or pod.view.deleting)
        if waits and self._is_ours(pod):
            self._unbound.add(key)
        elif key in self._unbound:
            self._unbound.remove(key)
            self.served += 1

    def _account(self, pod: KnownPod, sign: int) -> None:
        if pod.node and not pod.ended:
            self._take(pod.node, pod.request.times(sign))


def known_pod(pod: Pod, before: KnownPod | None) -> KnownPod:
    """What we keep of a pod. The view that says the same as before is the one of before."""
    meta, spec = pod.metadata, pod.spec
    same = before is not None and before.uid == meta.uid
    job = job_of(meta)
    request = (before.request if same and before is not None and before.job and job else None) or asks_for(spec)
    view = pod_view(pod, job.uid) if job is not None else None
    if view is not None:
        view = replace(view, request=request)
    ended, told = pod.status.phase in _ENDED, same and before is not None and before.told
    if same and before is not None and before.view is not None and view is not None:
        if before.ended and not before.view.deleting:
            view = replace(view, deleting=False)  # it had ended before it was told to
        elif told and (before.ended or not ended):
            view = replace(view, deleting=True)  # as it was a moment before
        if before.view == view:
            view = before.view
    return KnownPod(
        uid=meta.uid,
        version=meta.version,
        namespace=meta.namespace,
        name=meta.name,
        job=job,
        view=view,
        node=spec.node_name,
        request=request,
        ended=ended,
        told=told,
        ip=pod.status.pod_ip,
        collector=any(one.name == COLLECTOR for one in spec.init_containers),
        ending=ending_of(pod.status.init_container_statuses) if view is not None else None,
    )


def created_pod(meta: PodMeta, job_uid: str, node: str, request: Resources) -> KnownPod:
    """A pod that we just created, pinned to `node`, as the watch will show it a moment later.

    `request` is what its template asks for; what the API server made of that is read once the watch shows it.
    """
    job = job_of(meta)
    view = pod_view(Pod(metadata=meta), job_uid) if job is not None and job.uid == job_uid else None
    return KnownPod(
        uid=meta.uid,
        version=meta.version,
        namespace=meta.namespace,
        name=meta.name,
        job=None if view is None else job,
        view=None if view is None else replace(view, node=node, request=request),
        node="",
        request=Resources(),  # read once the watch shows it, which is before it takes room
        ended=False,
    )


def job_of(meta: PodMeta) -> JobName | None:
    """The job whose pod this is if there is such a job: the one that owns it, in its namespace, if its name is the one
    that we give to the pod that its labels say it is. Anybody may write that a pod is somebody's."""
    seat = _seat(meta)
    owner = next((one for one in meta.owner_references if one.controller and _is_job(one.api_version, one.kind)), None)
    if owner is None or seat is None or meta.name != pod_name(owner.name, owner.uid, *seat):
        return None
    return JobName(owner.uid, meta.namespace, owner.name)


def _seat(meta: PodMeta) -> tuple[str, int, int] | None:
    """Role, index and attempt, as its labels say; None where they do not."""
    try:
        role, index, attempt = meta.labels[ROLE], int(meta.labels[INDEX]), int(meta.labels[ATTEMPT])
    except (KeyError, ValueError):
        return None
    return (role, index, attempt) if index >= 0 and attempt >= 0 else None


def pod_view(pod: Pod, job_uid: str) -> PodView | None:
    """The pod of a job as the engine sees it; None when its labels do not say which one it is."""
    meta, status, seat = pod.metadata, pod.status, _seat(pod.metadata)
    if seat is None:
        return None
    role, index, attempt = seat
    phase = _PHASES.get(status.phase, "Pending")
    ended = _first_failure(pod) if phase == "Failed" else _main_end(pod)
    return PodView(
        name=meta.name,
        job_uid=job_uid,
        role=role,
        index=index,
        attempt=attempt,
        node=pod.spec.node_name or _pin(pod),
        phase=phase,
        ready=any(c.type == "Ready" and c.status == "True" for c in status.conditions),
        unschedulable=any(c.type == "PodScheduled" and c.status == "False" for c in status.conditions),
        deleting=meta.deletion_timestamp is not None,
        exit_code=None if ended is None else ended.exit_code,
        reason=_reason(pod, ended) if phase == "Failed" else "",
        finished_at=seconds(ended.finished_at) if ended is not None and phase in _ENDED else None,
        log_tail=ended.message[-_TAIL_BYTES:] if ended is not None and phase == "Failed" else "",
    )


def _pin(pod: Pod) -> str:
    """The node that a pod of ours is bound to be on: the first field of the first term we wrote."""
    affinity = pod.spec.affinity
    required = affinity.node_affinity.required if affinity and affinity.node_affinity else None
    for term in required.node_selector_terms if required else ():
        for line in term.match_fields:
            if line.key == "metadata.name" and len(line.values) == 1:
                return line.values[0]
    return ""


def _main_end(pod: Pod) -> Terminated | None:
    main = pod.spec.containers[0].name if pod.spec.containers else ""
    return next((one.state.terminated for one in pod.status.container_statuses if one.name == main), None)


def _first_failure(pod: Pod) -> Terminated | None:
    """How the main container failed, or else the container that failed first."""
    main = _main_end(pod)
    if main is not None and main.exit_code != 0:
        return main
    failed = [one.state.terminated for one in pod.status.container_statuses if _has_failed(one)]
    return min((end for end in failed if end is not None), key=lambda end: end.finished_at or "", default=main)


def _has_failed(container: ContainerStatus) -> bool:
    return container.state.terminated is not None and container.state.terminated.exit_code != 0


def _reason(pod: Pod, ended: Terminated | None) -> str:
    """Why it failed. A disruption is none of the job's doing, whatever the containers say."""
    if any(c.type == "DisruptionTarget" and c.status == "True" for c in pod.status.conditions):
        return "DisruptionTarget"
    return pod.status.reason or (ended.reason if ended is not None else "")


def _is_job(api_version: str, kind: str) -> bool:
    return kind == TRAINING_JOBS.kind and api_version.partition("/")[0] == TRAINING_JOBS.group


def _key(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
