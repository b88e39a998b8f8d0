"""The jobs that a workload depends on have ended as they have to, and those before it of its singleton have ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from muster.model import Gang
from muster.workload.gates.gate import Closed, GateState
from muster.workload.planning import namespace_of
from muster.workload.protocol import Workload
from muster.workload.related import RelatedWorkload
from muster.workload.start_conditions import ended_dependencies, unsatisfiable_message

_MAX_NAMED = 4
_MAX_FOLLOWED = 500


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
        return Closed("DependencyNeverSatisfied", f"jobs wait for each other: {' -> '.join(cycle)}")
    found = {name: state.related.find(namespace, name) for name in left}
    missing = [name for name, one in found.items() if one is None]
    never = next((name for name in missing if state.related.find_group(namespace, name) is not None), None)
    if never is not None:
        return Closed("DependencyNeverSatisfied", f"its array does not have index {never}; change spec.dependsOn")
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
    before = state.related.before_in_singleton(workload)
    if before is None:
        return None
    message = f"waits for job {before.metadata.name} ({before.status.phase}) of singleton {key}"
    return Closed("WaitingForSingleton", message)


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"job{'s' * (len(names) > 1)} {', '.join(names[:_MAX_NAMED])}{more}"


def _cycle(workload: Workload, state: GateState) -> list[str]:
    """The names from the workload along what it waits for back to it; empty if no way leads back, or none of the first
    `_MAX_FOLLOWED` does: thousands of jobs may wait for one another."""
    namespace, start = namespace_of(workload), workload.metadata.name
    came_from: dict[str, str] = {}
    queue: deque[RelatedWorkload] = deque([workload])
    followed = 0
    while queue and followed < _MAX_FOLLOWED:
        one = queue.popleft()
        for name in _awaited(one, state):
            followed += 1
            if name in came_from:
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


def _awaited(workload: RelatedWorkload, state: GateState) -> Iterator[str]:
    """The names of the jobs that have to end before this one starts."""
    ended = ended_dependencies(workload.status)
    yield from (one.job for one in workload.start_conditions.dependencies if one.job not in ended)
    if workload.start_conditions.singleton is not None and workload.status.phase in ("Pending", "Suspended"):
        before = state.related.before_in_singleton(workload)
        if before is not None:
            yield before.metadata.name
