"""The CustomResourceDefinitions: names, printer columns, and the schema of what users write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tools.crdgen.schema import object_schema

from muster.api.spec import API_VERSION, Flavor, Queue, TraceCapture, TrainingJob, WorkloadRecord

GROUP, _, VERSION = API_VERSION.partition("/")


@dataclass(frozen=True, slots=True)
class PrinterColumn:
    """One column of `kubectl get`; `wide`: shown with `-o wide` only."""

    name: str
    path: str
    type: str = "string"
    description: str = ""
    wide: bool = False

    def as_manifest(self) -> dict[str, Any]:
        optional = {"description": self.description, "priority": int(self.wide)}
        return {"name": self.name, "type": self.type, "jsonPath": self.path} | {k: v for k, v in optional.items() if v}


@dataclass(frozen=True, slots=True)
class CustomResource:
    """The names and columns of one CRD. `has_status`: its status is a subresource."""

    model: type[TrainingJob | Queue | Flavor | TraceCapture | WorkloadRecord]
    plural: str
    short_names: tuple[str, ...]
    columns: tuple[PrinterColumn, ...]
    namespaced: bool = False
    scale: Mapping[str, str] = field(default_factory=dict)
    categories: tuple[str, ...] = ("muster",)
    has_status: bool = True

    @property
    def name(self) -> str:
        return str(self.model.model_fields["kind"].default)


_AGE = PrinterColumn("Age", ".metadata.creationTimestamp", "date")


def _condition(type_: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{type_}")].{field}'


KINDS = (
    CustomResource(
        TrainingJob,
        "trainingjobs",
        ("tj",),
        (
            PrinterColumn("Phase", ".status.phase"),
            PrinterColumn("Queue", ".spec.queue"),
            PrinterColumn("Ready", ".status.podsReady", "integer", "Pods that are ready."),
            PrinterColumn("Pods", ".status.podsWanted", "integer", "Pods of the attempt."),
            PrinterColumn("Position", ".status.queuePosition", "integer", "Place in the queue."),
            PrinterColumn("Reason", ".status.reason", "string", "Why it waits, starts, leaves or has ended."),
            _AGE,
            PrinterColumn("Priority", ".status.priority", "integer", "With the value of a PriorityClass.", wide=True),
            PrinterColumn("Restarts", ".status.restarts", "integer", wide=True),
            PrinterColumn("Estimated-Start", ".status.estimatedStart", wide=True),
            PrinterColumn(
                "Step", ".status.lastCheckpoint.step", "integer", "Step of the newest checkpoint.", wide=True
            ),
            PrinterColumn("Message", _condition("Admitted", "message"), wide=True),
        ),
        namespaced=True,
        scale={
            "specReplicasPath": ".spec.elasticReplicas",
            "statusReplicasPath": ".status.elasticReplicas",
            "labelSelectorPath": ".status.selector",
        },
        categories=("all", "muster"),
    ),
    CustomResource(
        Queue,
        "queues",
        ("mq",),
        (
            PrinterColumn("Parent", ".spec.parent"),
            PrinterColumn("Weight", ".spec.weight", "number"),
            PrinterColumn("Pending", ".status.usage.pendingJobs", "integer", "Pending jobs, with queues below."),
            PrinterColumn("Admitted", ".status.usage.admittedJobs", "integer", "Admitted jobs, with queues below."),
            PrinterColumn("Active", _condition("Active", "status")),
            PrinterColumn("Overcommitted", _condition("Overcommitted", "status")),
            PrinterColumn("Reason", _condition("Active", "reason")),
            _AGE,
            PrinterColumn("Used", ".status.usage.used", "string", "Charged usage, with queues below.", wide=True),
            PrinterColumn("Guaranteed", ".status.usage.guaranteed", wide=True),
            PrinterColumn("Message", _condition("Active", "message"), wide=True),
        ),
    ),
    CustomResource(
        Flavor,
        "flavors",
        ("mf",),
        (
            PrinterColumn("Widest-Level", ".spec.topology[0].name"),
            PrinterColumn(
                "Overlapping", _condition("Overlapping", "status"), "string", "True: some nodes match two flavors."
            ),
            PrinterColumn("Valid", _condition("Valid", "status"), "string", "False: the operator cannot read it."),
            _AGE,
            PrinterColumn("Message", _condition("Overlapping", "message"), wide=True),
        ),
    ),
    CustomResource(
        TraceCapture,
        "tracecaptures",
        ("tc",),
        (
            PrinterColumn("Job", ".spec.job"),
            PrinterColumn("Phase", ".status.phase"),
            PrinterColumn("First-Step", ".status.startStep", "integer", "The first step, equal on all ranks."),
            PrinterColumn("Reason", ".status.reason"),
            _AGE,
            PrinterColumn("Message", ".status.message", wide=True),
        ),
        namespaced=True,
    ),
    CustomResource(
        WorkloadRecord,
        "workloads",
        ("mw",),
        (
            PrinterColumn("Kind", ".spec.objectRef.kind"),
            PrinterColumn("Object", ".spec.objectRef.name"),
            PrinterColumn("Phase", ".status.phase"),
            PrinterColumn("Queue", ".spec.queue"),
            PrinterColumn("Position", ".status.queuePosition", "integer", "Place in the queue."),
            PrinterColumn("Reason", ".status.reason", "string", "Why it waits, starts, leaves or has ended."),
            _AGE,
            PrinterColumn("Message", _condition("Admitted", "message"), wide=True),
        ),
        namespaced=True,
        has_status=False,
    ),
)


def crd(kind: CustomResource) -> dict[str, Any]:
    """The CustomResourceDefinition of one kind."""
    names = {
        "kind": kind.name,
        "listKind": f"{kind.name}List",
        "plural": kind.plural,
        "singular": kind.name.lower(),
        "shortNames": list(kind.short_names),
        "categories": list(kind.categories),
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": names,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": ({"status": {}} if kind.has_status else {})
                    | ({"scale": dict(kind.scale)} if kind.scale else {}),
                    "additionalPrinterColumns": [column.as_manifest() for column in kind.columns],
                    "schema": {"openAPIV3Schema": object_schema(kind.model)},
                }
            ],
        },
    }
