"""A ClusterCache without a cluster: known dry-run results, and a count of changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from muster.kinds.suspended.table import KindRow
from muster.kube.reflector import ResourceEventHandler, _object_key
from muster.workload.observed import ObservedState
from muster_operator.cache.cached_job import CachedJob, DryRunResult
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.cache.deleted_usage import DeletedUsage
from muster_operator.cache.pods import UNKNOWN_SIGNATURES, PodSignatures
from muster_operator.cache.specs import CachedTemplate
from muster_operator.cache.template_bytes import MOST_BYTES
from muster_operator.runners.create_pods.pod_owner import pod_owner

T = TypeVar("T")


class FakeDryRuns:
    """The same result for every template, or none yet."""

    def __init__(self, answer: DryRunResult | None = DryRunResult()) -> None:  # noqa: B008 - it is a value
        self.answer = answer
        self.requested: list[str] = []
        self.old = False

    def result(self, namespace: str, template: CachedTemplate) -> DryRunResult | None:
        return self.answer

    def is_fresh(self, namespace: str, template: CachedTemplate) -> bool:
        return self.answer is not None and not self.old

    def request(self, job: CachedJob, on_result: Callable[[str, str], None]) -> None:
        self.requested.append(job.uid)


class Changes:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1

    def during(self, act: Callable[[], object]) -> int:
        before = self.count
        act()
        return self.count - before


def new_cache(
    dry_runs: FakeDryRuns | None = None,
    most_template_bytes: int = MOST_BYTES,
    deleted_usage: DeletedUsage | None = None,
    signatures: PodSignatures = UNKNOWN_SIGNATURES,
    kinds: Sequence[KindRow] = (),
) -> tuple[ClusterCache, Changes]:
    changes = Changes()
    cache = ClusterCache(
        dry_runs or FakeDryRuns(),
        pod_owner,
        changes,
        clock=lambda: 1000.0,
        most_template_bytes=most_template_bytes,
        deleted_usage=deleted_usage,
        signatures=signatures,
        kinds=kinds,
    )
    return cache, changes


def report_dry_runs(cache: ClusterCache) -> None:
    """Report dry-run results for the templates of all jobs."""
    for job in list(cache.jobs.all()):
        for one in job.templates.values():
            cache.jobs.on_dry_run_result(job.namespace, one.digest)


def relist(handler: ResourceEventHandler[T], objects: Sequence[T], version: int) -> None:
    """Deliver a list of this version with exactly these objects."""
    for item in objects:
        handler.on_upsert(item)
    handler.on_list({_object_key(item) for item in objects}, version)


def unmanaged_usage(observed: ObservedState, node: str = "n1") -> dict[str, int]:
    """What unmanaged pods use of a node."""
    return dict(next(view for view in observed.nodes if view.name == node).unmanaged_usage.items)
