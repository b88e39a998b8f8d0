"""Jobs whose pod templates the podSecurity of their queue forbids, as the engine sees them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.api.pod_security_templates import template as hardened
from tests.operator.caches import FakeDryRuns
from tests.operator.objects import job_document, job_seen, read

from muster.api.pod_security import PodSecurityLevel
from muster.kube.objects import RawCustomObject
from muster_operator.cache.cached_job import DryRunResult
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.runners.create_pods.pod_owner import pod_owner

FIELD = "spec.containers[0].securityContext.allowPrivilegeEscalation"


def new_cache(default: PodSecurityLevel = "privileged", answer: DryRunResult | None = DryRunResult()) -> ClusterCache:  # noqa: B008 - it is a value
    cache = ClusterCache(FakeDryRuns(answer), pod_owner, lambda: None, clock=lambda: 1000.0, pod_security=default)
    cache.jobs.on_upsert(job_seen())
    return cache


def set_queue(cache: ClusterCache, name: str, version: int = 1, **fields: Any) -> None:
    document = {"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}, "spec": fields}
    cache.queues.on_upsert(read(RawCustomObject, document))


def rejections(cache: ClusterCache) -> dict[str, str]:
    return dict(cache.observe().pod_rejections)


def test_a_template_is_rejected_by_field_while_the_queue_or_one_above_it_forbids_it() -> None:
    cache = new_cache()
    set_queue(cache, "company")
    set_queue(cache, "research", parent="company")
    assert rejections(cache) == {}
    set_queue(cache, "company", 2, podSecurity="restricted")
    (message,) = rejections(cache).values()
    assert message.startswith(f"role trainer: podSecurity of queue research is restricted: {FIELD} must be false; ")
    set_queue(cache, "research", 2, parent="company", podSecurity="baseline")
    assert rejections(cache) == {}


def test_the_level_of_the_installation_is_that_of_roots_that_set_none() -> None:
    cache = new_cache("restricted")
    set_queue(cache, "research")
    assert list(rejections(cache)) == ["uid-llama"]
    set_queue(cache, "research", 2, podSecurity="privileged")
    assert rejections(cache) == {}


def test_an_edited_template_that_is_hardened_is_accepted_and_a_deleted_job_forgotten() -> None:
    cache = new_cache("restricted")
    set_queue(cache, "research")
    document = job_document(version=2)
    document["spec"]["roles"][0]["template"] = hardened()
    cache.jobs.on_upsert(read(RawCustomObject, document))
    assert rejections(cache) == {}
    cache.jobs.on_upsert(job_seen(version=3))
    assert list(rejections(cache)) == ["uid-llama"]
    cache.jobs.on_delete(job_seen(version=4))
    assert rejections(cache) == {}


def test_an_unchanged_rejection_is_the_same_object() -> None:
    cache = new_cache("restricted")
    set_queue(cache, "research")
    before = cache.observe().pod_rejections["uid-llama"]
    cache.jobs.on_upsert(job_seen("other"))
    assert cache.observe().pod_rejections["uid-llama"] is before


@pytest.mark.parametrize("default", ["privileged", "restricted"])
def test_what_the_api_server_says_of_the_pod_comes_first(default: PodSecurityLevel) -> None:
    cache = new_cache(default, DryRunResult(rejection="no such account"))
    set_queue(cache, "research")
    assert rejections(cache) == {"uid-llama": "no such account"}
