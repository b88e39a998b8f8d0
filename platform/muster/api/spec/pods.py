"""A PodTemplateSpec of Kubernetes, and the resource request of its pods.

Fields that Muster reads or refuses are declared; all others are preserved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, field_validator, model_validator

from muster.api.quantity import HUGE_PAGES_PREFIX, parse_quantity
from muster.api.spec.fields import (
    LABEL_KEY,
    MAX_LABEL_KEY,
    ExtensibleModel,
    LabelKey,
    Labels,
    LabelValue,
    Quantities,
    ValidatedAs,
)
from muster.api.spec.limits import check_depth
from muster.model import Resources

RESOURCE_CLAIMS_NOT_ALLOWED = (
    "resourceClaims must not be set: devices that a ResourceClaim allocates are not charged to a queue; request an "
    "extended resource such as nvidia.com/gpu instead"
)
_TEMPLATE_PARENT_LEVELS = 4  # job, spec, roles, role
ParseAmount = Callable[[str, str], int]
"""Converts a quantity of a resource (value, resource) to an integer."""


class PodToleration(ExtensibleModel):
    """A taint of nodes that the pod accepts."""

    key: Annotated[str, Field(pattern=f"^$|{LABEL_KEY}", max_length=MAX_LABEL_KEY)] = ""
    """The taint's key. Empty with operator Exists: every taint."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """Equal compares `value`, Exists does not."""
    value: LabelValue = ""
    """The taint's value."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """The taint's effect. Default: all three. NoExecute with `tolerationSeconds` tolerates nothing when nodes are
    chosen."""


def _check_tolerations_depth(tolerations: Any) -> Any:
    check_depth(tolerations, parent_levels=2)
    return tolerations


Tolerations: TypeAlias = Annotated[
    list[Annotated[dict[str, Any], ValidatedAs(PodToleration)]],
    Field(max_length=64),
    BeforeValidator(_check_tolerations_depth),
]
"""As in Kubernetes: key, operator, value, effect."""


class NodeSelectorRequirement(ExtensibleModel):
    """One requirement on a node."""

    key: LabelKey
    """A label or field of the node."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """The comparison."""
    values: list[str] = []
    """The values to compare with."""


class NodeSelectorTerm(ExtensibleModel):
    """Requirements that must all match."""

    match_expressions: Annotated[list[NodeSelectorRequirement], Field(max_length=16)] = []
    """Requirements on labels of the node."""
    match_fields: Annotated[list[NodeSelectorRequirement], Field(max_length=16)] = []
    """Requirements on fields of the node: metadata.name."""


class NodeSelector(ExtensibleModel):
    """Terms of which one must match."""

    node_selector_terms: Annotated[list[NodeSelectorTerm], Field(min_length=1, max_length=16)]
    """The terms, of which one must match."""


class NodeAffinity(ExtensibleModel):
    """Which nodes the pod may run on."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    """Required node affinity, respected by the planner. Preferences are preserved and ignored."""


class Affinity(ExtensibleModel):
    """Affinity of the pod."""

    node_affinity: NodeAffinity | None = None
    """Node affinity."""


class EnvVar(ExtensibleModel):
    """A literal variable, or one with `valueFrom` (preserved for Kubernetes, refused on one host)."""

    name: str
    """The variable's name."""
    value: str | None = None
    """Its value."""


class ContainerResources(ExtensibleModel):
    """Requests and limits; a limit without a request is also the request."""

    requests: Quantities = {}
    """Requested resources."""
    limits: Quantities = {}
    """Maximum resources."""


class VolumeMount(ExtensibleModel):
    """The mount of a volume in a container."""

    name: str = ""
    """The volume's name."""
    mount_path: str = ""
    """The folder in the container."""
    sub_path: str = ""
    """The folder of the volume to mount instead of its root."""
    sub_path_expr: str = ""
    """As subPath, with variables of the container expanded."""


class ContainerPort(ExtensibleModel):
    """A port on which a container listens."""

    name: str = ""
    """The name in the pod."""
    container_port: int | None = None
    """The port number."""


class SecurityContext(ExtensibleModel):
    """User and group of a pod or container; the collector uses the same."""

    run_as_user: int | None = None
    """The user id."""
    run_as_group: int | None = None
    """The group id."""
    se_linux_options: dict[str, Any] | None = None
    """SELinux labels."""


class PersistentVolumeClaimSource(ExtensibleModel):
    """A volume that outlives its pods."""

    claim_name: str = ""
    """The PersistentVolumeClaim."""


class Volume(ExtensibleModel):
    """A volume; the volume of the run folder is determined from those of the template."""

    name: str = ""
    """The name in the pod."""
    persistent_volume_claim: PersistentVolumeClaimSource | None = None
    """A PersistentVolumeClaim of the job's namespace."""
    empty_dir: dict[str, Any] | None = None
    """A folder that is deleted with the pod."""
    ephemeral: dict[str, Any] | None = None
    """A volume that is deleted with the pod."""


class Container(ExtensibleModel):
    """The fields of a container that Muster reads."""

    name: str = "main"
    """The name in the pod."""
    image: str | None = None
    """The image. Required on Kubernetes, ignored with a warning on one host."""
    command: list[str] = []
    """The program. Default: that of the image."""
    args: list[str] = []
    """The program's arguments."""
    env: list[EnvVar] = []
    """Variables in addition to Muster's `MUSTER_*`, from which `python -m muster_components.launch` derives those of
    torchrun."""
    working_dir: str | None = None
    """The working directory."""
    resources: ContainerResources = ContainerResources()
    """Requests and limits."""
    restart_policy: str | None = None
    """For init containers: Always makes it a native sidecar."""
    ports: list[Annotated[dict[str, Any], ValidatedAs(ContainerPort)]] = []
    """Ports. The collector's port is refused."""
    volume_mounts: list[Annotated[dict[str, Any], ValidatedAs(VolumeMount)]] = []
    """Volume mounts. An own mount of the run folder's volume is preserved."""
    security_context: Annotated[dict[str, Any], ValidatedAs(SecurityContext)] = {}
    """User and group of the container."""


class PodSpec(ExtensibleModel):
    """The fields of a pod's spec that Muster reads."""

    containers: Annotated[list[Container], Field(min_length=1, max_length=32)]
    """The first one is the trainer, whose exit code is the pod's."""
    init_containers: Annotated[list[Container], Field(max_length=32)] = []
    """Run before the containers, in sequence; with restartPolicy Always they run as sidecars."""
    node_selector: Labels = {}
    """Labels that the node must have."""
    affinity: Annotated[dict[str, Any], ValidatedAs(Affinity)] = {}
    """The planner respects required node affinity; kube-scheduler evaluates the rest."""
    tolerations: Tolerations = []
    """Tolerations, in addition to those of the flavor."""
    volumes: list[Annotated[dict[str, Any], ValidatedAs(Volume)]] = []
    """Volumes."""
    security_context: Annotated[dict[str, Any], ValidatedAs(SecurityContext)] = {}
    """Default user and group of the containers."""
    host_network: bool | None = None
    """The pod uses the network of its node, and gets ports of its own for rendezvous and collector."""
    service_account_name: str | None = None
    """The pod's service account. Default: the namespace's default, without a token."""
    resources: ContainerResources = ContainerResources()
    """Pod-level requests and limits, instead of those of the containers (Kubernetes 1.34 and later)."""
    resource_claims: list[dict[str, Any]] = []
    """Refused: devices that a ResourceClaim allocates are not charged to a queue."""
    overhead: Quantities = {}
    """Resources of the pod in addition to its containers."""
    termination_grace_period_seconds: Annotated[int, Field(ge=0, le=86_400)] = 30
    """Seconds from SIGTERM to SIGKILL: the time to write a checkpoint."""
    restart_policy: Literal["Never"] = "Never"
    """Must be Never: Muster restarts gangs."""
    node_name: None = None
    """Refused: Muster chooses the node."""
    scheduler_name: None = None
    """Refused: Muster chooses the node, and kube-scheduler binds the pod."""
    priority_class_name: None = None
    """Refused: pods have Muster's own priority class. Use `spec.priorityClassName` of the job."""

    @field_validator("resource_claims")
    @classmethod
    def _no_resource_claims(cls, claims: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if claims:
            raise ValueError(RESOURCE_CLAIMS_NOT_ALLOWED)
        return claims


class TemplateMeta(ExtensibleModel):
    """Labels and annotations of the pods."""

    labels: Labels = {}
    """Labels in addition to those that Muster sets (muster.dev/...)."""
    annotations: dict[str, str] = {}
    """Annotations."""


class PodTemplate(ExtensibleModel):
    """A PodTemplateSpec."""

    metadata: TemplateMeta = TemplateMeta()
    """Labels and annotations of the pods."""
    spec: PodSpec
    """The pods' spec."""

    @model_validator(mode="before")
    @classmethod
    def _check_template_depth(cls, template: Any) -> Any:
        check_depth(template, parent_levels=_TEMPLATE_PARENT_LEVELS)
        return template


def pod_request(pod: PodSpec, parse: ParseAmount = parse_quantity) -> Resources:
    """The effective request of one pod as computed in Kubernetes, `pods: 1` included. Raises as `parse` does.

    The larger of the sum of all containers and the peak while init containers run in sequence, plus overhead. An init
    container with restartPolicy Always (a native sidecar) keeps running, so it counts together with everything that
    starts after it. A limit without a request is also the request. Pod-level requests (`resources` of the pod,
    Kubernetes 1.34 and later) replace those of the containers. See PodRequests in k8s.io/component-helpers/resource,
    and the API server's defaults for pods. The time is linear in the size of the pod, which may be 1.5 MiB.
    """
    running: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in pod.init_containers:
        request = _container_request(container, parse)
        if container.restart_policy == "Always":
            _add_to(running, request)
            continue
        for name, amount in request.items():  # of other resources no more runs then than at the end
            peak[name] = max(peak.get(name, 0), running.get(name, 0) + amount)
    for container in pod.containers:
        _add_to(running, _container_request(container, parse))
    total = _with_pod_level_resources(_max(peak, running), pod.resources, parse)
    _add_to(total, {name: parse(value, name) for name, value in pod.overhead.items()})
    return Resources.of({**total, "pods": 1})


def _with_pod_level_resources(
    of_containers: dict[str, int], pod: ContainerResources | None, parse: ParseAmount
) -> dict[str, int]:
    """The request of the containers, replaced by the pod-level request. A pod-level limit is the request if neither the
    pod nor a container requests that resource; for huge pages, which cannot be overcommitted, also if a container does.

    The API server refuses a pod-level request that is less than the sum of the containers; here the larger one counts.
    """
    if pod is None:
        return of_containers
    requested = dict(pod.requests)
    for name, value in pod.limits.items():
        if name not in of_containers or name.startswith(HUGE_PAGES_PREFIX):
            requested.setdefault(name, value)
    return _max(of_containers, {name: parse(value, name) for name, value in requested.items()})


def _container_request(container: Container, parse: ParseAmount) -> dict[str, int]:
    requested = {**container.resources.limits, **container.resources.requests}
    return {name: parse(value, name) for name, value in requested.items()}


def _add_to(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _max(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {name: max(a.get(name, 0), b.get(name, 0)) for name in {**a, **b}}
