"""All watches together: started at once, seen to the end of their first lists, started anew when asked."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from muster_operator.cache import k8s_types
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.kube import resources
from muster_operator.kube.client import ApiServerClient
from muster_operator.kube.reflector import Reflector

_LOG = logging.getLogger("muster.operator")
_JOB_PAGE_SIZE = 50  # an object may be 1.5 MiB long


class InformerSet:
    """Keeps `sight` up to date. Cancelling `run` ends it."""

    def __init__(self, api: ApiServerClient, sight: ClusterCache) -> None:
        self._reflectors: list[Reflector[Any]] = [
            Reflector(api, resources.NODES, k8s_types.V1Node, sight.nodes),
            Reflector(api, resources.PODS, k8s_types.V1Pod, sight.pods),
            Reflector(api, resources.NAMESPACES, k8s_types.V1Namespace, sight.namespaces),
            Reflector(api, resources.PRIORITY_CLASSES, k8s_types.V1PriorityClass, sight.priority_classes),
            Reflector(api, resources.QUEUES, k8s_types.RawCustomObject, sight.queues),
            Reflector(api, resources.FLAVORS, k8s_types.RawCustomObject, sight.flavors),
            Reflector(api, resources.TRAINING_JOBS, k8s_types.RawTrainingJob, sight.jobs, _JOB_PAGE_SIZE),
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self._failure = ""
        self.failed = asyncio.Event()
        """A watch has ended, which none ever should: from then on the world is not seen as it is."""

    def start(self) -> None:
        """List and watch everything, from scratch if it was started before."""
        self.stop()
        for reflector in self._reflectors:
            reflector.synced.clear()
        self._tasks = [asyncio.create_task(self._watch(reflector)) for reflector in self._reflectors]

    def stop(self) -> None:
        """End all watches."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()

    def unsynced(self) -> list[str]:
        """What was not listed yet."""
        return [one.resource.plural for one in self._reflectors if not one.synced.is_set()]

    def resource_versions(self) -> dict[str, int]:
        """How far each watch has come: the resourceVersion, by resource."""
        return {one.resource.plural: one.version for one in self._reflectors}

    def failure(self) -> str:
        """Which watch ended that never should, and why; empty while all go on."""
        return self._failure

    async def wait_until_synced(self) -> None:
        """Until everything was listed."""
        for reflector in self._reflectors:
            await reflector.synced.wait()

    async def _watch(self, reflector: Reflector[Any]) -> None:
        why = "it returned"
        try:
            await reflector.run()
        except asyncio.CancelledError:
            if self._is_stopped():
                raise
            why = "it was cancelled"
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            _LOG.exception("a watch ended", extra={"resource": reflector.resource.plural})
        self._failure = f"the watch of {reflector.resource.plural} ended: {why}"
        self.failed.set()

    def _is_stopped(self) -> bool:
        """Whether whoever is cancelled now was to be."""
        return asyncio.current_task() not in self._tasks
