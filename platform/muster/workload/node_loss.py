"""Whether a node is lost: no kubelet ends the pods there."""

from __future__ import annotations

from muster.cluster import NodeView
from muster.workload.timeouts import Timeouts


def is_node_lost(node: NodeView | None, now: float, timeouts: Timeouts) -> bool:
    """Whether pods of the node can no longer be running: deleted, out of service, or unknown for too long."""
    if node is None or node.out_of_service:
        return True
    return (
        not node.ready
        and node.not_ready_since is not None
        and now >= node.not_ready_since + timeouts.force_delete_after_s
    )
