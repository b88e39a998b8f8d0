"""A pod: the fields that are cached, and its view for the engine if it belongs to a job.

Which job a pod belongs to, its kind says (`OwnerOf`). After the job is gone, the pod's signature
(`muster_operator.runners.create_pods.pod_signatures`) proves that Muster created it, and for which queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypedDict

import msgspec

from muster.api.yaml_input.undecodable import decode_truncated
from muster.cluster import PodView
from muster.heartbeats.parse import finite_number
from muster.kinds.suspended.table import GATE
from muster.kinds.suspended.ungate import GatedPod
from muster.kube.convert import has_ended, parse_time
from muster.kube.objects import V1Condition, V1ContainerStateTerminated, V1ContainerStatus, V1Pod, V1PodMeta, V1PodSpec
from muster.model import Resources
from muster_operator.cache.pod_requests import effective_request
from muster_operator.pod_builder.collector import COLLECTOR_NAME as COLLECTOR

MAX_TRACES = 1_000_000
_MAX_MESSAGE = 4096  # characters of a termination message: the limit of Kubernetes; and of other messages
_PHASES: dict[str, Literal["Pending", "Running", "Succeeded", "Failed", "Lost"]] = {
    "Pending": "Pending", "Running": "Running", "Succeeded": "Succeeded", "Failed": "Failed", "Unknown": "Lost",
}  # fmt: skip
_TAIL_BYTES = 4096
_MAX_QUEUE_CHARS, _MAX_SIGNATURE_CHARS = 253, 2048
_IMAGE_ERRORS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull",
                           "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed"})  # fmt: skip
_NOT_REJECTED = frozenset({"DeadlineExceeded", "NodeShutdown", "Preempting", "Shutdown", "Terminated"})
"""Reasons for which the kubelet fails pods that may not have started, and for which it may accept others later."""


@dataclass(frozen=True, slots=True)
class TerminationMessage:
    """Termination message of a collector (`muster.tracing.collector`): traces collected, the newest checkpoint in the
    run folder, and the ranks that did not stop, or else that got SIGTERM (`muster.capture.exchange`). It comes from a
    program in a user's pod, so only valid values are accepted."""

    traces: int
    checkpoint: tuple[float | None, float] | None  # step if it is known, and time by the pod's clock
    hung: str = ""
    signalled: str = ""
    run_time: object = None  # of the lead pod: what the time of the pods was spent on; not validated


class _Message(msgspec.Struct):
    traces: Any = 0
    checkpoint: Any = None
    hung: Any = ""
    signalled: Any = ""
    run_time: Any = None


def parse_termination_message(containers: Iterable[V1ContainerStatus]) -> TerminationMessage | None:
    """The message among a pod's sidecars; None where the collector has not ended or the message has another form."""
    for one in containers:
        end = one.state.terminated
        if one.name == COLLECTOR and end is not None and len(end.message) <= _MAX_MESSAGE:
            try:
                return _validated(msgspec.json.decode(end.message, type=_Message))
            except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
                return None  # empty, or the tail of its log
    return None


def _validated(message: _Message) -> TerminationMessage:
    traces = finite_number(message.traces)
    checkpoint = message.checkpoint if isinstance(message.checkpoint, Mapping) else {}
    step, at = finite_number(checkpoint.get("step")), finite_number(checkpoint.get("at"))
    return TerminationMessage(
        traces=int(traces) if traces is not None and 0 <= traces <= MAX_TRACES else 0,
        checkpoint=None if at is None else (step, at),
        hung=message.hung if isinstance(message.hung, str) else "",
        signalled=message.signalled if isinstance(message.signalled, str) else "",
        run_time=message.run_time,
    )


@dataclass(frozen=True, slots=True)
class JobKey:
    """Key of a job; constant for the lifetime of its uid. `other_kind`: it is no TrainingJob."""

    uid: str
    namespace: str
    name: str
    other_kind: bool = False


@dataclass(frozen=True, slots=True)
class PodOwner:
    """The job to which a pod belongs, and which of its pods it is."""

    job: JobKey
    role: str
    index: int
    attempt: int


OwnerOf: TypeAlias = Callable[[V1PodMeta], PodOwner | None]
"""The owner of a pod, as its kind knows its pods; None: it belongs to no job of that kind."""


@dataclass(frozen=True, slots=True)
class CachedPod:
    """A pod: `view` for the engine if its job is known, else its usage of `node`."""

    uid: str
    version: int
    namespace: str
    name: str
    job: JobKey | None  # the job that it belongs to, if there is one
    view: PodView | None
    node: str  # where it is bound; "" before that
    request: Resources
    ended: bool
    deletion_requested: bool = False  # we have requested its deletion
    ip: str = ""
    has_collector: bool = False  # whether it has our sidecar
    termination_message: TerminationMessage | None = None  # of the collector
    queue: str = ""  # for which it was created, if `signature` is genuine
    signature: str = ""
    created_at: float = 0.0
    grace_s: float = 30.0  # its own grace period
    pod_group: str = ""
    gated: GatedPod | None = None  # where Muster's scheduling gate holds it


def cached_pod(pod: V1Pod, before: CachedPod | None, owner: PodOwner | None) -> CachedPod:
    """The cached fields of a pod. A view equal to the one in `before` is the same object."""
    meta, spec = pod.metadata, pod.spec
    same = before is not None and before.uid == meta.uid
    request = effective_request(spec, pod.status)  # a pod may be resized in place
    view = pod_view(pod, owner) if owner is not None else None
    if view is not None:
        charged = before.view.charged if same and before is not None and before.view is not None else None
        view = replace(view, request=request, charged=charged)
    ended, requested = has_ended(pod), same and before is not None and before.deletion_requested
    if same and before is not None and before.view is not None and view is not None:
        if before.ended and not before.view.deleting:
            view = replace(view, deleting=False)  # it had ended before its deletion was requested
        elif requested and (before.ended or not ended):
            view = replace(view, deleting=True)  # as it was before this update
        if before.view == view:
            view = before.view
    return CachedPod(
        uid=meta.uid,
        version=meta.version,
        namespace=meta.namespace,
        name=meta.name,
        job=None if owner is None else owner.job,
        view=view,
        node=spec.node_name,
        request=request,
        ended=ended,
        deletion_requested=requested,
        ip=pod.status.pod_ip,
        has_collector=any(one.name == COLLECTOR for one in spec.init_containers),
        termination_message=parse_termination_message(pod.status.init_container_statuses) if view is not None else None,
        grace_s=float(spec.termination_grace_period_seconds),
        pod_group="" if spec.scheduling_group is None else spec.scheduling_group.pod_group_name,
        gated=_gated_pod(spec) if view is not None and view.gated else None,
        **_origin(meta),
    )


def created_pod(meta: V1PodMeta, owner: PodOwner | None, node: str, request: Resources) -> CachedPod:
    """A pod that was just created and pinned to `node`, as the watch is about to deliver it.

    `request` is what the template requests; what the API server added to it is read when the watch delivers the pod.
    """
    view = None if owner is None else pod_view(V1Pod(metadata=meta), owner)
    return CachedPod(
        uid=meta.uid,
        version=meta.version,
        namespace=meta.namespace,
        name=meta.name,
        job=None if owner is None else owner.job,
        view=None if view is None else replace(view, node=node, request=request),
        node="",
        request=Resources(),  # read when the watch delivers the pod, before it counts as usage
        ended=False,
        **_origin(meta),
    )


def _gated_pod(spec: V1PodSpec) -> GatedPod:
    affinity, levels, required = spec.affinity, 0, None
    if affinity is not None:
        node = affinity.node_affinity
        required = None if node is None else node.required
        levels = 1 + (node is not None) + (required is not None)
    terms = () if required is None else required.node_selector_terms
    own = decode_truncated(msgspec.json.decode, spec.tolerations)
    return GatedPod(
        gates=tuple(gate.name for gate in spec.scheduling_gates),
        affinity_levels=levels,
        terms=tuple(
            "fields" if term.match_fields else "expressions" if term.match_expressions else "empty" for term in terms
        ),
        tolerations=None if own is None else tuple(own),
    )


class _Origin(TypedDict):
    queue: str
    signature: str
    created_at: float


def _origin(meta: V1PodMeta) -> _Origin:
    created_at = 0.0 if meta.creation_timestamp is None else parse_time(meta.creation_timestamp)
    queue, signature = meta.annotations.queue, meta.annotations.signature
    if len(queue) > _MAX_QUEUE_CHARS or len(signature) > _MAX_SIGNATURE_CHARS:
        queue = signature = ""  # none that the operator signed is so long
    return {"queue": queue, "signature": signature, "created_at": created_at}


def pod_view(pod: V1Pod, owner: PodOwner) -> PodView:
    """The engine's view of a job's pod."""
    meta, status = pod.metadata, pod.status
    phase = _PHASES.get(status.phase, "Pending")
    ended = _first_failure(pod) if phase == "Failed" else _main_termination(pod)
    return PodView(
        name=meta.name,
        job_uid=owner.job.uid,
        role=owner.role,
        index=owner.index,
        attempt=owner.attempt,
        node=pod.spec.node_name or _pinned_node(pod),
        phase=phase,
        ready=any(c.type == "Ready" and c.status == "True" for c in status.conditions),
        pending_reason=_start_blocker(pod) if phase == "Pending" else "",
        deleting=meta.deletion_timestamp is not None,
        grace_s=meta.deletion_grace_period_seconds,
        never_bound=meta.deletion_timestamp is not None and not pod.spec.node_name and not has_ended(pod),
        exit_code=None if ended is None else ended.exit_code,
        reason=_reason(pod, ended) if phase == "Failed" else "",
        finished_at=parse_time(ended.finished_at) if ended and ended.finished_at and has_ended(pod) else None,
        log_tail=ended.message[-_TAIL_BYTES:] if ended is not None and phase == "Failed" else "",
        rejected=phase == "Failed" and _is_rejected(pod),
        accepted=phase == "Pending" and status.start_time is not None,
        message=_message(pod),
        gated=any(gate.name == GATE for gate in pod.spec.scheduling_gates),
    )


def _start_blocker(pod: V1Pod) -> Literal["", "Unschedulable", "Image", "Volume", "Node"]:
    """What a pod that has not started waits for.

    The kubelet mounts all volumes, then creates the sandbox, then pulls images. The status does not say which of the
    first two steps it is in; a pod without a volume of its own can only wait for the node.
    """
    conditions = {one.type: one.status for one in pod.status.conditions}
    if conditions.get("PodScheduled") == "False":
        return "Unschedulable"
    if any(one.state.waiting.reason in _IMAGE_ERRORS for one in pod.status.init_container_statuses):
        return "Image"
    if any(one.state.waiting.reason in _IMAGE_ERRORS for one in pod.status.container_statuses):
        return "Image"
    if conditions.get("PodReadyToStartContainers") == "True":
        sidecars = {one.name for one in pod.spec.init_containers if one.restart_policy == "Always"}
        running = {one.name for one in pod.status.init_container_statuses if one.state.running is not None}
        return "" if running - sidecars else "Image"
    return "Volume" if any(volume.empty_dir is None for volume in pod.spec.volumes) else "Node"


def _pinned_node(pod: V1Pod) -> str:
    """The node that a managed pod is pinned to by every term of its node affinity; "" for one that several may have."""
    affinity = pod.spec.affinity
    required = affinity.node_affinity.required if affinity and affinity.node_affinity else None
    named = set[str]()
    for term in required.node_selector_terms if required else ():
        fields = (line for line in term.match_fields if (line.key, line.operator) == ("metadata.name", "In"))
        named.add(next((line.values[0] for line in fields if len(line.values) == 1), ""))
    return named.pop() if len(named) == 1 else ""


def _main_termination(pod: V1Pod) -> V1ContainerStateTerminated | None:
    main = pod.spec.containers[0].name if pod.spec.containers else ""
    return next((one.state.terminated for one in pod.status.container_statuses if one.name == main), None)


def _first_failure(pod: V1Pod) -> V1ContainerStateTerminated | None:
    """How the main container failed, else the container that failed first."""
    main = _main_termination(pod)
    if main is not None and main.exit_code != 0:
        return main
    failed = [one.state.terminated for one in pod.status.container_statuses if _has_failed(one)]
    return min((end for end in failed if end is not None), key=lambda end: end.finished_at or "", default=main)


def _has_failed(container: V1ContainerStatus) -> bool:
    return container.state.terminated is not None and container.state.terminated.exit_code != 0


def _is_rejected(pod: V1Pod) -> bool:
    """Whether the kubelet has rejected the pod, for whatever reason: no container has run. A pod that a disruption or
    its deadline ends early did not start either."""
    if not pod.status.reason or pod.status.reason in _NOT_REJECTED or _disruption(pod) is not None:
        return False
    containers = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    return all(one.state.running is None and one.state.terminated is None for one in containers)


def _disruption(pod: V1Pod) -> V1Condition | None:
    return next((one for one in pod.status.conditions if one.type == "DisruptionTarget" and one.status == "True"), None)


def _message(pod: V1Pod) -> str:
    """Why another component ends the pod, or the kubelet has failed it."""
    disruption = _disruption(pod)
    return (pod.status.message if disruption is None else disruption.message)[:_MAX_MESSAGE]


def _reason(pod: V1Pod, ended: V1ContainerStateTerminated | None) -> str:
    """Reason of the failure. A disruption takes precedence over what containers report: it is not the job's fault."""
    if _disruption(pod) is not None:
        return "DisruptionTarget"
    return pod.status.reason or (ended.reason if ended is not None else "")
