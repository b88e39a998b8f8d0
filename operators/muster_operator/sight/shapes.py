"""The parts of Kubernetes objects that we read. Everything else is skipped without being built."""

from __future__ import annotations

import msgspec

from muster_operator.labels import ADMITTED

Amounts = dict[str, str | int | float]


class Meta(msgspec.Struct, rename="camel"):
    """Of any object's metadata."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = "0"
    generation: int = 1
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None

    @property
    def version(self) -> int:
        """The resourceVersion as the number that it is."""
        return int(self.resource_version)


class Owner(msgspec.Struct, rename="camel"):
    """An ownerReference."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    controller: bool = False


class Annotations(msgspec.Struct):
    """Those of a pod that we read."""

    admitted: str = msgspec.field(name=ADMITTED, default="")


class PodMeta(Meta, rename="camel"):
    """Of a pod's metadata."""

    labels: dict[str, str] = {}
    annotations: Annotations = msgspec.field(default_factory=Annotations)
    owner_references: list[Owner] = []


class ContainerResources(msgspec.Struct):
    """What a container asks for."""

    requests: Amounts = {}
    limits: Amounts = {}


class Container(msgspec.Struct, rename="camel"):
    """A container of a pod."""

    name: str = ""
    resources: ContainerResources = msgspec.field(default_factory=ContainerResources)
    restart_policy: str | None = None


class Requirement(msgspec.Struct):
    """One line of a node selector term."""

    key: str = ""
    values: list[str] = []


class NodeSelectorTerm(msgspec.Struct, rename="camel"):
    """Of a node selector term."""

    match_fields: list[Requirement] = []


class NodeSelector(msgspec.Struct, rename="camel"):
    """A required node affinity."""

    node_selector_terms: list[NodeSelectorTerm] = []


class NodeAffinity(msgspec.Struct):
    """Of a node affinity."""

    required: NodeSelector | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)


class Affinity(msgspec.Struct, rename="camel"):
    """Of an affinity."""

    node_affinity: NodeAffinity | None = None


class Present(msgspec.Struct):
    """An object of which it only matters that it is there."""


class Volume(msgspec.Struct, rename="camel"):
    """Of a volume of a pod."""

    empty_dir: Present | None = None


class PodSpec(msgspec.Struct, rename="camel"):
    """Of a pod's spec. `resources` are those of the whole pod, where the cluster has them."""

    containers: list[Container] = []
    init_containers: list[Container] = []
    overhead: Amounts = {}
    resources: ContainerResources | None = None
    node_name: str = ""
    affinity: Affinity | None = None
    volumes: list[Volume] = []


class Terminated(msgspec.Struct, rename="camel"):
    """How a container ended."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    finished_at: str | None = None


class Waiting(msgspec.Struct):
    """Why a container has not begun."""

    reason: str = ""


class ContainerState(msgspec.Struct):
    """Of a container's state."""

    waiting: Waiting = msgspec.field(default_factory=Waiting)
    running: Present | None = None
    terminated: Terminated | None = None


class ContainerStatus(msgspec.Struct, rename="camel"):
    """Of a container's status. `resources` are those it runs with, `allocated_resources` those its node set aside."""

    name: str = ""
    state: ContainerState = msgspec.field(default_factory=ContainerState)
    resources: ContainerResources | None = None
    allocated_resources: Amounts = {}


class Condition(msgspec.Struct, rename="camel"):
    """A condition of a pod or a node."""

    type: str = ""
    status: str = ""
    reason: str = ""
    last_transition_time: str | None = None


class PodStatus(msgspec.Struct, rename="camel"):
    """Of a pod's status."""

    phase: str = "Pending"
    reason: str = ""
    conditions: list[Condition] = []
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []
    pod_ip: str = msgspec.field(name="podIP", default="")
    resources: ContainerResources | None = None
    allocated_resources: Amounts = {}


class Pod(msgspec.Struct):
    """A pod."""

    metadata: PodMeta
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class Taint(msgspec.Struct):
    """A taint of a node."""

    key: str = ""
    value: str = ""
    effect: str = "NoSchedule"


class NodeMeta(Meta, rename="camel"):
    """Of a node's metadata."""

    labels: dict[str, str] = {}


class NodeSpec(msgspec.Struct):
    """Of a node's spec."""

    taints: list[Taint] = []
    unschedulable: bool = False


class NodeStatus(msgspec.Struct):
    """Of a node's status."""

    allocatable: Amounts = {}
    conditions: list[Condition] = []


class Node(msgspec.Struct):
    """A node."""

    metadata: NodeMeta
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class Namespace(msgspec.Struct):
    """A namespace: its labels."""

    metadata: NodeMeta


class PriorityClass(msgspec.Struct):
    """A priority class: its value."""

    metadata: Meta
    value: int = 0


class DocumentMeta(Meta, rename="camel"):
    """Of the metadata of a Queue, a Flavor or a TrainingJob."""

    finalizers: list[str] = []


class Document(msgspec.Struct):
    """A Queue or a Flavor; spec and status are read by `muster.spec`."""

    metadata: DocumentMeta
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


class Job(msgspec.Struct):
    """A TrainingJob; spec and status are read when they changed."""

    metadata: DocumentMeta
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")
