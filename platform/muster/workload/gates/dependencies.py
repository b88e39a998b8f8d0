"""The jobs that a workload depends on have ended as they have to, and those before it of its singleton have ended."""

from __future__ import annotations

from muster.model import Gang
from muster.workload.gates.gate import Closed, GateState
from muster.workload.planning import namespace_of
from muster.workload.protocol import Workload
from muster.workload.related import RelatedWorkload
from muster.workload.start_conditions import ended_dependencies, unsatisfiable_message

_MAX_NAMED = 4


def dependency_gate(workload: Workload, gang: Gang, state: GateState, now: float) -> Closed | None:
    """Closed: DependencyNeverSatisfied, DependencyNotFound or WaitingForDependency."""
    conditions = workload.start_conditions
    if not conditions.dependencies:
        return None
    never = unsatisfiable_message(conditions, workload.status)
    if never is not None:
        return Closed("DependencyNeverSatisfied", f"{never}; change spec.dependsOn, or cancel this job")
    ended, namespace = ended_dependencies(workload.status), namespace_of(workload)
    left = [one.job for one in conditions.dependencies if one.job not in ended]
    if left and (cycle := _cycle(workload, state)):
        return Closed("DependencyNeverSatisfied", f"jobs depend on each other: {' -> '.join(cycle)}")
    found = {name: state.related.find(namespace, name) for name in left}
    missing = [name for name, one in found.items() if one is None]
    if missing:
        message = f"{_named(missing)} not found in namespace {namespace}: not submitted yet, or deleted"
        return Closed("DependencyNotFound", message)
    if left:
        phases = (f"{name} ({one.status.phase})" for name, one in found.items() if one is not None)
        return Closed("WaitingForDependency", f"waits for {_named(list(phases))}")
    return None


def singleton_gate(workload: Workload, gang: Gang, state: GateState, now: float) -> Closed | None:
    """Closed: WaitingForSingleton."""
    key = workload.start_conditions.singleton
    if key is None:
        return None
    own = _order(workload)
    before = sorted(
        (one for one in state.related.singletons(namespace_of(workload), key) if _order(one) < own), key=_order
    )
    if not before:
        return None
    first = before[0]
    more = f" and {len(before) - 1} more" if len(before) > 1 else ""
    message = f"waits for job {first.metadata.name} ({first.status.phase}){more} of singleton {key}"
    return Closed("WaitingForSingleton", message)


def _order(workload: RelatedWorkload) -> tuple[float, str]:
    known = (workload.status.submitted_at, workload.metadata.creation_timestamp)
    return next((at for at in known if at is not None), float("inf")), workload.metadata.uid


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"job{'s' * (len(names) > 1)} {', '.join(names[:_MAX_NAMED])}{more}"


def _cycle(workload: Workload, state: GateState) -> list[str]:
    """The names from the workload along its dependencies back to it; empty if no way leads back."""
    namespace, start = namespace_of(workload), workload.metadata.name
    came_from: dict[str, str] = {}
    queue: list[RelatedWorkload] = [workload]
    while queue:
        one = queue.pop()
        ended = ended_dependencies(one.status)
        for dependency in one.start_conditions.dependencies:
            name = dependency.job
            if name in ended or name in came_from:
                continue
            came_from[name] = one.metadata.name
            if name == start:
                names = [start]
                while names[-1] != start or len(names) == 1:
                    names.append(came_from[names[-1]])
                return names[::-1]
            other = state.related.find(namespace, name)
            if other is not None:
                queue.append(other)
    return []
