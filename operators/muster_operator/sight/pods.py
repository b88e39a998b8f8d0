"""Pods as the engine sees them: those of the jobs it knows, by job; all others as room that is taken on their nodes.

Whether a pod is ours depends on whether its job is shown to the engine: pods may be listed before their job is, and
outlive it. A pod that has ended takes nothing; one that is gone may be shown all the same (`departed`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import replace

from muster.cluster import PodView
from muster.model import Resources
from muster_operator.sight.departed import Departed
from muster_operator.sight.known_pod import JobName, KnownPod, known_pod
from muster_operator.sight.shapes import Pod
from muster_operator.sight.shelf import Shelf


class Pods:
    """A sink for pods. `take` is told what foreign pods take more of a node, `changed` when jobs look different,
    `ended` of pods whose collector has said its last words, `admits` of jobs whose pods say that they are admitted.
    `named` tells which job has a uid; None: none that is known."""

    def __init__(
        self,
        take: Callable[[str, Resources], None],
        changed: Callable[[str], None],
        named: Callable[[str], JobName | None],
        ended: Callable[[KnownPod], None] = lambda pod: None,
        admits: Callable[[JobName], None] = lambda job: None,
    ) -> None:
        self._take = take
        self._changed = changed
        self._named = named
        self._ended = ended
        self._admits = admits
        self._shelf = Shelf[KnownPod](self._note)
        self._by_job: dict[JobName, dict[str, KnownPod]] = {}
        self._shown: dict[str, JobName] = {}  # jobs that the engine knows
        self._stale: set[str] = set()  # of them, those whose views are to be made anew
        self._views: dict[str, tuple[PodView, ...]] = {}
        self._departed = Departed[JobName]()
        self._unbound: set[str] = set()  # of our pods, by namespace/name
        self.served = 0  # how many of them wait no more

    # ---- what is seen

    def keep_only(self, keys: set[str], version: int) -> None:
        """There are no others."""
        self._shelf.keep_only(keys, version)

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

    def all(self) -> Iterable[KnownPod]:
        """All pods, of whomever they are."""
        return self._shelf

    def of(self, job: JobName) -> Collection[KnownPod]:
        """The pods that are a job's, whether it is shown or not."""
        return self._of(job).values()

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
        if new is not None and new.job is not None and new.claim is not None and (old is None or old.uid != new.uid):
            self._admits(new.job)

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


def _key(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
