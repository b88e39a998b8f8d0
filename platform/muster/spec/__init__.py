"""TrainingJob, Queue and Flavor as users write them: the one source of fields, defaults, descriptions and the CRDs.

What one object shows wrong is refused here, by field, value and what would be right; `muster.manifests` makes the API
server refuse the same. What relates objects (an unknown queue, a cycle) is `muster.admission`'s matter. Field names
are those of Kubernetes: camelCase outside, snake_case in Python.
"""

from __future__ import annotations

from muster.spec.fields import (
    API_VERSION,
    MAX_JOB_NAME,
    MAX_REPLICAS,
    MAX_SECONDS,
    Name,
    NamespaceName,
    ObjectName,
    Quantities,
    Seconds,
    Time,
)
from muster.spec.flavors import Flavor, FlavorSpec, FlavorStatus, TopologyLevel
from muster.spec.job_status import (
    ENDED_PHASES,
    BlamedNode,
    CheckpointStatus,
    EvictionStatus,
    FinishedPods,
    HoldStatus,
    LastFailure,
    NodeShare,
    Phase,
    ProgressStatus,
    RoleStatusPlacement,
    TraceStatus,
    TrainingJobStatus,
)
from muster.spec.jobs import (
    FailurePolicy,
    FailureRule,
    RoleSpec,
    TopologyRequest,
    TraceRequest,
    TrainingJob,
    TrainingJobSpec,
    longest_job_name,
)
from muster.spec.meta import Condition, LabelSelector, ObjectMeta, Observed, Open, Strict
from muster.spec.pods import (
    Container,
    ContainerResources,
    EnvVar,
    PodSpec,
    PodTemplate,
    TemplateMeta,
    Tolerations,
)
from muster.spec.queues import (
    FairShareStatus,
    FairShareUsage,
    Queue,
    QueueResources,
    QueueSpec,
    QueueStatus,
)

__all__ = [
    "API_VERSION",
    "ENDED_PHASES",
    "MAX_JOB_NAME",
    "MAX_REPLICAS",
    "MAX_SECONDS",
    "BlamedNode",
    "CheckpointStatus",
    "Condition",
    "Container",
    "ContainerResources",
    "EnvVar",
    "EvictionStatus",
    "FailurePolicy",
    "FailureRule",
    "FairShareStatus",
    "FairShareUsage",
    "FinishedPods",
    "Flavor",
    "FlavorSpec",
    "FlavorStatus",
    "HoldStatus",
    "LabelSelector",
    "LastFailure",
    "Name",
    "NamespaceName",
    "NodeShare",
    "ObjectMeta",
    "ObjectName",
    "Observed",
    "Open",
    "Phase",
    "PodSpec",
    "PodTemplate",
    "ProgressStatus",
    "Quantities",
    "Queue",
    "QueueResources",
    "QueueSpec",
    "QueueStatus",
    "RoleSpec",
    "RoleStatusPlacement",
    "Seconds",
    "Strict",
    "TemplateMeta",
    "Time",
    "Tolerations",
    "TopologyLevel",
    "TopologyRequest",
    "TraceRequest",
    "TraceStatus",
    "TrainingJob",
    "TrainingJobSpec",
    "TrainingJobStatus",
    "longest_job_name",
]
