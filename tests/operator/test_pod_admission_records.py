"""Which records of an admission the operator reads from pods, and what an edit of the job does to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.operator.api_server import NOW, Server, serve
from tests.operator.caches import new_cache, relist
from tests.operator.objects import create, job, job_document, node_seen, pod_seen, read, template
from tests.operator.single_pod import (
    ADMISSION,
    ONE_POD,
    SIGNER,
    cache_of_new_leader,
    new_harness,
    pod_with_record,
    single_pod_job,
    status_of,
    watched_pod,
)

from muster import spec
from muster.kube.async_client import AsyncKubeClient
from muster.kube.objects import RawTrainingJob, V1Pod
from muster.lifecycle import Timeouts, is_admitted, is_evicting, transitions
from muster.model import RolePlacement
from muster_operator.cache.admission_signing import (
    AdmissionSigner,
    admission_record,
    admitted_status,
)
from muster_operator.labels import ADMITTED
from muster_operator.pod_builder.pods import PodConfig, pod_manifest

OTHER_KEY = AdmissionSigner(b"o" * 32, "this")
EARLIER_SIGNER = AdmissionSigner(SIGNER.key, "earlier")


def test_the_next_leader_has_the_decided_status() -> None:
    server = Server()

    async def scenario(api: AsyncKubeClient) -> None:
        harness = new_harness(api)
        await harness.run_cycle()
        known = harness.cache.jobs.get("uid-llama")
        assert known is not None
        (pod,) = harness.cache.observe().pods["uid-llama"]
        cache = cache_of_new_leader(watched_pod(server, pod, phase="Pending"), single_pod_job())
        assert status_of(cache) == known.job.status
        assert [one.uid for one in cache.jobs.lagging()] == ["uid-llama"]

    serve(server, scenario)


@pytest.mark.parametrize("first", ["job", "pod", "term"])
def test_the_record_counts_in_any_order_of_job_pod_and_term(first: str) -> None:
    cache = new_cache()[0]
    acts: dict[str, Callable[[], object]] = {
        "job": lambda: cache.jobs.on_upsert(single_pod_job()),
        "pod": lambda: cache.pods.on_upsert(pod_with_record()),
        "term": lambda: cache.begin_term(SIGNER),
    }
    acts.pop(first)()
    for act in acts.values():
        assert not any(is_admitted(one.status) for one in cache.observe().jobs)
        act()
    assert is_admitted(status_of(cache))


FORGED_RECORDS = {
    "another key": pod_with_record(signer=OTHER_KEY),
    "another node": pod_seen("", 6, node="n2", owner="uid-llama"),
    "another attempt": pod_seen("", 6, node="n1", owner="uid-llama", slot=(0, 1)),
    "another flavor": pod_with_record(),
    "no text": pod_with_record(),
}
FORGED_RECORDS["another node"].metadata.annotations.admitted = SIGNER.sign(ADMISSION)
FORGED_RECORDS["another attempt"].metadata.annotations.admitted = SIGNER.sign(ADMISSION)
FORGED_RECORDS["another flavor"].metadata.annotations.admitted = SIGNER.sign(ADMISSION).replace('"f"', '"g"')
FORGED_RECORDS["no text"].metadata.annotations.admitted = '{"at": {}}'


@pytest.mark.parametrize("pod", FORGED_RECORDS.values(), ids=FORGED_RECORDS.keys())
def test_only_a_record_signed_by_an_operator_admits_a_job(pod: V1Pod) -> None:
    cache = cache_of_new_leader(pod, single_pod_job())
    assert not is_admitted(status_of(cache))
    assert not cache.jobs.lagging()


def test_a_pod_of_a_deleted_job_of_that_name_admits_nothing() -> None:
    document = job_document("llama", 5, roles=ONE_POD)
    document["metadata"]["uid"] = "uid-new"
    assert not is_admitted(status_of(cache_of_new_leader(pod_with_record(), read(RawTrainingJob, document))))


def test_a_newer_status_wins_over_the_record() -> None:
    finished = transitions.finish(
        admitted_status(job(roles=ONE_POD), ADMISSION), "Complete", "Completed", "", 1795255300.0
    )
    document = job_document("llama", 9, roles=ONE_POD)
    document["status"] = finished.model_dump(mode="json", by_alias=True, exclude_none=True)
    cache = cache_of_new_leader(pod_with_record(), read(RawTrainingJob, document))
    assert status_of(cache).phase == "Succeeded"
    assert not cache.jobs.lagging()


def test_in_a_new_term_a_deleted_pod_admits_nothing() -> None:
    """Another leader may have given its capacity away meanwhile."""
    cache = cache_of_new_leader(pod_with_record(), single_pod_job())
    assert is_admitted(status_of(cache))
    relist(cache.pods, [], 20)
    assert is_admitted(status_of(cache)), "until then it has only vanished"
    cache.begin_term(AdmissionSigner(SIGNER.key, "after next"))
    assert not is_admitted(status_of(cache))
    assert not cache.jobs.lagging()


def test_a_record_of_a_former_leader_admits_nothing() -> None:
    cache = new_cache()[0]
    cache.jobs.on_upsert(single_pod_job())
    cache.begin_term(SIGNER)
    cache.pods.on_upsert(pod_with_record(signer=EARLIER_SIGNER))
    assert not is_admitted(status_of(cache))


def test_a_leader_that_continues_keeps_its_trusted_records() -> None:
    cache = new_cache()[0]
    cache.begin_term(SIGNER)
    cache.jobs.on_upsert(single_pod_job())
    cache.pods.on_upsert(pod_with_record())
    cache.jobs.on_upsert(single_pod_job(8, 2, priority=7))
    before = status_of(cache)
    cache.begin_term(SIGNER)
    assert status_of(cache) == before
    assert not is_evicting(before)


@pytest.mark.parametrize(
    "more",
    [
        {"conditions": [{"type": "Suspended", "status": "True", "reason": "Suspended", "lastTransitionTime": NOW}]},
        {"nomination": {"placement": [], "expiresAt": NOW}},
        {"attempt": 1},
    ],
    ids=["suspended", "has a nomination", "another attempt"],
)
def test_a_record_of_an_earlier_attempt_does_not_count(more: dict[str, Any]) -> None:
    document = job_document("llama", 9, roles=ONE_POD)
    document["status"] = more
    cache = cache_of_new_leader(pod_with_record(), read(RawTrainingJob, document))
    assert not is_admitted(status_of(cache))


def test_an_edit_that_does_not_affect_pods_keeps_the_admission() -> None:
    cache = cache_of_new_leader(pod_with_record(), single_pod_job())
    cache.jobs.on_upsert(single_pod_job(8, 2, priority=7))
    assert is_admitted(status_of(cache))
    assert not is_evicting(status_of(cache))
    cache.jobs.on_upsert(single_pod_job(9, 3, priority=8))
    assert not is_evicting(status_of(cache))


@pytest.mark.parametrize(
    "edit", [{"queue": "other"}, {"roles": [{**ONE_POD[0], "template": template(nodeSelector={"a": "b"})}]}]
)
def test_an_edit_of_an_immutable_field_evicts_the_job(edit: dict[str, Any]) -> None:
    cache = cache_of_new_leader(pod_with_record(), single_pod_job())
    cache.jobs.on_upsert(single_pod_job(8, 2, **edit))
    assert is_evicting(status_of(cache))
    assert status_of(cache).reason == "Edited"
    cache.jobs.on_upsert(single_pod_job(9, 3, **edit, priority=8))
    assert is_evicting(status_of(cache)), "a further edit does not change that"


def test_the_next_leader_evicts_an_edited_job() -> None:
    assert is_evicting(status_of(cache_of_new_leader(pod_with_record(), single_pod_job(8, 2, priority=7))))


def test_a_job_edited_into_an_invalid_one_in_between_keeps_its_capacity() -> None:
    cache = cache_of_new_leader(pod_with_record(), single_pod_job())
    broken = job_document("llama", 8, roles="none")
    broken["metadata"]["generation"] = 2
    cache.jobs.on_upsert(read(RawTrainingJob, broken))
    assert is_admitted(status_of(cache))
    assert not is_evicting(status_of(cache))


DEEP = '{"x":' * 2000


def test_an_endless_annotation_hides_no_pod() -> None:
    cache = new_cache()[0]
    cache.nodes.on_upsert(node_seen("n1"))
    pod = pod_seen("deep", 6, node="n1")
    pod.metadata.annotations.admitted = DEEP
    cache.pods.on_upsert(pod)
    mine = pod_seen("", 7, node="n1", owner="uid-llama")
    mine.metadata.annotations.admitted = DEEP
    cache.pods.on_upsert(mine)
    (node,) = cache.observe().nodes
    assert node.unmanaged_usage.get("nvidia.com/gpu") == 2


def test_a_template_cannot_set_the_operators_annotation() -> None:
    document = {**template(), "metadata": {"annotations": {ADMITTED: DEEP, "a": "b"}}}
    manifest = pod_manifest(job(roles=ONE_POD), document, create(), [], PodConfig())
    assert manifest["metadata"]["annotations"] == {"a": "b"}


def test_a_later_admission_is_recorded_by_its_pod_as_well() -> None:
    one = job(roles=ONE_POD)
    first = admitted_status(one, ADMISSION)
    left = transitions.requeue(
        transitions.evict(first, "Preempted", "for b", 1795255300.0), 1795255310.0, Timeouts(), [], 0.0
    )
    waits = one.model_copy(update={"status": left})
    again = transitions.admit(left, (RolePlacement("trainer", "g", (("n2", 1),)),), 1795255320.5)
    admission = admission_record(waits, again)
    assert admission is not None
    assert (admission.attempt, admission.node, admission.flavor, admission.at) == (1, "n2", "g", 1795255320.5)
    assert admitted_status(waits, admission) == again


def test_an_admission_that_a_record_cannot_hold_is_written_first() -> None:
    one = job(roles=ONE_POD)
    status = admitted_status(one, ADMISSION)
    assert admission_record(one, status) == ADMISSION
    assert admission_record(one, status.model_copy(update={"restarts": 1})) is None
    nomination = spec.NominationStatus(placement=status.placement, victims=[], expires_at=2e9)
    nominated = one.model_copy(update={"status": one.status.model_copy(update={"nomination": nomination})})
    assert admission_record(nominated, status) is None
    two = transitions.admit(one.status, (RolePlacement("trainer", "f", (("n1", 2),)),), 1795255210.25)
    assert admission_record(one, two) is None
