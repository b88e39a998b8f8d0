"""Pods of jobs that do not exist any more: charged to the queue for which they were created, until they have ended.

A job that is deleted disappears at once, or its pods are orphaned (`kubectl delete --cascade=orphan`); either way its
pods still run for a while. If only their nodes were charged, the next job of the queue would exceed its quota.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from muster.cluster import OrphanedPod
from muster.model import Gang, Resources, RunningGang
from muster.state.jobs import JobContext, remaining_pods, waits_for


@dataclass(frozen=True, slots=True)
class OrphanProjection:
    """`gangs`, by uid: those pods as terminating gangs. `managed_usage`, by node: what these gangs use of the nodes'
    unmanaged usage."""

    gangs: Mapping[str, RunningGang] = field(default_factory=dict)
    managed_usage: Mapping[str, Resources] = field(default_factory=dict)


def project_orphans(orphans: Iterable[OrphanedPod], context: JobContext) -> OrphanProjection:
    """The projection. Pods of a namespace that their queue does not admit are charged to no queue: they stay unmanaged
    usage of their nodes."""
    groups: dict[tuple[str, str, str, str], list[OrphanedPod]] = {}
    for one in orphans:
        if context.gates.allowed_namespaces[one.queue, one.namespace] and one.view.node in context.flavor_of:
            groups.setdefault((one.view.job_uid, one.namespace, one.job, one.queue), []).append(one)
    gangs, usage = dict[str, RunningGang](), dict[str, Resources]()
    for (uid, namespace, job, queue), group in groups.items():
        since = min(one.created_at for one in group)
        grace_s = min(max(one.grace_s for one in group), context.max_grace_s[queue])
        gang = Gang(f"{uid}/{queue}", f"{namespace}/{job}", queue, 0, since, (), grace_s=grace_s)
        pods = [one.view for one in group]
        gang, placement = remaining_pods(pods, gang, context.flavor_of)
        gangs[gang.uid] = RunningGang(gang, placement, since, state="terminating", waits_for=waits_for(pods))
        for one in group:
            if one.bound:
                usage[one.view.node] = usage.get(one.view.node, Resources()).plus(one.view.request)
    return OrphanProjection(gangs, usage)
