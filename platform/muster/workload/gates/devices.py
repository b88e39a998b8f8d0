"""The resources of a workload can be counted: nodes list them."""

from __future__ import annotations

from muster.api.validation import PROVIDED_BY_DRA, provided_by_dra
from muster.model import Gang
from muster.workload.gates.gate import Closed, GateState
from muster.workload.protocol import Workload


def devices_gate(workload: Workload, gang: Gang, state: GateState) -> Closed | None:
    """Closed: ResourceProvidedByDRA."""
    requested = {name for role in gang.roles for name, _ in role.request} if state.device_classes else set()
    for resource in sorted(requested & state.device_classes.keys()):
        return Closed(PROVIDED_BY_DRA, provided_by_dra(resource, state.device_classes[resource]))
    return None
