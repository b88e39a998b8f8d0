"""The limit of pod templates in a namespace, which does not apply to accepted jobs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web
from tests.operator.api_server import NOW, OperatorHarness, Server, admitted, serve
from tests.operator.caches import new_cache
from tests.operator.objects import job_document, read

from muster.api import spec
from muster.api.spec.limits import MAX_ROLES_VALUES
from muster.kinds.trainingjob.adapter import training_jobs
from muster.kube.async_client import AsyncKubeClient
from muster.kube.objects import RawCustomObject
from muster.workload.conditions import ADMITTED, find_condition
from muster_operator.cache.cluster_cache import ClusterCache

BOUND = 3000
Document = dict[str, Any]


def document(
    name: str,
    version: int,
    of: str = "",
    *,
    namespace: str = "team",
    status: Any = None,
    size: int = 1000,
    **fields: Any,
) -> Document:
    """A job whose template is slightly larger than `size` bytes: two fit into the limit, three do not. `of`: whose it
    is."""
    one = job_document(name, version, **fields)
    one["metadata"]["namespace"] = namespace
    (container,) = one["spec"]["roles"][0]["template"]["spec"]["containers"]
    container["args"] = [of or name, "x" * size]
    return one if status is None else {**one, "status": status}


def waiting(generation: int = 1) -> Document:
    """Status of a job that an operator has accepted."""
    condition = {"type": "Admitted", "status": "False", "reason": "InsufficientResources", "lastTransitionTime": NOW}
    return {"observedGeneration": generation, "phase": "Pending", "submittedAt": NOW, "conditions": [condition]}


def ended() -> Document:
    over = {"type": "Complete", "status": "True", "reason": "Completed", "lastTransitionTime": NOW}
    return {"observedGeneration": 1, "phase": "Succeeded", "submittedAt": NOW, "conditions": [over]}


def seen_with(*documents: Document, most: int = BOUND) -> ClusterCache:
    cache, _ = new_cache(most_template_bytes=most)
    for one in documents:
        cache.jobs.on_upsert(read(RawCustomObject, one))
    return cache


def names(cache: ClusterCache) -> list[str]:
    return sorted(job.metadata.name for job in training_jobs(cache.observe().workloads))


def bytes_of(cache: ClusterCache, name: str) -> int:
    known = cache.jobs.get(f"uid-{name}")
    assert known is not None
    return known.templates["trainer"].size


def test_a_job_over_the_limit_of_its_namespace_is_rejected_with_namespace_bytes_and_limit() -> None:
    cache = seen_with(document("a", 1), document("b", 2), document("c", 3))
    assert (names(cache), set(cache.jobs.invalid)) == (["a", "b"], {"team/c"})
    together = 3 * bytes_of(cache, "a")
    error = cache.jobs.invalid["team/c"].error
    assert error.startswith("spec.roles: ")
    for part in ("namespace team", f"{together:,} bytes", "at most 3,000", "end or delete jobs"):
        assert part in error


def test_equal_templates_count_once_per_namespace() -> None:
    alike = [document(f"j{number}", number + 1, "all") for number in range(5)]
    others = [document(f"o{number}", number + 10, namespace="other") for number in range(2)]
    cache = seen_with(*alike, *others, document("more", 20))
    assert (len(names(cache)), dict(cache.jobs.invalid)) == (8, {})


def test_finished_and_deleted_jobs_do_not_count() -> None:
    cache = seen_with(document("a", 1), document("b", 2), document("c", 3, status=ended()))
    cache.jobs.on_upsert(read(RawCustomObject, document("a", 4, status=ended())))
    cache.jobs.on_upsert(read(RawCustomObject, document("d", 5)))
    cache.jobs.on_delete(read(RawCustomObject, document("b", 6)))
    cache.jobs.on_upsert(read(RawCustomObject, document("e", 7)))
    assert (names(cache), dict(cache.jobs.invalid)) == (["a", "c", "d", "e"], {})
    cache.jobs.on_upsert(read(RawCustomObject, document("f", 8)))
    assert set(cache.jobs.invalid) == {"team/f"}


def test_accepted_jobs_stay_after_a_restart_with_a_lower_limit() -> None:
    """The API server lists by name, so the rejected job comes first."""
    refused = document("a", 9)
    cache = seen_with(refused, document("r", 2, status=admitted()), document("w", 3, status=waiting()), most=1)
    assert (names(cache), set(cache.jobs.invalid)) == (["r", "w"], {"team/a"})
    refused["status"] = {
        "conditions": [{**waiting()["conditions"][0], "reason": "InvalidSpec"}],
        "observedGeneration": 1,
    }
    full = [document(name, number, status=waiting()) for number, name in enumerate("bcdefg", 10)]
    again = seen_with(refused, *full)
    assert set(names(again)) >= set("bcdefg")


def test_an_edit_of_a_pending_job_counts_and_is_rejected_until_it_fits() -> None:
    cache = seen_with(document("a", 1, status=waiting()), document("b", 2, status=waiting()))

    def edit(version: int, generation: int, size: int, status: Document) -> None:
        one = document("b", version, size=size, status=status)
        one["metadata"]["generation"] = generation
        cache.jobs.on_upsert(read(RawCustomObject, one))

    edit(3, 2, 1500, waiting())
    assert names(cache) == ["a", "b"], "what it had before does not count"
    edit(4, 2, 2500, waiting())
    assert (names(cache), set(cache.jobs.invalid)) == (["a"], {"team/b"})
    rejected = waiting(2)
    rejected["conditions"][0]["reason"] = "InvalidSpec"
    edit(5, 2, 2500, rejected)
    assert set(cache.jobs.invalid) == {"team/b"}, "the reported error does not make it an accepted one"
    edit(6, 3, 1200, rejected)
    assert (names(cache), dict(cache.jobs.invalid)) == (["a", "b"], {})


class Cluster(Server):
    """Lists the given jobs."""

    jobs: tuple[Document, ...] = ()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET" and request.path.endswith("/trainingjobs"):
            self.calls.append(f"GET {request.query['fieldSelector']}")
            name = request.query["fieldSelector"].removeprefix("metadata.name=")
            return web.json_response({"items": [one for one in self.jobs if one["metadata"]["name"] == name]})
        return await super().answer(request)


def reason(status: spec.TrainingJobStatus | None) -> str:
    condition = None if status is None else find_condition(status, ADMITTED)
    return "" if condition is None else condition.reason


def test_a_rejected_job_has_a_condition_and_is_accepted_once_others_have_ended() -> None:
    server = Cluster()
    server.jobs = (document("c", 7),)

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api, most_template_bytes=BOUND)
        for one in (document("a", 5), document("b", 6), document("c", 7)):
            harness.cache.jobs.on_upsert(read(RawCustomObject, one))
        for _ in range(3):
            await harness.run_cycle()
        assert reason(harness.cache.jobs.invalid["team/c"].status) == "InvalidSpec"
        assert server.calls.count("GET metadata.name=c") == 0, "no job has ended"
        harness.cache.jobs.on_delete(read(RawCustomObject, document("a", server.version + 1)))
        await harness.run_cycle()
        await harness.run_cycle()
        assert (names(harness.cache), dict(harness.cache.jobs.invalid)) == (["b", "c"], {})
        assert server.calls.count("GET metadata.name=c") == 1

    serve(server, scenario)


# ---- limits of one job


def large(name: str, version: int, status: Any = None, generation: int = 1) -> Document:
    one = document(name, version, "same", status=status)
    one["spec"]["roles"][0]["template"]["spec"]["odd"] = [0] * (MAX_ROLES_VALUES + 1)
    one["metadata"]["generation"] = generation
    return one


def test_a_job_over_the_size_limit_is_rejected_unless_accepted_before() -> None:
    cache = seen_with(
        large("runs", 1, admitted()),
        large("waits", 2, waiting()),
        large("new", 3),
        large("edited", 4, waiting(generation=1), generation=2),
        most=2**20,
    )
    assert (names(cache), set(cache.jobs.invalid)) == (["runs", "waits"], {"team/new", "team/edited"})
    cache.jobs.on_upsert(read(RawCustomObject, large("runs", 9, admitted(), generation=2)))
    assert names(cache) == ["runs", "waits"]


def test_an_accepted_job_over_the_size_limit_can_be_read() -> None:
    whole = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob"}
    one = spec.TrainingJob.model_validate_json(json.dumps(whole | large("runs", 1, admitted())))
    assert spec.TrainingJob.model_validate_json(one.model_dump_json(by_alias=True)) == one
    with pytest.raises(ValueError, match="must have at most"):
        spec.TrainingJob.model_validate_json(json.dumps(whole | large("new", 1)))
