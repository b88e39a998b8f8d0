"""What pods of objects of other kinds request: charged at the next admission, or at once for released ones."""

from __future__ import annotations

from typing import Any

from tests.operator.objects import read

from muster.api.spec import QueueingStatus
from muster.cluster import PodView
from muster.kinds.suspended.pod_shape import pod_shape
from muster.kinds.suspended.table import BATCH_JOB
from muster.kinds.suspended.workload import SuspendedWorkload
from muster.kube.objects import RawCustomObject, RawQueuedObject
from muster.model import Placement, Resources, RolePlacement
from muster.workload import transitions
from muster_operator.cache.cached_object import record_name
from muster_operator.cache.objects import ObjectCache

GPU = Resources.of({"nvidia.com/gpu": 8, "pods": 1})
LARGER = Resources.of({"nvidia.com/gpu": 8, "pods": 1, "cpu": 500})
PLACES: Placement = (RolePlacement("pods", "h", (("n0", 1),)),)


def new_cache(*names: str) -> ObjectCache:
    cache = ObjectCache(
        (BATCH_JOB,), lambda: {"team": {"muster.dev/queueing": "enabled"}}, lambda uid, seen: None, lambda: None
    )
    pod = {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}
    for number, name in enumerate(names, 1):
        meta = {"name": name, "namespace": "team", "uid": f"u-{name}", "resourceVersion": str(number)}
        labels = {"muster.dev/queue": "q"}
        spec = {"suspend": True, "template": {"spec": pod}}
        cache.handlers[0].on_upsert(read(RawQueuedObject, {"metadata": {**meta, "labels": labels}, "spec": spec}))
    return cache


def set_status(cache: ObjectCache, name: str, version: int, status: QueueingStatus) -> None:
    meta = {
        "name": record_name(BATCH_JOB, name, f"u-{name}"),
        "namespace": "team",
        "uid": f"w-{name}",
        "resourceVersion": str(version),
    }
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": f"u-{name}"}
    document: dict[str, Any] = {"metadata": meta, "spec": {"objectRef": reference, "queue": "q"}}
    document["status"] = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    cache.statuses.on_upsert(read(RawCustomObject, document))


def requests(cache: ObjectCache) -> dict[str, Resources]:
    return {one.metadata.name: one.roles()[0].request for one in cache.workloads()}


def known(cache: ObjectCache) -> dict[str, Resources | None]:
    found: tuple[SuspendedWorkload, ...] = cache.workloads()
    return {one.metadata.name: one.state.pod_sets[0].known_request for one in found}


def gated(name: str, request: Resources = LARGER) -> PodView:
    return PodView(f"{name}-0", f"u-{name}", "pods", 0, 0, "", "Pending", request=request, gated=True)


def running(name: str, request: Resources) -> PodView:
    return PodView(f"{name}-0", f"u-{name}", "pods", 0, 0, "n0", "Running", request=request)


ADMITTED = transitions.admit(QueueingStatus(), PLACES, 100.0)


def test_gated_pods_that_request_more_count_for_others_and_for_their_own_object_once_it_is_evicted() -> None:
    cache = new_cache("a", "b", "c")
    set_status(cache, "a", 10, ADMITTED)
    set_status(cache, "b", 11, ADMITTED)
    cache.workloads()
    cache.numbered("u-a", (gated("a"),))
    assert requests(cache) == {"a": GPU, "b": GPU, "c": LARGER}, "admitted ones are as they were admitted"
    set_status(cache, "a", 12, transitions.evict(ADMITTED, "PodsLarger", "", 101.0))
    assert requests(cache) == {"a": LARGER, "b": GPU, "c": LARGER}


def test_pods_that_request_what_their_template_says_make_it_known() -> None:
    cache = new_cache("a", "b")
    set_status(cache, "a", 10, ADMITTED)
    assert known(cache) == {"a": None, "b": None}
    cache.numbered("u-a", (gated("a", GPU),))
    assert known(cache) == {"a": None, "b": GPU}


def test_a_released_pod_counts_with_what_it_requests_also_after_a_restart_and_a_resize_teaches_nothing() -> None:
    cache = new_cache("a", "b")
    set_status(cache, "a", 10, ADMITTED)
    cache.workloads()
    cache.numbered("u-a", (running("a", LARGER),))
    assert requests(cache) == {"a": LARGER, "b": LARGER}
    cache.numbered("u-a", (running("a", GPU),))
    assert requests(cache) == {"a": LARGER, "b": LARGER}


def test_a_pod_with_the_labels_of_an_object_that_requests_less_than_its_template_lowers_no_charge() -> None:
    cache = new_cache("a", "b")
    set_status(cache, "a", 10, ADMITTED)
    cache.workloads()
    small = Resources.of({"cpu": 1, "pods": 1})
    cache.numbered("u-a", (running("a", small),))
    charged = Resources.of({"nvidia.com/gpu": 8, "pods": 1, "cpu": 1})
    assert requests(cache) == {"a": charged, "b": charged}


def test_what_is_known_of_a_template_says_nothing_of_one_with_other_containers_that_request_the_same_in_total() -> None:
    """A LimitRange adds its defaults to each of them: pods of the other template would start larger than charged."""
    cache = new_cache("a", "b")
    more = [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "8"}}}, {"name": "d"}, {"name": "e"}]
    meta = {"name": "c", "namespace": "team", "uid": "u-c", "resourceVersion": "3", "labels": {"muster.dev/queue": "q"}}
    spec = {"suspend": True, "template": {"spec": {"containers": more}}}
    cache.handlers[0].on_upsert(read(RawQueuedObject, {"metadata": meta, "spec": spec}))
    set_status(cache, "a", 10, ADMITTED)
    cache.workloads()
    cache.numbered("u-a", (gated("a", LARGER),))
    assert known(cache) == {"a": None, "b": LARGER, "c": None}


def test_the_value_of_an_annotation_does_not_hide_it() -> None:
    shapes = [
        pod_shape(
            {
                "metadata": {"annotations": {"example.com/sidecar": f"{cpu} /muster.dev/"}},
                "spec": {"containers": [{"name": "c"}]},
            }
        )
        for cpu in (1, 64)
    ]
    assert shapes[0].profile != shapes[1].profile


def test_a_pending_pod_with_the_labels_of_an_admitted_object_does_not_lower_what_it_is_charged_for() -> None:
    cache = new_cache("a")
    set_status(cache, "a", 10, ADMITTED)
    cache.workloads()
    real = running("a", LARGER)
    cache.numbered("u-a", (real,))
    cache.workloads()
    made_up = PodView("x", "u-a", "pods", 0, 0, "", "Pending", request=GPU)
    cache.numbered("u-a", (real, made_up))
    assert requests(cache) == {"a": LARGER}
