"""What is checked before a job is created, by the clients of a cluster, the daemon of one host, and dry runs: errors
that would make it wait.

First the gates that a waiting job has to pass, then what only a submit refuses. The reasons are those that a waiting
job has in its conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from muster.api.pod_security import pod_security_message, pod_security_violations
from muster.api.spec import TERMINAL_PHASES, Flavor, Queue, TopologyRequest, TrainingJob
from muster.api.validation.queues import (
    namespace_allowed,
    nearest_pod_security,
    path_to_root,
    queue_readiness,
    usable_flavors,
)
from muster.cluster import NO_DECODE_ERRORS, DecodeErrors
from muster.errors import NotFound, Refused, together
from muster.kinds.trainingjob.adapter import TrainingJobWorkload, to_gang
from muster.model import Gang
from muster.text import name_hint
from muster.workload.gates import (
    GateState,
    namespace_gate,
    priority_class_gate,
    queue_gate,
    readable_gate,
    refuse_closed,
)


@dataclass(frozen=True, slots=True)
class KnownObjects:
    """What a job is checked against when it is submitted. `priority_classes` are values by name. None: not known, and
    not checked."""

    queues: Mapping[str, Queue]
    flavors: Mapping[str, Flavor]
    decode_errors: DecodeErrors = NO_DECODE_ERRORS
    namespace_labels: Mapping[str, str] | None = None
    priority_classes: Mapping[str, int] | None = None

    def gate_state(self, job: TrainingJob) -> GateState:
        """The state for the gates of this job."""
        name, labels = job.metadata.namespace or "default", self.namespace_labels or {}
        allowed = {(job.spec.queue, name): namespace_allowed(job.spec.queue, self.queues.values(), labels)}
        classes = self.priority_classes or {}
        return GateState(self.queues, allowed, classes, self.decode_errors, namespaces={name: labels})


def check_submit(job: TrainingJob, known: KnownObjects, now: float) -> Gang:
    """Refuse a job that cannot start with the present queues and flavors; returns its gang. `check_size` checks quota
    and nodes.

    Raises `Refused`: QueueNotFound, QueueInactive, QueueNotLeaf, QueueNotAllowed, PriorityClassNotFound,
    PriorityTooHigh, FlavorNotFound, FlavorNotAllowed, UnknownTopologyLevel.
    """
    state, workload = known.gate_state(job), TrainingJobWorkload(job)
    gang = to_gang(job, now, state.priority_classes)
    refuse_closed((queue_gate, readable_gate), workload, gang, state, now)
    _check_queue(job, known.queues)
    if known.namespace_labels is not None:
        refuse_closed((namespace_gate,), workload, gang, state, now)
    if known.priority_classes is not None:
        refuse_closed((priority_class_gate,), workload, gang, state, now)
    _check_priority(job, known.queues, gang.priority)
    usable = usable_flavors(job.spec.queue, known.queues)
    for place, names, topology in _scheduling_constraints(job):
        _check_flavors(place, names, {*known.flavors, *known.decode_errors.flavors}, usable, job.spec.queue)
        candidates = [known.flavors[name] for name in names or usable if name in known.flavors]
        if topology is not None and candidates:  # without a flavor `check_size` says that there is none
            _check_levels(place, topology, candidates)
    return gang


def check_depends_on(job: TrainingJob, find: Callable[[str], TrainingJob | None], submitted: Iterable[str]) -> None:
    """Refuse a job that depends on one that does not exist, or that has ended otherwise than it has to. `find`: a job
    of its namespace; `submitted`: names of jobs that are submitted together with it.

    Raises `Refused` DependencyNotFound or DependencyNeverSatisfied.
    """
    together_with = set(submitted)
    for index, one in enumerate(job.spec.depends_on):
        if one.job in together_with:
            continue
        field, other = f"spec.dependsOn[{index}].job", find(one.job)
        if other is None:
            message = f"{field}: job {one.job!r} does not exist; submit it first, or together with this job"
            raise NotFound(message, field=field, reason="DependencyNotFound")
        phase = other.status.phase
        if phase in TERMINAL_PHASES and not one.each_index and not one.is_satisfied_by(phase):
            message = f"{field}: job {one.job!r} has ended as {phase}, and outcome is {one.outcome}"
            raise Refused(message, field=field, reason="DependencyNeverSatisfied")


def _check_queue(job: TrainingJob, by_name: Mapping[str, Queue]) -> None:
    """The queue is active and a leaf."""
    name = job.spec.queue
    readiness = queue_readiness(by_name.values())[name]
    if not readiness.active:
        raise Refused(
            f"spec.queue: queue {name!r} is inactive: {readiness.message}", field="spec.queue", reason="QueueInactive"
        )
    children = sorted(queue.metadata.name for queue in by_name.values() if queue.spec.parent == name)
    if children:
        message = f"spec.queue: queue {name!r} has queues below it; submit to one of them: {', '.join(children)}"
        raise Refused(message, field="spec.queue", reason="QueueNotLeaf")


def check_pod_security(job: TrainingJob, queues: Iterable[Queue]) -> None:
    """Refuse a job whose pod templates the queue's podSecurity forbids. Raises `Refused`: PodRejected."""
    level = nearest_pod_security(job.spec.queue, {queue.metadata.name: queue for queue in queues})
    if level is None:
        return
    for number, role in enumerate(job.spec.roles):
        template = role.template.model_dump(mode="json", by_alias=True, exclude_unset=True)
        forbidden = pod_security_violations(template).at(level)
        if forbidden:
            field = f"spec.roles[{number}].template"
            message = f"{field}: {pod_security_message(job.spec.queue, level, forbidden)}"
            raise Refused(message, field=field, reason="PodRejected")


def _check_priority(job: TrainingJob, by_name: Mapping[str, Queue], priority: int) -> None:
    """The lowest maxPriority on the path to the root applies, as in the planner."""
    named = job.spec.priority_class_name is not None
    path = path_to_root(job.spec.queue, by_name)
    caps = [(cap, queue.metadata.name) for queue in path if (cap := queue.spec.max_priority) is not None]
    if caps and priority > min(caps)[0]:
        field = "spec.priorityClassName" if named else "spec.priority"
        limit, name = min(caps)
        whose = f"queue {name!r}" + ("" if name == job.spec.queue else f", above queue {job.spec.queue!r}")
        hint = "; use a class with a lower value" if named else ""
        message = f"{field}: must be at most maxPriority ({limit}) of {whose}; got {priority}{hint}"
        raise Refused(message, field=field, reason="PriorityTooHigh")


def _scheduling_constraints(job: TrainingJob) -> list[tuple[str, Sequence[str], TopologyRequest | None]]:
    """(path in the spec, flavors, topology) of the job and of every role that sets one of them."""
    spec = job.spec
    constraints: list[tuple[str, Sequence[str], TopologyRequest | None]] = [("spec", spec.flavors, spec.topology)]
    for index, role in enumerate(spec.roles):
        if role.flavors or role.topology is not None:
            constraints.append((f"spec.roles[{index}]", role.flavors or spec.flavors, role.topology or spec.topology))
    return constraints


def _check_flavors(
    path: str, names: Sequence[str], by_flavor: Collection[str], usable: Sequence[str], queue: str
) -> None:
    missing = [name for name in names if name not in by_flavor] if by_flavor else []
    if missing:
        field = f"{path}.flavors"
        messages = [
            f"{field}: flavor {name!r} does not exist; {name_hint(name, by_flavor, 'flavor')}" for name in missing
        ]
        raise together([NotFound(message, field=field, reason="FlavorNotFound") for message in messages])
    if names and not set(names) & set(usable):
        message = f"{path}.flavors: queue {queue!r} has no quota for {' or '.join(map(repr, names))}"
        raise Refused(
            f"{message}; {name_hint(names[0], usable, 'flavor with quota')}",
            field=f"{path}.flavors",
            reason="FlavorNotAllowed",
        )


def _check_levels(path: str, topology: TopologyRequest, candidates: Sequence[Flavor]) -> None:
    known = {level.name for flavor in candidates for level in flavor.spec.topology}
    for word, level in (("required", topology.required), ("preferred", topology.preferred)):
        if level is not None and level not in known:
            of = ", ".join(flavor.metadata.name for flavor in candidates)
            message = f"{path}.topology.{word}: {of} has no level {level!r}"
            raise Refused(
                f"{message}; {name_hint(level, known, 'level')}",
                field=f"{path}.topology.{word}",
                reason="UnknownTopologyLevel",
            )
