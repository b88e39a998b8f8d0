"""Termination messages of collectors: status.traces, and checkpoints."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.caches import FakeDryRuns
from tests.operator.objects import job, job_document, pod_seen, read, template

from muster.api import spec
from muster.kube.objects import RawCustomObject, V1ContainerStatus
from muster_operator.cache.cached_pod import TerminationMessage, parse_termination_message
from muster_operator.cache.cluster_cache import ClusterCache, CollectorSettings
from muster_operator.job_status import TraceStatusTracker
from muster_operator.pod_builder.collector import CollectorSidecarConfig, run_location
from muster_operator.runners.create_pods.pod_owner import pod_owner

UID = "uid-llama"
TRACE = {"startStep": 20, "steps": 5}
STORE = CollectorSidecarConfig(image="x", store="s3://bucket/muster/")
LOCATION = f"s3://bucket/muster/team/llama-{UID}"
CLAIM = {"name": "muster-run", "persistentVolumeClaim": {"claimName": "runs"}}
OVER = {
    "conditions": [
        {"type": "Complete", "status": "True", "reason": "Completed", "lastTransitionTime": "2026-11-21T10:00:00Z"}
    ],
    "phase": "Succeeded",
}
RAN = {"startedAt": "2026-11-21T10:00:00Z"}


def ended(words: str, name: str = "muster-collector") -> V1ContainerStatus:
    return read(V1ContainerStatus, {"name": name, "state": {"terminated": {"exitCode": 0, "message": words}}})


class CacheHarness:
    """The cache with one job of two pods."""

    def __init__(
        self, choices: CollectorSidecarConfig = STORE, pod: dict[str, Any] | None = None, **fields: Any
    ) -> None:
        self.pod_template = pod or template()
        self.fields = {"trace": TRACE, **fields}
        self.cache = ClusterCache(
            FakeDryRuns(), pod_owner, lambda: None, clock=lambda: 2e9, collectors=CollectorSettings(choices)
        )
        self.traces = TraceStatusTracker(self.cache, choices)

    def job(self, version: int = 1, **status: Any) -> None:
        roles = [{"name": "trainer", "replicas": 2, "template": self.pod_template}]
        document = job_document(version=version, **{**self.fields, "roles": roles})
        self.cache.jobs.on_upsert(read(RawCustomObject, {**document, "status": {**RAN, **status}}))

    def pod(self, index: int, version: int, words: str | None = None, phase: str = "Running", attempt: int = 0) -> None:
        pod = pod_seen(version=version, owner=UID, slot=(index, attempt), phase=phase)
        pod.status.init_container_statuses = [] if words is None else [ended(words)]
        self.cache.pods.on_upsert(pod)

    def status_traces(self) -> spec.TraceStatus | None:
        known = self.cache.jobs.get(UID)
        assert known is not None
        return self.traces.with_traces(known, known.job.status).traces


def words(traces: int, step: int | None = None) -> str:
    checkpoint = None if step is None else {"step": step, "at": 1.5e9}
    return json.dumps({"traces": traces, "checkpoint": checkpoint})


def test_a_termination_message_is_the_collectors_and_has_valid_numbers() -> None:
    assert parse_termination_message([ended("{}", "other"), ended(words(2, 40))]) == TerminationMessage(2, (40, 1.5e9))
    for step, at, checkpoint in (('"x"', 1, (None, 1.0)), ("null", 1, (None, 1.0)), ("40", '"x"', None)):
        message = f'{{"traces": -1, "checkpoint": {{"step": {step}, "at": {at}}}}}'
        assert parse_termination_message([ended(message)]) == TerminationMessage(0, checkpoint)
    for nothing in ("", "Traceback (most recent call last)", "[]", "x" * 5000):
        assert parse_termination_message([ended(nothing)]) is None


@pytest.mark.parametrize(
    ("choices", "pod", "location"),
    [
        (STORE, template(), LOCATION),
        (CollectorSidecarConfig(image="x"), template(), ""),
        (CollectorSidecarConfig(image="x"), template(volumes=[CLAIM]), f"pvc://runs/team/llama-{UID}"),
        (
            CollectorSidecarConfig(image="x"),
            template(volumes=[{"name": "muster-run", "nfs": {"server": "a", "path": "/b"}}]),
            f"volume://muster-run/team/llama-{UID}",
        ),
        (
            CollectorSidecarConfig(image="x"),
            template(
                volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "mine"}}],
                containers=[
                    {
                        "name": "main",
                        "env": [{"name": "MUSTER_RUN_DIR", "value": "/data/runs/$(MUSTER_JOB)"}],
                        "volumeMounts": [{"name": "data", "mountPath": "/data", "subPath": "me"}],
                    }
                ],
            ),
            "pvc://mine/me/runs/llama",
        ),
    ],
)
def test_the_location_of_a_run_is_the_store_or_the_jobs_volume(
    choices: CollectorSidecarConfig, pod: dict[str, Any], location: str
) -> None:
    one = job(roles=[{"name": "trainer", "replicas": 2, "template": pod}])
    assert run_location(one, choices) == location


def test_every_status_of_a_started_traced_job_has_the_location_of_its_traces() -> None:
    harness = CacheHarness()
    harness.job()
    assert harness.status_traces() == spec.TraceStatus(location=LOCATION)
    known = harness.cache.jobs.get(UID)
    assert known is not None
    once = harness.traces.with_traces(known, known.job.status)
    assert harness.traces.with_traces(known, once) is once


def test_with_collectors_of_all_jobs_and_a_store_the_location_is_known_without_a_trace() -> None:
    """Logs, metrics and requested traces are there."""
    harness = CacheHarness(replace(STORE, all_jobs=True), trace=None)
    harness.job()
    assert harness.status_traces() == spec.TraceStatus(location=LOCATION)
    without_store = CacheHarness(CollectorSidecarConfig(image="x", all_jobs=True), trace=None)
    without_store.job()
    assert without_store.status_traces() is None
    without_store.pod(0, 2, words(1), "Succeeded")
    assert without_store.status_traces() == spec.TraceStatus(files=1)


def test_jobs_without_traces_or_collectors_have_no_trace_status() -> None:
    for harness in (CacheHarness(trace=None), CacheHarness(CollectorSidecarConfig())):
        harness.job()
        assert harness.status_traces() is None


def test_after_the_job_and_its_pods_ended_the_count_is_written_once() -> None:
    harness = CacheHarness()
    harness.job()
    harness.pod(0, 1)
    harness.pod(1, 2)
    harness.pod(0, 3, words(1), "Succeeded")
    assert harness.traces.due_writes() == []
    harness.job(version=4, **OVER)
    assert harness.traces.due_writes() == []  # a pod still runs
    harness.pod(1, 5, words(2), "Succeeded")
    (write,) = harness.traces.due_writes()
    assert (write.job_uid, write.resource_version) == (UID, "4")
    assert isinstance(write.status, spec.TrainingJobStatus)
    assert write.status.traces == spec.TraceStatus(files=3, location=LOCATION)
    harness.job(version=6, traces={"files": 3, "location": LOCATION}, **OVER)
    assert harness.traces.due_writes() == []


def test_the_count_never_decreases() -> None:
    harness = CacheHarness()
    harness.job(traces={"files": 7, "location": LOCATION})
    harness.pod(0, 2, words(1), "Succeeded")
    assert harness.status_traces() == spec.TraceStatus(files=7, location=LOCATION)


def test_a_new_leader_counts_the_termination_messages_in_any_list_order() -> None:
    harness = CacheHarness()
    harness.pod(0, 1, words(1), "Succeeded")
    harness.pod(1, 2, words(1), "Succeeded")
    harness.job(version=3, **OVER)
    harness.cache.observe()
    (write,) = harness.traces.due_writes()
    assert isinstance(write.status, spec.TrainingJobStatus)
    assert write.status.traces == spec.TraceStatus(files=2, location=LOCATION)


@pytest.mark.parametrize(("volumes", "step"), [([CLAIM], 40), ([], None)])
def test_the_checkpoint_in_the_termination_message_counts_if_durable(volumes: list[Any], step: int | None) -> None:
    harness = CacheHarness(pod=template(volumes=volumes))
    harness.job()
    harness.pod(1, 1, words(0, 99), "Succeeded")  # not the lead pod
    harness.pod(0, 2, words(0, 40), "Succeeded")
    heartbeat = harness.cache.observe().heartbeats.get(UID)
    assert (None if heartbeat is None else heartbeat.checkpoint_step) == step


@pytest.mark.parametrize("pod_first", [True, False])
def test_the_collector_of_an_attempt_that_has_not_begun_does_not_count(pod_first: bool) -> None:
    harness = CacheHarness(pod=template(volumes=[CLAIM]))
    harness.job()
    if not pod_first:
        harness.cache.observe()
    harness.pod(0, 2, words(5, 40), "Succeeded", attempt=1)
    assert (harness.cache.observe().heartbeats, harness.cache.trace_counts.count(UID)) == ({}, 0)
    harness.job(version=3, attempt=1)
    assert harness.cache.observe().heartbeats[UID].checkpoint_step == 40
    assert harness.cache.trace_counts.count(UID) == 5
