"""Everything we see, put together: the world that the engine decides from."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from muster import spec
from muster.cluster import Beat, World
from muster_operator.sight import small
from muster_operator.sight.documents import Documents
from muster_operator.sight.jobs import Jobs, Learned
from muster_operator.sight.nodes import Nodes
from muster_operator.sight.pods import Pods
from muster_operator.sight.shapes import Namespace, PriorityClass


class Sight:
    """The sinks of all resources. `changed` is called, often, when the engine would see a difference."""

    def __init__(self, learned: Learned, changed: Callable[[], None], clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.nodes = Nodes(changed)
        self.pods = Pods(self.nodes.take, lambda uid: changed())
        self.jobs = Jobs(learned, self.pods.show, changed)
        self.queues = Documents(spec.Queue, changed)
        self.flavors = Documents(spec.Flavor, changed)
        self.namespaces = small.ByName[Namespace, Mapping[str, str]](small.labels, changed)
        self.priority_classes = small.ByName[PriorityClass, int](small.value, changed)
        self.beats: dict[str, Beat] = {}

    def observe(self) -> World:
        """The world now. Its parts are not changed afterwards, so that another thread may read them."""
        return World(
            now=self._clock(),
            nodes=self.nodes.views(),
            flavors=self.flavors.all(),
            queues=self.queues.all(),
            jobs=self.jobs.shown(),
            pods=self.pods.views(),
            beats=dict(self.beats),
            namespaces=self.namespaces.values(),
            priority_classes=self.priority_classes.values(),
            rejections=self.jobs.refusals(),
        )
