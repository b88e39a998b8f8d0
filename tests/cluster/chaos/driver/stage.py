"""Where troubles happen: the control plane, the operators, and a diary of what is to be done at which time."""

from __future__ import annotations

import heapq
import http.client
import itertools
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.cluster.chaos.driver import cluster_objects
from tests.cluster.chaos.driver.operators import NAMESPACE, Operators
from tests.cluster.chaos.driver.settings import GPUS, KINDS, PER_RACK, Size
from tests.cluster.controlplane.api import Api, Refused
from tests.cluster.controlplane.nodes import Shape
from tests.cluster.controlplane.plane import ControlPlane

Json = dict[str, Any]
GROUP = "/apis/muster.dev/v1alpha1"
SLOW_S = 15.0
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/muster-operator"


class Stage:
    """`at(when, what)`: do something then, in seconds since the start; `pending` tells what is left to do."""

    def __init__(self, plane: ControlPlane, operators: Operators, size: Size) -> None:
        self.plane = plane
        self.operators = operators
        self.size = size
        self.counts: Counter[str] = Counter()  # troubles by name
        self.away: set[str] = set()  # nodes that something is wrong with: one trouble at a time for each
        self.foreign = 0
        self.slow: list[str] = []  # what held the diary up for long: the machine is too small, or something hangs
        self._began = time.monotonic()
        self._diary: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    @property
    def api(self) -> Api:
        """The API as its administrator."""
        return self.plane.api

    # ---- time

    def begin(self) -> None:
        """Time starts now."""
        self._began = time.monotonic()

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Do it then."""
        heapq.heappush(self._diary, (when, next(self._numbers), what))

    @property
    def pending(self) -> int:
        """How many things are still to be done."""
        return len(self._diary)

    def do_what_is_due(self) -> None:
        """In order; returns when the next is not due yet."""
        while self._diary and self._diary[0][0] <= self.now:
            due, _, what = heapq.heappop(self._diary)
            began = self.now
            self.plane.revive_scheduler()
            try:
                what()
            except Refused as refused:  # what it was about has changed meanwhile
                if refused.code not in (404, 409, 422, 429):
                    raise
            if self.now > began + SLOW_S:
                self.slow.append(f"{what.__qualname__.split('.')[0]} due at {due:.0f} s took {self.now - began:.0f} s")

    def persist(self, call: Callable[[], Any]) -> Any:
        """Make a call again until the API server answers."""
        until = time.monotonic() + 60
        while True:
            try:
                return call()
            except Refused as refused:
                if refused.code < 500 and refused.code != 429:
                    raise
                if time.monotonic() > until:
                    raise
            except (OSError, http.client.HTTPException):
                if time.monotonic() > until:
                    raise
            time.sleep(0.2)

    # ---- nodes

    def node_names(self) -> list[str]:
        """All nodes, the ones of each kind by number."""
        return [f"{flavor}-{index}" for flavor in KINDS for index in range(self.size.nodes_of(flavor))]

    def add_node(self, name: str) -> None:
        """Create one, as it has always been."""
        flavor, _, index = name.rpartition("-")
        self.persist(lambda: self.plane.add_nodes(1, shape(flavor), prefix=flavor, first=int(index)))

    def add_all_nodes(self) -> None:
        """At the start."""
        for flavor in KINDS:
            self.plane.add_nodes(self.size.nodes_of(flavor), shape(flavor), prefix=flavor)

    # ---- pods

    def pods(self, **query: str) -> list[Json]:
        """Pods of everybody."""
        items: list[Json] = self.persist(lambda: self.api.items("/api/v1/pods", **query))
        return items

    def create_foreign_pod(self, number: int) -> None:
        """One that is not ours."""
        body = cluster_objects.foreign_pod(f"foreign-{number}", self.size.chance("foreign", number))
        self.persist(lambda: self.api.create("/api/v1/namespaces/default/pods", body))

    # ---- who leads

    def leader(self) -> int | None:
        """The slot of the operator that holds the Lease."""
        try:
            lease = self.persist(lambda: self.api.get(LEASE))
        except Refused:
            return None
        return self.operators.slot_of(lease["spec"].get("holderIdentity") or "")


def shape(flavor: str) -> Shape:
    """What nodes of a flavor have."""
    return Shape(gpus=GPUS, per_rack=PER_RACK, labels={cluster_objects.MODEL: flavor})
