"""A simulated cluster with TrainingJobs and objects of another kind, and the controller of that kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tests.kinds.suspended import SuspendedObject
from tests.simulate.scenario_cluster import ScenarioCluster

from muster.cluster import PatchObject, PodView, RemoveJob, Write, WriteStatus
from muster.errors import Conflict
from muster.workload.observed import ObservedState

DELAY_S = 1.0
"""The controller creates and deletes pods this long after a change."""
RUNTIME_S = 60.0
"""An object completes when its pods have run for so long without interruption."""


class MixedCluster(ScenarioCluster):
    """`objects` is by gang key; `patches` has what the engine patched, in order."""

    def __init__(self, *args: Any, objects: Iterable[SuspendedObject] = (), **named: Any) -> None:
        super().__init__(*args, **named)
        self.objects = {one.key: one for one in objects}
        self.patches: list[tuple[str, bool]] = []  # key and `suspend`
        self.object_pods: dict[str, tuple[PodView, ...]] = {}
        self._version = 0

    def observe(self) -> ObservedState:
        observed, pods = super().observe(), {uid: pods for uid, pods in self.object_pods.items() if pods}
        workloads = (*observed.workloads, *self.objects.values())
        return replace(observed, workloads=workloads, pods={**observed.pods, **pods})

    def apply_one(self, write: Write) -> None:
        one = None if not hasattr(write, "job_uid") else self.objects.get(write.job_uid)
        if one is None:
            super().apply_one(write)
        elif isinstance(write, WriteStatus):
            if one.metadata.resource_version != write.resource_version:
                raise Conflict("the object was changed meanwhile")
            self.change(one.key, status=write.status)
        elif isinstance(write, PatchObject):
            assert isinstance(write.patch, dict)
            self.patches.append((one.key, write.patch["suspend"]))
            self.change(one.key, **write.patch)
            self.schedule(self.now + DELAY_S, lambda: self._control(write.job_uid))
        elif isinstance(write, RemoveJob):
            del self.objects[one.key]

    def change(self, uid: str, **fields: Any) -> None:
        """Change fields of an object."""
        self._version += 1
        meta = self.objects[uid].metadata.model_copy(update={"resource_version": f"o{self._version}"})
        self.objects[uid] = replace(self.objects[uid], metadata=meta, **fields)

    def _control(self, uid: str) -> None:
        """The controller of the kind: it creates pods of an object that is not suspended, and deletes the others."""
        one, pods = self.objects[uid], self.object_pods.get(uid, ())
        if one.suspend:
            self.object_pods[uid] = ()
        elif not pods:
            attempt, where = one.status.attempt, [one.nodes[index % len(one.nodes)] for index in range(one.pods)]
            self.object_pods[uid] = tuple(
                PodView(f"{uid}-{index}", uid, "pods", index, attempt, node, "Running", ready=True, request=one.request)
                for index, node in enumerate(where)
            )
            self.schedule(self.now + RUNTIME_S, lambda: self._complete(uid, attempt))

    def _complete(self, uid: str, attempt: int) -> None:
        one = self.objects[uid]
        if not one.suspend and one.status.attempt == attempt:
            ended = (replace(pod, phase="Succeeded", ready=False) for pod in self.object_pods[uid])
            self.object_pods[uid] = tuple(ended)
            self.change(uid, outcome="Complete")
