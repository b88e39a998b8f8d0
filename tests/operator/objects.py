"""Objects in API form, and the engine's writes about them, as small as the tests need."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

from muster.api import spec
from muster.cluster import CreatePod
from muster.kinds.trainingjob.pods import pod_name
from muster.kube.objects import RawCustomObject, V1Node, V1Pod

T = TypeVar("T")
LONG_S = 600.0
"""A time limit that no slow machine exceeds."""


def read(shape: type[T], document: dict[str, Any]) -> T:
    """The object as a watch delivers it."""
    return msgspec.json.decode(json.dumps(document), type=shape)


def job_document(name: str = "llama", version: int = 1, **fields: Any) -> dict[str, Any]:
    """A TrainingJob of one role, `trainer`, with two pods of one GPU. `fields` are those of its spec."""
    role = {"name": "trainer", "replicas": 2, "template": template()}
    meta = {
        "name": name,
        "namespace": "team",
        "uid": f"uid-{name}",
        "generation": 1,
        "resourceVersion": str(version),
        "creationTimestamp": "2026-11-21T10:00:00Z",
    }
    return {"metadata": meta, "spec": {"queue": "research", "roles": [role], **fields}}


def job(name: str = "llama", **fields: Any) -> spec.TrainingJob:
    """The same as the engine sees it."""
    return spec.TrainingJob.model_validate(job_document(name, **fields))


def job_seen(name: str = "llama", version: int = 1, **fields: Any) -> RawCustomObject:
    """The same as a watch delivers it."""
    return read(RawCustomObject, job_document(name, version, **fields))


def capture_document(
    name: str, version: int = 1, job: str = "llama", namespace: str = "default", **status: Any
) -> dict[str, Any]:
    """A TraceCapture of a job."""
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": meta, "spec": {"job": job}, "status": status}


def template(**of_spec: Any) -> dict[str, Any]:
    """A pod template with one container that has one GPU."""
    return {"spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}], **of_spec}}


def create(**fields: Any) -> CreatePod:
    """Pod 1 of 2 of the job above."""
    wanted: dict[str, Any] = {
        "job_uid": "uid-llama",
        "name": "llama-trainer-1-abcde",
        "role": "trainer",
        "index": 1,
        "replicas": 2,
        "attempt": 3,
        "node": "n7",
        "flavor": "h200",
        "rank0_node": "n6",
        "grace_s": 90.0,
    }
    return CreatePod(**{**wanted, **fields})


def name_of(owner: str = "uid-llama", index: int = 0, attempt: int = 0) -> str:
    """Name of a pod of the job with this uid."""
    return pod_name(owner.removeprefix("uid-"), owner, "trainer", index, attempt)


def pod_seen(
    name: str = "",
    version: int = 1,
    *,
    node: str = "n1",
    owner: str = "",
    slot: tuple[int, int] = (0, 0),
    **status: Any,
) -> V1Pod:
    """A pod on a node that requests one GPU. `owner`: uid of its TrainingJob; `slot`: its index and attempt there, from
    which its name follows unless given."""
    name = name or (name_of(owner, *slot) if owner else "p")
    meta: dict[str, Any] = {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": str(version)}
    if owner:
        index, attempt = map(str, slot)
        meta["labels"] = {"muster.dev/role": "trainer", "muster.dev/index": index, "muster.dev/attempt": attempt}
        reference = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "uid": owner, "controller": True}
        meta["ownerReferences"] = [{**reference, "name": owner.removeprefix("uid-")}]
    wanted = template()["spec"] | ({"nodeName": node} if node else {})
    return read(V1Pod, {"metadata": meta, "spec": wanted, "status": {"phase": "Running", **status}})


def node_seen(name: str = "n1", version: int = 1, *, ready: str = "True", **of_spec: Any) -> V1Node:
    """A node with 8 GPUs and 100 pod slots."""
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": "2026-11-21T10:00:00Z"}
    return read(
        V1Node,
        {
            "metadata": {"name": name, "resourceVersion": str(version), "labels": {"rack": "r1"}},
            "spec": of_spec,
            "status": {"allocatable": {"nvidia.com/gpu": "8", "pods": "100"}, "conditions": [condition]},
        },
    )


def terminated(code: int, name: str = "main", at: str = "2026-11-21T10:00:05Z", **more: str) -> dict[str, Any]:
    """Status of a container that ended."""
    return {"name": name, "state": {"terminated": {"exitCode": code, "finishedAt": at, **more}}}
