"""All watches together: started at once, seen to the end of their first lists, started anew when asked."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from muster_operator.kube import resources
from muster_operator.kube.api import Api
from muster_operator.kube.reflector import Reflector
from muster_operator.sight import shapes
from muster_operator.sight.world import Sight

_LOG = logging.getLogger("muster.operator")


class Watching:
    """Keeps `sight` up to date. Cancelling `run` ends it."""

    def __init__(self, api: Api, sight: Sight) -> None:
        self._reflectors: list[Reflector[Any]] = [
            Reflector(api, resources.NODES, shapes.Node, sight.nodes),
            Reflector(api, resources.PODS, shapes.Pod, sight.pods),
            Reflector(api, resources.NAMESPACES, shapes.Namespace, sight.namespaces),
            Reflector(api, resources.PRIORITY_CLASSES, shapes.PriorityClass, sight.priority_classes),
            Reflector(api, resources.QUEUES, shapes.Document, sight.queues),
            Reflector(api, resources.FLAVORS, shapes.Document, sight.flavors),
            Reflector(api, resources.TRAINING_JOBS, shapes.Job, sight.jobs),
        ]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """List and watch everything, from scratch if it was started before."""
        self.stop()
        for reflector in self._reflectors:
            reflector.synced.clear()
        self._tasks = [asyncio.create_task(reflector.run()) for reflector in self._reflectors]

    def stop(self) -> None:
        """End all watches."""
        for task in self._tasks:
            task.cancel()
        self._tasks = []

    def missing(self) -> list[str]:
        """What was not listed yet."""
        return [one.resource.plural for one in self._reflectors if not one.synced.is_set()]

    def failure(self) -> BaseException | None:
        """Why a watch ended that never should."""
        return next((task.exception() for task in self._tasks if task.done() and not task.cancelled()), None)

    async def synced(self) -> None:
        """Until everything was listed."""
        for reflector in self._reflectors:
            await reflector.synced.wait()
