"""The leader keeps its Lease, whatever users' programs write.

Operators are killed and frozen most of the time, so this is checked after a pod was marked as hostile only: the driver
marks it when there is no other fault.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.cluster.chaos.checker.objects import Lease, Pod
from tests.cluster.chaos.checker.violation import Finding

CHECKED_S = 60.0
"""After a write to a hostile pod. An operator that works on its message in its event loop does not renew meanwhile, and
another one takes over."""
_RULE = "the leader keeps its Lease"


class LeaseChecks:
    """Remembers until when the holder must stay."""

    def __init__(self) -> None:
        self._until = 0.0
        self._hostile = ""  # the key of the last such pod

    def on_pod(self, pod: Pod | None, at: float) -> None:
        """A pod changed."""
        if pod is not None and pod.hostile:
            self._until, self._hostile = at + CHECKED_S, pod.key

    def check(self, old: Lease | None, lease: Lease, at: float) -> Iterator[Finding]:
        """The Lease was acquired, renewed or released. Those of Kubernetes itself do not count."""
        if lease.key.startswith("kube-") or old is None or not old.holder or at > self._until:
            return
        if lease.holder != old.holder:
            other = lease.holder or "no other operator"
            message = f"{old.holder} lost it to {other} after a hostile message of a pod"
            yield _RULE, lease.key, message, (("Lease", lease.key), ("Pod", self._hostile))
