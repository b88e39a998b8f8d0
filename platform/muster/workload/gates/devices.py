"""The resources of a workload can be counted: nodes list them."""

from __future__ import annotations

from muster.model import Gang
from muster.workload.gates.gate import Closed, GateState
from muster.workload.protocol import Workload


def devices_gate(workload: Workload, gang: Gang, state: GateState, now: float) -> Closed | None:
    """Closed: ResourceProvidedByDRA, although kube-scheduler would allocate the resource."""
    requested = {name for role in gang.roles for name, _ in role.request} if state.device_classes else set()
    for resource in sorted(requested & state.device_classes.keys()):
        message = (
            f"no node lists {resource}; DeviceClass {state.device_classes[resource]} provides it by dynamic resource "
            "allocation (DRA), and such devices cannot be counted; a device plugin is needed"
        )
        return Closed("ResourceProvidedByDRA", message, field="spec.roles")
    return None
