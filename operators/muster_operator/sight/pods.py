"""Pods as the engine sees them: those of the jobs it knows, by job; all others as room that is taken on their nodes.

Whether a pod is ours depends on whether its job is shown to the engine: pods may be listed before their job is, and
outlive it. A pod that has ended takes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from muster.cluster import PodView
from muster.model import Resources
from muster_operator.kube.resources import TRAINING_JOBS
from muster_operator.labels import ATTEMPT, INDEX, ROLE
from muster_operator.sight.amounts import asks_for
from muster_operator.sight.shapes import ContainerStatus, Pod, PodMeta, Terminated
from muster_operator.sight.shelf import Shelf
from muster_operator.sight.times import seconds

_ENDED = ("Succeeded", "Failed")
_PHASES: dict[str, Literal["Pending", "Running", "Succeeded", "Failed", "Lost"]] = {
    "Pending": "Pending", "Running": "Running", "Succeeded": "Succeeded", "Failed": "Failed", "Unknown": "Lost",
}  # fmt: skip
_TAIL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class KnownPod:
    """A pod: as the engine sees it if it belongs to a job (`view`), and what it takes of `node` otherwise."""

    uid: str
    version: int
    namespace: str
    name: str
    job_uid: str  # of the TrainingJob that owns it; "" for all others
    view: PodView | None
    node: str  # where it is bound; "" while it is not
    request: Resources
    ended: bool


class Pods:
    """A sink for pods. `take` is told what foreign pods take more of a node, `changed` when jobs look different."""

    def __init__(self, take: Callable[[str, Resources], None], changed: Callable[[str], None]) -> None:
        self._take = take
        self._changed = changed
        self._shelf = Shelf[KnownPod](self._note)
        self._by_job: dict[str, dict[str, KnownPod]] = {}
        self._shown: set[str] = set()  # jobs that the engine knows
        self._stale: set[str] = set()  # of them, those whose views are to be made anew
        self._views: dict[str, tuple[PodView, ...]] = {}

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

    def deleted(self, pod: KnownPod, version: int) -> None:
        """We asked for its end, and it is on its way."""
        if pod.view is not None:
            gone = replace(pod, version=version, view=replace(pod.view, deleting=True))
            self._shelf.wrote(f"{pod.namespace}/{pod.name}", version, gone)

    def of_job(self, uid: str, name: str) -> KnownPod | None:
        """A pod of a job, by name."""
        return self._by_job.get(uid, {}).get(name)

    # ---- what the engine sees

    def show(self, uid: str, shown: bool) -> None:
        """From now on the engine knows this job, or no longer: its pods are ours, or foreign."""
        if (uid in self._shown) == shown:
            return
        for pod in self._by_job.get(uid, {}).values():
            self._account(pod, 1 if not shown else -1)
        (self._shown.add if shown else self._shown.discard)(uid)
        self._stale.add(uid)

    def views(self) -> Mapping[str, tuple[PodView, ...]]:
        """Pods by job uid; tuples are the same as long as nothing about a job's pods changed."""
        for uid in self._stale:
            pods = self._by_job.get(uid) if uid in self._shown else None
            if not pods:
                self._views.pop(uid, None)
                continue
            fresh = tuple(pod.view for pod in pods.values() if pod.view is not None)
            if self._views.get(uid) != fresh:
                self._views[uid] = fresh
        self._stale.clear()
        return dict(self._views)

    def _note(self, key: str, old: KnownPod | None, new: KnownPod | None) -> None:
        if old is not None:
            self._leave(old, new)
        if new is not None:
            self._enter(old, new)

    def _leave(self, old: KnownPod, new: KnownPod | None) -> None:
        if old.job_uid not in self._shown:
            self._account(old, -1)
        if old.job_uid and (new is None or new.job_uid != old.job_uid):
            pods = self._by_job[old.job_uid]
            del pods[old.name]
            if not pods:
                del self._by_job[old.job_uid]
            self._differs(old.job_uid)

    def _enter(self, old: KnownPod | None, new: KnownPod) -> None:
        if new.job_uid not in self._shown:
            self._account(new, 1)
        if new.job_uid:
            self._by_job.setdefault(new.job_uid, {})[new.name] = new
            if old is None or old.job_uid != new.job_uid or old.view is not new.view:
                self._differs(new.job_uid)

    def _differs(self, uid: str) -> None:
        if uid in self._shown:
            self._stale.add(uid)
            self._changed(uid)

    def _account(self, pod: KnownPod, sign: int) -> None:
        if pod.node and not pod.ended:
            self._take(pod.node, pod.request.times(sign))


def known_pod(pod: Pod, before: KnownPod | None) -> KnownPod:
    """What we keep of a pod. The view that says the same as before is the one of before."""
    meta, spec = pod.metadata, pod.spec
    same = before is not None and before.uid == meta.uid
    owner = next(
        (one.uid for one in meta.owner_references if one.controller and _is_job(one.api_version, one.kind)), ""
    )
    request = (before.request if same and before is not None and owner else None) or asks_for(spec)
    view = pod_view(pod, owner) if owner else None
    if view is not None:
        view = replace(view, request=request)
    if same and before is not None and before.view == view:
        view = before.view
    return KnownPod(
        uid=meta.uid,
        version=meta.version,
        namespace=meta.namespace,
        name=meta.name,
        job_uid=owner if view is not None else "",
        view=view,
        node=spec.node_name,
        request=request,
        ended=pod.status.phase in _ENDED,
    )


def created_pod(meta: PodMeta, job_uid: str, node: str, request: Resources) -> KnownPod:
    """A pod that we just created, pinned to `node`, as the watch will show it a moment later.

    `request` is what its template asks for; what the API server made of that is read once the watch shows it.
    """
    view = pod_view(Pod(metadata=meta), job_uid)
    return KnownPod(
        uid=meta.uid,
        version=meta.version,
        namespace=meta.namespace,
        name=meta.name,
        job_uid=job_uid,
        view=None if view is None else replace(view, node=node, request=request),
        node="",
        request=Resources(),  # read once the watch shows it, which is before it takes room
        ended=False,
    )


def pod_view(pod: Pod, job_uid: str) -> PodView | None:
    """The pod of a job as the engine sees it; None when its labels do not say which one it is."""
    meta, status = pod.metadata, pod.status
    try:
        index, attempt = int(meta.labels[INDEX]), int(meta.labels[ATTEMPT])
        role = meta.labels[ROLE]
    except (KeyError, ValueError):
        return None
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
