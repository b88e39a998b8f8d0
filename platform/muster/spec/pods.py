"""A PodTemplateSpec of Kubernetes: every field that is read or refused is declared, all others are kept as they are."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, field_validator, model_validator

from muster.spec.depth import check_depth
from muster.spec.fields import LABEL_KEY, MAX_LABEL_KEY, LabelKey, Labels, LabelValue, Quantities
from muster.spec.meta import ExtensibleModel, ValidatedAs

RESOURCE_CLAIMS_NOT_ALLOWED = (
    "resourceClaims is not allowed: devices that a ResourceClaim allocates are not charged to a queue; request an "
    "extended resource such as nvidia.com/gpu, or leave the field out"
)
_TEMPLATE_PARENT_LEVELS = 4  # job, spec, roles, role


class PodToleration(ExtensibleModel):
    """A taint of nodes that the pod accepts."""

    key: Annotated[str, Field(pattern=f"^$|{LABEL_KEY}", max_length=MAX_LABEL_KEY)] = ""
    """The taint's key; empty with operator Exists: every taint."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """Equal compares `value`, Exists does not."""
    value: LabelValue = ""
    """The taint's value."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """The taint's effect; left out: all three."""


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
    """A label of the node, or a field of it."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """How it is compared."""
    values: list[str] = []
    """What it is compared with."""


class NodeSelectorTerm(ExtensibleModel):
    """Requirements that must all hold."""

    match_expressions: Annotated[list[NodeSelectorRequirement], Field(max_length=16)] = []
    """On labels of the node."""
    match_fields: Annotated[list[NodeSelectorRequirement], Field(max_length=16)] = []
    """On fields of the node: metadata.name."""


class NodeSelector(ExtensibleModel):
    """Terms of which one must hold."""

    node_selector_terms: Annotated[list[NodeSelectorTerm], Field(min_length=1, max_length=16)]
    """The terms."""


class NodeAffinity(ExtensibleModel):
    """Which nodes the pod may run on."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    """What a node must fulfil. The planner obeys it; preferences are kept and not read."""


class Affinity(ExtensibleModel):
    """Affinity of the pod."""

    node_affinity: NodeAffinity | None = None
    """To nodes."""


class EnvVar(ExtensibleModel):
    """A literal variable, or one with `valueFrom` (kept for Kubernetes, refused on this host)."""

    name: str
    """The variable's name."""
    value: str | None = None
    """Its value."""


class ContainerResources(ExtensibleModel):
    """Requests and limits; a limit without a request is also the request."""

    requests: Quantities = {}
    """What is set aside."""
    limits: Quantities = {}
    """The most that may be used."""


class VolumeMount(ExtensibleModel):
    """Where a container has a volume."""

    name: str = ""
    """The volume's name."""
    mount_path: str = ""
    """The folder in the container."""
    sub_path: str = ""
    """A folder of the volume that is mounted instead of all of it."""
    sub_path_expr: str = ""
    """The same, with variables of the container."""


class ContainerPort(ExtensibleModel):
    """A port at which a container listens."""

    name: str = ""
    """Its name in the pod."""
    container_port: int | None = None
    """Its number."""


class SecurityContext(ExtensibleModel):
    """As whom a pod or a container runs; the collector runs as the same."""

    run_as_user: int | None = None
    """The user's number."""
    run_as_group: int | None = None
    """The group's number."""
    se_linux_options: dict[str, Any] | None = None
    """Labels of SELinux."""


class PersistentVolumeClaimSource(ExtensibleModel):
    """A volume that outlives its pods."""

    claim_name: str = ""
    """The PersistentVolumeClaim."""


class Volume(ExtensibleModel):
    """A volume: what keeps a run folder is looked for among those of the template."""

    name: str = ""
    """Its name in the pod."""
    persistent_volume_claim: PersistentVolumeClaimSource | None = None
    """A claim of the job's namespace."""
    empty_dir: dict[str, Any] | None = None
    """A folder that goes with the pod."""
    ephemeral: dict[str, Any] | None = None
    """A volume that goes with the pod."""


class Container(ExtensibleModel):
    """A container, as far as it is read."""

    name: str = "main"
    """Its name in the pod."""
    image: str | None = None
    """What it runs; needed on Kubernetes, ignored with a notice on one host."""
    command: list[str] = []
    """The program; left out: the image's."""
    args: list[str] = []
    """The program's arguments."""
    env: list[EnvVar] = []
    """Variables beside Muster's `MUSTER_*`, from which `python -m muster_components.launch` makes those of torchrun."""
    working_dir: str | None = None
    """The folder it starts in."""
    resources: ContainerResources = ContainerResources()
    """What it asks for."""
    restart_policy: str | None = None
    """Of an init container: Always makes it a sidecar that runs beside the others."""
    ports: list[Annotated[dict[str, Any], ValidatedAs(ContainerPort)]] = []
    """Ports; one that the collector needs is refused."""
    volume_mounts: list[Annotated[dict[str, Any], ValidatedAs(VolumeMount)]] = []
    """Where it has the pod's volumes; one of the run folder is kept."""
    security_context: Annotated[dict[str, Any], ValidatedAs(SecurityContext)] = {}
    """As whom it runs."""


class PodSpec(ExtensibleModel):
    """A pod's spec, as far as it is read."""

    containers: Annotated[list[Container], Field(min_length=1, max_length=32)]
    """The first one is the trainer; its exit code is the pod's."""
    init_containers: Annotated[list[Container], Field(max_length=32)] = []
    """Run before the others, one after another; with restartPolicy Always beside them."""
    node_selector: Labels = {}
    """Labels that the node must have."""
    affinity: Annotated[dict[str, Any], ValidatedAs(Affinity)] = {}
    """Required node affinity is obeyed by the planner; the rest is Kubernetes' matter."""
    tolerations: Tolerations = []
    """Taints that the pod accepts, beside those of its flavor."""
    volumes: list[Annotated[dict[str, Any], ValidatedAs(Volume)]] = []
    """Volumes."""
    security_context: Annotated[dict[str, Any], ValidatedAs(SecurityContext)] = {}
    """As whom its containers run that say nothing else."""
    host_network: bool | None = None
    """The pod is on the network of its node: then it meets others at ports of its own."""
    service_account_name: str | None = None
    """The account by which the pod may ask the API server; left out: none."""
    resources: ContainerResources = ContainerResources()
    """Requests and limits of the pod as a whole, in place of those of its containers (Kubernetes 1.34 and later)."""
    resource_claims: list[dict[str, Any]] = []
    """Refused: devices that a ResourceClaim allocates are not charged to a queue."""
    overhead: Quantities = {}
    """What the pod takes beside its containers."""
    termination_grace_period_seconds: Annotated[int, Field(ge=0, le=86_400)] = 30
    """From SIGTERM to SIGKILL: the time to write a checkpoint."""
    restart_policy: Literal["Never"] = "Never"
    """Never: a pod that ends is Muster's matter."""
    node_name: None = None
    """Refused: Muster chooses the node."""
    scheduler_name: None = None
    """Refused: Muster chooses the node, and kube-scheduler checks it."""
    priority_class_name: None = None
    """Refused: pods run under Muster's own priority class; the job has `priorityClassName`."""

    @field_validator("resource_claims")
    @classmethod
    def _no_resource_claims(cls, claims: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if claims:
            raise ValueError(RESOURCE_CLAIMS_NOT_ALLOWED)
        return claims


class TemplateMeta(ExtensibleModel):
    """Labels and annotations of the pods."""

    labels: Labels = {}
    """Labels beside those that Muster sets (muster.dev/...)."""
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
