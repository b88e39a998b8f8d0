"""The checks of `muster submit`, for errors that would make the job wait on a cluster.

The reasons are those that a waiting job has in its conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from muster.api.pod_security import pod_security_message, pod_security_violations
from muster.api.spec import TERMINAL_PHASES, Flavor, LabelSelector, Queue, TopologyRequest, TrainingJob
from muster.api.validation.queues import (
    namespace_allowed,
    nearest_pod_security,
    nearest_selector,
    path_to_root,
    queue_readiness,
    usable_flavors,
)
from muster.errors import NotFound, Refused, together
from muster.text import name_hint


def check_submit(
    job: TrainingJob,
    queues: Iterable[Queue],
    flavors: Iterable[Flavor] = (),
    namespace_labels: Mapping[str, str] | None = None,
    priority_classes: Mapping[str, int] | None = None,
) -> None:
    """Refuse a job that cannot start with the present queues and flavors; `check_size` checks quota and nodes.

    `namespace_labels` None skips the check of the namespace, `priority_classes` None (values by name) of the class.
    Raises `Refused`: QueueNotFound, QueueInactive, QueueNotLeaf, QueueNotAllowed, PriorityClassNotFound,
    PriorityTooHigh, FlavorNotFound, FlavorNotAllowed, UnknownTopologyLevel.
    """
    by_name = {queue.metadata.name: queue for queue in queues}
    by_flavor = {flavor.metadata.name: flavor for flavor in flavors}
    _check_queue(job, by_name)
    if namespace_labels is not None:
        _check_namespace(job, by_name, namespace_labels)
    _check_priority(job, by_name, priority_classes)
    usable = usable_flavors(job.spec.queue, by_name)
    for place, names, topology in _scheduling_constraints(job):
        _check_flavors(place, names, by_flavor, usable, job.spec.queue)
        candidates = [by_flavor[name] for name in names or usable if name in by_flavor]
        if topology is not None and candidates:  # without a flavor `check_size` says that there is none
            _check_levels(place, topology, candidates)


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
        if phase in TERMINAL_PHASES and not one.is_satisfied_by(phase):
            message = f"{field}: job {one.job!r} has ended as {phase}, and outcome is {one.outcome}"
            raise Refused(message, field=field, reason="DependencyNeverSatisfied")


def _check_queue(job: TrainingJob, by_name: Mapping[str, Queue]) -> None:
    name = job.spec.queue
    leaves = set(by_name) - {queue.spec.parent for queue in by_name.values()}
    if name not in by_name:
        hint = name_hint(name, leaves, "queue")
        raise NotFound(f"spec.queue: queue {name!r} does not exist; {hint}", field="spec.queue", reason="QueueNotFound")
    readiness = queue_readiness(by_name.values())[name]
    if not readiness.active:
        raise Refused(
            f"spec.queue: queue {name!r} is inactive: {readiness.message}", field="spec.queue", reason="QueueInactive"
        )
    children = sorted(queue.metadata.name for queue in by_name.values() if queue.spec.parent == name)
    if children:
        message = f"spec.queue: queue {name!r} has queues below it; submit to one of them: {', '.join(children)}"
        raise Refused(message, field="spec.queue", reason="QueueNotLeaf")


def _check_namespace(job: TrainingJob, by_name: Mapping[str, Queue], labels: Mapping[str, str]) -> None:
    name, namespace = job.spec.queue, job.metadata.namespace or "default"
    if namespace_allowed(name, by_name.values(), labels):
        return
    selector = nearest_selector(name, by_name.values())
    if selector is None:
        hint = "neither the queue nor a queue above it sets a namespaceSelector ({} allows all)"
    else:
        shown = ", ".join(f"{key}={value}" for key, value in sorted(labels.items())) or "none"
        hint = f"its namespaceSelector requires {_selector_text(selector)}; the namespace's labels are {shown}"
    raise Refused(
        f"spec.queue: namespace {namespace!r} may not use queue {name!r}: {hint}",
        field="spec.queue",
        reason="QueueNotAllowed",
    )


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


def _selector_text(selector: LabelSelector) -> str:
    lines = [f"{key}={value}" for key, value in sorted(selector.match_labels.items())]
    for line in selector.match_expressions:
        values = f" ({', '.join(line['values'])})" if line.get("values") else ""
        lines.append(f"{line['key']} {line['operator']}{values}")
    return ", ".join(lines)


def _check_priority(job: TrainingJob, by_name: Mapping[str, Queue], classes: Mapping[str, int] | None) -> None:
    """The lowest maxPriority on the path to the root applies, as in the planner."""
    priority, field, named = job.spec.priority, "spec.priority", job.spec.priority_class_name
    if named is not None and classes is not None:
        field = "spec.priorityClassName"
        if named not in classes:
            message = f"{field}: PriorityClass {named!r} does not exist; {name_hint(named, classes, 'PriorityClass')}"
            raise NotFound(message, field=field, reason="PriorityClassNotFound")
        priority = classes[named]
    path = path_to_root(job.spec.queue, by_name)
    caps = [(cap, queue.metadata.name) for queue in path if (cap := queue.spec.max_priority) is not None]
    if caps and priority > min(caps)[0]:
        limit, name = min(caps)
        whose = f"queue {name!r}" + ("" if name == job.spec.queue else f", above queue {job.spec.queue!r}")
        hint = "" if named is None else "; use a class with a lower value"
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
    path: str, names: Sequence[str], by_flavor: Mapping[str, Flavor], usable: Sequence[str], queue: str
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
