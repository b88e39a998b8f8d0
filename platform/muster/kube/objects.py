"""The fields of Kubernetes objects that the operator reads; msgspec skips all others without building them."""

from __future__ import annotations

import msgspec

ResourceList = dict[str, str | int | float]


class V1ObjectMeta(msgspec.Struct, rename="camel"):
    """Metadata of any object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = "0"
    generation: int = 1
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None

    @property
    def version(self) -> int:
        """The resourceVersion as a number."""
        return int(self.resource_version)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class V1OwnerReference(msgspec.Struct, rename="camel"):
    """An ownerReference."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    controller: bool = False


class V1PodAnnotations(
    msgspec.Struct,
    frozen=True,
    rename={"queue": "muster.dev/queue", "signature": "muster.dev/signature", "object": "muster.dev/object"},
):
    """The annotations that Muster gives a pod (`muster_operator.runners.create_pods.pod_signatures`), or the template
    of an object of another kind (`muster.kinds.suspended`)."""

    queue: str = ""
    signature: str = ""
    object: str = ""


class V1PodMeta(V1ObjectMeta, rename="camel"):
    """Metadata of a pod."""

    labels: dict[str, str] = {}
    annotations: V1PodAnnotations = V1PodAnnotations()
    owner_references: list[V1OwnerReference] = []
    deletion_grace_period_seconds: int | None = None


class V1ResourceRequirements(msgspec.Struct):
    """Resources of a container."""

    requests: ResourceList = {}
    limits: ResourceList = {}


class V1PodSchedulingGate(msgspec.Struct):
    """What keeps a pod from being bound."""

    name: str = ""


class V1Container(msgspec.Struct, rename="camel"):
    """A container of a pod."""

    name: str = ""
    resources: V1ResourceRequirements = msgspec.field(default_factory=V1ResourceRequirements)
    restart_policy: str | None = None


class PresenceMarker(msgspec.Struct):
    """An object of which only the presence matters."""


class V1NodeSelectorRequirement(msgspec.Struct):
    """One expression of a node selector term."""

    key: str = ""
    operator: str = ""
    values: list[str] = []


class V1NodeSelectorTerm(msgspec.Struct, rename="camel"):
    """A term of a node selector."""

    match_fields: list[V1NodeSelectorRequirement] = []
    match_expressions: list[PresenceMarker] = []


class V1NodeSelector(msgspec.Struct, rename="camel"):
    """A required node affinity."""

    node_selector_terms: list[V1NodeSelectorTerm] = []


class V1NodeAffinity(msgspec.Struct):
    """Node affinity of a pod."""

    required: V1NodeSelector | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)


class V1Affinity(msgspec.Struct, rename="camel"):
    """Affinity of a pod."""

    node_affinity: V1NodeAffinity | None = None


class V1Volume(msgspec.Struct, rename="camel"):
    """A volume of a pod."""

    empty_dir: PresenceMarker | None = None


class V1DeviceClassSpec(msgspec.Struct, rename="camel"):
    """Spec of a device class. `extended_resource_name`: the extended resource that it provides."""

    extended_resource_name: str | None = None


class V1DeviceClass(msgspec.Struct):
    """A device class: devices that are allocated dynamically (DRA)."""

    metadata: V1ObjectMeta
    spec: V1DeviceClassSpec = msgspec.field(default_factory=V1DeviceClassSpec)


class V1PodSchedulingGroup(msgspec.Struct, rename="camel"):
    """The PodGroup of a pod."""

    pod_group_name: str = ""


class V1PodSpec(msgspec.Struct, rename="camel"):
    """Spec of a pod. `resources`: of the whole pod, where the cluster supports them."""

    containers: list[V1Container] = []
    init_containers: list[V1Container] = []
    overhead: ResourceList = {}
    resources: V1ResourceRequirements | None = None
    node_name: str = ""
    termination_grace_period_seconds: int = 30
    affinity: V1Affinity | None = None
    scheduling_gates: list[V1PodSchedulingGate] = []
    tolerations: msgspec.Raw = msgspec.Raw(b"null")
    volumes: list[V1Volume] = []
    scheduling_group: V1PodSchedulingGroup | None = None


class V1ContainerStateTerminated(msgspec.Struct, rename="camel"):
    """How a container ended."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    finished_at: str | None = None


class V1ContainerStateWaiting(msgspec.Struct):
    """Why a container has not started."""

    reason: str = ""


class V1ContainerState(msgspec.Struct):
    """State of a container."""

    waiting: V1ContainerStateWaiting = msgspec.field(default_factory=V1ContainerStateWaiting)
    running: PresenceMarker | None = None
    terminated: V1ContainerStateTerminated | None = None


class V1ContainerStatus(msgspec.Struct, rename="camel"):
    """Status of a container. `resources`: those it runs with; `allocated_resources`: those the kubelet has
    allocated."""

    name: str = ""
    state: V1ContainerState = msgspec.field(default_factory=V1ContainerState)
    resources: V1ResourceRequirements | None = None
    allocated_resources: ResourceList = {}


class V1Condition(msgspec.Struct, rename="camel"):
    """A condition of a pod or a node."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class V1PodStatus(msgspec.Struct, rename="camel"):
    """Status of a pod."""

    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    start_time: str | None = None
    conditions: list[V1Condition] = []
    container_statuses: list[V1ContainerStatus] = []
    init_container_statuses: list[V1ContainerStatus] = []
    pod_ip: str = msgspec.field(name="podIP", default="")
    resources: V1ResourceRequirements | None = None
    allocated_resources: ResourceList = {}


class V1Pod(msgspec.Struct):
    """A pod."""

    metadata: V1PodMeta
    spec: V1PodSpec = msgspec.field(default_factory=V1PodSpec)
    status: V1PodStatus = msgspec.field(default_factory=V1PodStatus)


class V1Taint(msgspec.Struct):
    """A taint of a node."""

    key: str = ""
    value: str = ""
    effect: str = "NoSchedule"


class V1NodeMeta(V1ObjectMeta, rename="camel"):
    """Metadata of a node."""

    labels: dict[str, str] = {}


class V1NodeSpec(msgspec.Struct):
    """Spec of a node."""

    taints: list[V1Taint] = []
    unschedulable: bool = False


class V1NodeStatus(msgspec.Struct):
    """Status of a node."""

    allocatable: ResourceList = {}
    capacity: ResourceList = {}
    conditions: list[V1Condition] = []


class V1Node(msgspec.Struct):
    """A node."""

    metadata: V1NodeMeta
    spec: V1NodeSpec = msgspec.field(default_factory=V1NodeSpec)
    status: V1NodeStatus = msgspec.field(default_factory=V1NodeStatus)


class V1Namespace(msgspec.Struct):
    """A namespace: its labels."""

    metadata: V1NodeMeta


class V1PriorityClass(msgspec.Struct):
    """A priority class: its value."""

    metadata: V1ObjectMeta
    value: int = 0


class KnownLabels(msgspec.Struct, frozen=True):
    """The label that the operator reads, of jobs. The others may take more memory than everything else of an object."""

    user: str = msgspec.field(default="", name="muster.dev/user")


class CustomObjectMeta(V1ObjectMeta, rename="camel"):
    """Metadata of one of Muster's objects."""

    finalizers: list[str] = []
    labels: KnownLabels = KnownLabels()


class RawCustomObject(msgspec.Struct):
    """One of Muster's objects; `muster.api.spec` parses spec and status."""

    metadata: CustomObjectMeta
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


class QueuedObjectMeta(V1ObjectMeta, rename="camel"):
    """Metadata of an object of another kind that queues."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: list[str] = []
    owner_references: list[V1OwnerReference] = []


class RawQueuedObject(msgspec.Struct):
    """An object of another kind that queues; `muster.kinds.suspended` reads spec and status."""

    metadata: QueuedObjectMeta
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")
