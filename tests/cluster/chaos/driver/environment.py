"""What a run acts on: the control plane, the operators, and a schedule of actions."""

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
WITHIN_S = 180.0
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/muster-operator"


class Environment:
    """`at(when, action)` schedules an action, in seconds since the start; `pending` counts what is left."""

    def __init__(self, plane: ControlPlane, operators: Operators, size: Size) -> None:
        self.plane = plane
        self.operators = operators
        self.size = size
        self.counts: Counter[str] = Counter()  # faults by name
        self.faulty_nodes: set[str] = set()  # one fault at a time for each node
        self.rejecting_until = 0.0  # when the last node that rejects pods recovers
        self.unmanaged = 0
        self.policies = 0
        self.slow: list[str] = []  # actions that took long: the machine is too small, or something hangs
        self._began = time.monotonic()
        self._schedule: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    @property
    def api(self) -> Api:
        """The API as its administrator."""
        return self.plane.api

    # ---- time

    def begin(self) -> None:
        """Start the clock."""
        self._began = time.monotonic()

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Schedule an action."""
        heapq.heappush(self._schedule, (when, next(self._numbers), action))

    @property
    def pending(self) -> int:
        """Scheduled actions that have not run."""
        return len(self._schedule)

    def run_due(self) -> None:
        """Run the actions that are due, in order."""
        while self._schedule and self._schedule[0][0] <= self.now:
            due, _, action = heapq.heappop(self._schedule)
            began = self.now
            self.plane.revive_scheduler()
            try:
                action()
            except Refused as refused:  # its object has changed in between
                if refused.code not in (404, 409, 422, 429):
                    raise
            if self.now > began + SLOW_S:
                self.slow.append(
                    f"{action.__qualname__.split('.')[0]} due at {due:.0f} s took {self.now - began:.0f} s"
                )

    def retry(self, call: Callable[[], Any]) -> Any:
        """Retry a call until the API server answers, for a minute at most."""
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
        """All nodes, those of each flavor by number."""
        return [f"{flavor}-{index}" for flavor in KINDS for index in range(self.size.nodes_of(flavor))]

    def add_node(self, name: str) -> None:
        """Create a node as it was at the start."""
        flavor, _, index = name.rpartition("-")
        self.retry(lambda: self.plane.add_nodes(1, shape(flavor), prefix=flavor, first=int(index)))

    def add_all_nodes(self) -> None:
        """Create all nodes."""
        for flavor in KINDS:
            self.plane.add_nodes(self.size.nodes_of(flavor), shape(flavor), prefix=flavor)

    # ---- pods

    def pods(self, **query: str) -> list[Json]:
        """All pods."""
        items: list[Json] = self.retry(lambda: self.api.items("/api/v1/pods", **query))
        return items

    def create_unmanaged_pod(self, number: int) -> None:
        """Create a pod that no job owns."""
        body = cluster_objects.unmanaged_pod(f"foreign-{number}", self.size.rng("foreign", number))
        self.retry(lambda: self.api.create("/api/v1/namespaces/default/pods", body))

    # ---- operators

    def leader(self) -> int | None:
        """The slot of the operator that holds the Lease."""
        try:
            lease = self.retry(lambda: self.api.get(LEASE))
        except Refused:
            return None
        return self.operators.slot_of(lease["spec"].get("holderIdentity") or "")


def shape(flavor: str) -> Shape:
    """The shape of a node of this flavor."""
    return Shape(gpus=GPUS, per_rack=PER_RACK, labels={cluster_objects.MODEL: flavor})


def wait_for(progress: Callable[[], None], holds: Callable[[], bool]) -> bool:
    """Wait until it holds, WITHIN_S at most; whether it does."""
    until = time.monotonic() + WITHIN_S
    while not (found := holds()) and time.monotonic() < until:
        progress()
        time.sleep(0.3)
    return found
