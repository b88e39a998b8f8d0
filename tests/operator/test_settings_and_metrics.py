"""Finalizers, metrics, flags."""

from __future__ import annotations

import re
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.operator.caches import new_cache
from tests.operator.objects import job, job_document, read

from muster.api import spec
from muster.kinds.suspended.table import BATCH_JOB
from muster.kinds.trainingjob.adapter import TrainingJobWorkload
from muster.kube.objects import RawCustomObject, V1Pod
from muster.state.projection import AllowedNamespaces
from muster.version import version
from muster.workload.conditions import with_status_fields
from muster_operator.cache.cached_object import record_name
from muster_operator.job_transitions import job_transitions, log_transition
from muster_operator.metrics import JobMetrics, OperatorMetrics
from muster_operator.settings import parse_flags
from muster_operator.writes.finalizers import IN_USE, desired_finalizers, used_queues

RESEARCH = spec.Queue.model_validate({"metadata": {"name": "research"}})


def queue(*finalizers: str, leaving: bool = False) -> spec.Queue:
    meta = {"name": "q", "finalizers": list(finalizers), "deletionTimestamp": 5.0 if leaving else None}
    return spec.Queue.model_validate({"metadata": meta})


def test_a_queue_has_the_finalizer_while_jobs_name_it() -> None:
    unused, used = frozenset[str](), frozenset({"q"})
    assert desired_finalizers(queue("other"), unused) == ["other", IN_USE]
    assert desired_finalizers(queue(IN_USE), unused) is None
    assert desired_finalizers(queue(IN_USE, leaving=True), used) is None
    assert desired_finalizers(queue("other", IN_USE, leaving=True), unused) == ["other"]
    assert desired_finalizers(queue("other", leaving=True), unused) is None


def test_only_jobs_that_a_queue_selects_or_gave_capacity_to_are_in_it() -> None:
    """Any user may create a job that names any queue, also one that cannot be read."""
    cache, _ = new_cache()
    admitted = {"conditions": [{"type": "Admitted", "status": "True", "lastTransitionTime": "2026-11-28T10:00:00Z"}]}
    broken: dict[str, Any] = {"spec": {"queue": "q", "roles": 7}}

    def queues_with(**selector: Any) -> set[str]:
        queue = spec.Queue.model_validate({"metadata": {"name": "q"}, "spec": selector})
        return used_queues(cache, AllowedNamespaces((queue,), {}))

    cache.jobs.on_upsert(read(RawCustomObject, job_document("waits", 1, queue="q")))
    cache.jobs.on_upsert(read(RawCustomObject, {**job_document("broken", 2), **broken}))
    assert queues_with() == set()
    assert queues_with(namespaceSelector={"matchLabels": {"team": "a"}}) == set()
    assert queues_with(namespaceSelector={}) == {"q"}
    cache.jobs.on_delete(read(RawCustomObject, job_document("waits", 3, queue="q")))
    assert queues_with(namespaceSelector={}) == {"q"}, "the job that cannot be read"
    cache.jobs.on_upsert(read(RawCustomObject, {**job_document("runs", 4, queue="q"), "status": admitted}))
    assert queues_with() == {"q"}


def test_the_queue_of_an_object_that_is_gone_is_in_use_while_pods_of_it_are_left() -> None:
    cache, _ = new_cache(kinds=(BATCH_JOB,))
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "gone", "uid": "u-gone"}
    meta = {"name": record_name(BATCH_JOB, "gone", "u-gone"), "namespace": "team", "uid": "u-w", "resourceVersion": "5"}
    document = {"metadata": meta, "spec": {"objectRef": reference, "queue": "q"}, "status": {}}
    cache.objects.statuses.on_upsert(read(RawCustomObject, document))
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "gone", "uid": "u-gone", "controller": True}
    of_pod = {"name": "p", "namespace": "team", "uid": "u-p", "resourceVersion": "6", "ownerReferences": [owner]}
    pod = read(V1Pod, {"metadata": {**of_pod, "labels": {"muster.dev/attempt": "0"}}, "spec": {"nodeName": "n"}})
    cache.objects.handlers[0].on_list(set(), 9)
    allowed = AllowedNamespaces((), {})
    assert used_queues(cache, allowed) == set()
    cache.pods.on_upsert(pod)
    assert used_queues(cache, allowed) == {"q"}
    cache.pods.on_delete(pod)
    assert used_queues(cache, allowed) == set()


def test_metrics_have_the_names_types_and_labels_of_their_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    documented = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in re.findall(r"^\| `(muster_\w+)` \| (\w+) \| (.*?) ?\|", page, re.MULTILINE)
    }
    metrics = OperatorMetrics()
    labels = {one._original_name: one._labelnames for one in vars(metrics).values() if hasattr(one, "_labelnames")}
    types = re.findall(r"^# TYPE (\w+) (\w+)$", metrics.exposition().decode(), re.MULTILINE)
    assert {name: (kind, labels[name]) for name, kind in types} == documented


def test_metrics_have_the_prometheus_text_format() -> None:
    metrics = OperatorMetrics()
    metrics.count_call("GET", 'say "hi"\n', "200")
    metrics.admission_s.observe(0.02)
    lines = metrics.exposition().decode().splitlines()
    assert lines[:3] == [
        "# HELP muster_api_calls_total Requests to the API server.",
        "# TYPE muster_api_calls_total counter",
        'muster_api_calls_total{code="200",resource="say \\"hi\\"\\n",verb="GET"} 1.0',
    ]
    assert {
        'muster_admission_seconds_bucket{le="0.01"} 0.0',
        'muster_admission_seconds_bucket{le="0.025"} 1.0',
        'muster_admission_seconds_bucket{le="+Inf"} 1.0',
        "muster_admission_seconds_count 1.0",
        "muster_admission_seconds_sum 0.02",
    } <= set(lines)
    assert not any("_created" in line for line in lines)


def test_gpu_seconds_count_while_a_job_is_admitted() -> None:
    now = [100.0]
    place = {"role": "trainer", "flavor": "h200", "nodes": [{"node": "n", "indexes": "0-1"}]}
    since = "2026-11-21T10:00:00Z"
    admitted = {"type": "Admitted", "status": "True", "reason": "Admitted", "lastTransitionTime": since}
    status = spec.TrainingJobStatus.model_validate(
        {"phase": "Admitted", "conditions": [admitted], "placement": [place], "submittedAt": 40.0}
    )
    waiting = job()
    running = waiting.model_copy(update={"status": status})
    metrics, jobs = OperatorMetrics(), [running]
    job_metrics = JobMetrics(metrics, lambda: map(TrainingJobWorkload, jobs), lambda: [RESEARCH], lambda: now[0])
    job_metrics.on_status_written(TrainingJobWorkload(waiting), status, 100.0)
    now[0] = 110.0
    job_metrics.refresh()
    gpu_seconds = partial(
        metrics.registry.get_sample_value,
        "muster_gpu_seconds_total",
        {"queue": "research", "namespace": "team", "resource": "nvidia.com/gpu"},
    )
    queue_jobs = partial(
        metrics.registry.get_sample_value, "muster_queue_jobs", {"queue": "research", "phase": "Admitted"}
    )
    assert (gpu_seconds(), queue_jobs()) == (20.0, 1.0)
    assert metrics.registry.get_sample_value("muster_admissions_total", {"queue": "research"}) == 1.0
    assert metrics.registry.get_sample_value("muster_wait_seconds_sum", {"queue": "research"}) == 60.0
    jobs.clear()
    now[0] = 115.0
    job_metrics.refresh()
    job_metrics.refresh()
    assert (gpu_seconds(), queue_jobs()) == (30.0, None)


def status_with(*true: str, **fields: Any) -> spec.TrainingJobStatus:
    """A status with these conditions, each `TYPE REASON`."""
    conditions = [
        {"type": one.split()[0], "status": "True", "reason": one.split()[1], "lastTransitionTime": 1.0} for one in true
    ]
    place = {"role": "trainer", "flavor": "h200", "nodes": [{"node": "n", "indexes": "0-1"}]}
    status = spec.TrainingJobStatus.model_validate({"conditions": conditions, "placement": [place], **fields})
    return with_status_fields(status, {})


def test_evictions_restarts_losses_start_timeouts_and_ends_are_counted_by_queue_and_reason() -> None:
    metrics = OperatorMetrics()
    job_metrics = JobMetrics(metrics, list, lambda: [RESEARCH], lambda: 100.0)
    running = status_with("Admitted Admitted", "PodsReady Ready")
    for new in (
        status_with(
            "Admitted Admitted", "Evicted Preempted", eviction={"for": "uid-p", "reason": "Preempted", "deadline": 9.0}
        ),
        status_with("Admitted Admitted", "Evicted NodeLost", nodeLosses=1),
        status_with("Admitted Admitted", "Evicted StartTimeout", startRetries=1),
        status_with("Admitted Admitted", restarts=1, attempt=1),
        status_with("Failed TooManyRestarts"),
        status_with("Complete Completed"),
        status_with("Failed StartTimeout"),
    ):
        before = job().model_copy(update={"status": running})
        job_metrics.on_status_written(TrainingJobWorkload(before), new, 100.0)
        other = before.model_copy(update={"spec": before.spec.model_copy(update={"queue": f"invented-{id(new)}"})})
        job_metrics.on_status_written(TrainingJobWorkload(other), new, 100.0)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"queue": "research", **labels})

    reasons = ("Preempted", "NodeLost", "StartTimeout")
    assert [value("muster_evictions_total", reason=reason) for reason in reasons] == [1.0, 1.0, 1.0]
    names = ("muster_restarts_total", "muster_losses_total", "muster_start_timeouts_total")
    assert [value(name) for name in names] == [1.0, 1.0, 2.0]
    ends = (("Failed", "TooManyRestarts"), ("Succeeded", "Completed"), ("Failed", "StartTimeout"))
    assert [value("muster_jobs_ended_total", phase=phase, reason=reason) for phase, reason in ends] == [1.0, 1.0, 1.0]
    assert value("muster_jobs_ended_total", queue="(none)", phase="Succeeded", reason="Completed") == 1.0
    assert b"invented" not in metrics.exposition(), "a user chooses the queue that a job names"


def test_time_of_jobs_is_counted_by_cause_once_that_ends() -> None:
    def status(cause: str, **milliseconds: int) -> spec.TrainingJobStatus:
        sums = {name.replace("_", "/"): amount for name, amount in milliseconds.items()}
        return spec.TrainingJobStatus(time_spent=spec.TimeSpentStatus(cause=cause, since=0.0, milliseconds=sums))

    metrics = OperatorMetrics()
    watched = JobMetrics(metrics, list, lambda: [RESEARCH], lambda: 0.0)
    waited = status("start", waiting_QuotaExceeded=4_000, waiting_NotReconciled=500)
    started = status("running", waiting_QuotaExceeded=4_000, waiting_NotReconciled=500, start=2_000)
    for before, after in ((spec.TrainingJobStatus(), waited), (waited, started), (started, started)):
        watched.on_status_written(TrainingJobWorkload(job().model_copy(update={"status": before})), after, 0.0)
    for cause, seconds in (("waiting", 4.5), ("start", 2.0), ("running", None)):
        found = metrics.registry.get_sample_value(
            "muster_job_time_seconds_total", {"queue": "research", "cause": cause}
        )
        assert found == seconds


def test_waiting_jobs_quota_and_the_version_are_exported_and_queues_that_do_not_exist_share_a_label() -> None:
    usage = {
        "pendingJobs": 1, "admittedJobs": 0, "at": 1.0,
        "flavors": [{"flavor": "h200", "used": {"cpu": "1500m"}, "guaranteed": {"nvidia.com/gpu": "8"}}],
    }  # fmt: skip
    research = RESEARCH.model_copy(update={"status": spec.QueueStatus.model_validate({"usage": usage})})
    waiting = job().model_copy(update={"status": spec.TrainingJobStatus(phase="Pending", reason="QuotaExceeded")})
    lost = waiting.model_copy(
        update={
            "spec": waiting.spec.model_copy(update={"queue": "invented"}),
            "metadata": waiting.metadata.model_copy(update={"uid": "other"}),
        }
    )
    metrics = OperatorMetrics()
    job_metrics = JobMetrics(
        metrics, lambda: map(TrainingJobWorkload, (waiting, lost)), lambda: [research], lambda: 100.0
    )
    job_metrics.refresh()
    lines = metrics.exposition().decode().splitlines()
    expected = {
        'muster_queue_waiting_jobs{queue="research",reason="QuotaExceeded"} 1.0',
        'muster_queue_waiting_jobs{queue="(none)",reason="QuotaExceeded"} 1.0',
        'muster_queue_used{flavor="h200",queue="research",resource="cpu"} 1.5',
        'muster_queue_guaranteed{flavor="h200",queue="research",resource="nvidia.com/gpu"} 8.0',
        f'muster_build_info{{version="{version()}"}} 1.0',
    }
    assert expected <= set(lines)
    job_metrics.reset()
    left = [line for line in metrics.exposition().decode().splitlines() if line in expected]
    assert left == [f'muster_build_info{{version="{version()}"}} 1.0'], "another operator exports the others now"


def test_each_transition_of_a_job_has_one_log_line_with_job_nodes_reason_and_beneficiary(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "muster.operator")
    pending, running = (
        status_with("Complete x").model_copy(update={"conditions": [], "phase": "Pending"}),
        status_with("Admitted Admitted", "PodsReady Ready"),
    )
    evicted = status_with(
        "Admitted Admitted", "Evicted Preempted", eviction={"for": "uid-p", "reason": "Preempted", "deadline": 9.0}
    )
    failure = {"pod": "j-trainer-0", "node": "n", "exitCode": 7}
    steps = (pending, running, evicted, pending, running, status_with("Failed TooManyRestarts", lastFailure=failure))
    for old, new in pairwise(steps):
        for one in job_transitions(old, new):
            log_transition(one, "team/j", new, lambda uid: f"team/{uid}")
    lines = [(record.message, record.__dict__) for record in caplog.records]
    assert [line for line, _ in lines] == [
        "job admitted", "job evicted", "job requeued", "job admitted", "job ended",
    ]  # fmt: skip
    assert [(one["job"], one["nodes"]) for _, one in lines] == [("team/j", ["n"])] * 5
    assert (lines[1][1]["reason"], lines[1][1]["for"]) == ("Preempted", "team/uid-p")
    assert (lines[4][1]["reason"], lines[4][1]["exit_code"]) == ("TooManyRestarts", 7)
    assert not list(job_transitions(running, running.model_copy(update={"pods_ready": 1}))), "not for each status"


def test_collectives_per_step_are_exported_of_running_jobs_that_report_them() -> None:
    progress = {"step": 4, "attempt": 1, "at": 90.0, "collectivesPerStep": 12.5, "collectiveBytesPerStep": 2**31}
    running = job().model_copy(
        update={
            "status": spec.TrainingJobStatus.model_validate({"phase": "Running", "attempt": 1, "progress": progress})
        }
    )
    metrics, jobs = OperatorMetrics(), [running]
    job_metrics = JobMetrics(metrics, lambda: map(TrainingJobWorkload, jobs), lambda: [RESEARCH], lambda: 100.0)

    def exported() -> list[float | None]:
        labels = {"namespace": "team", "job": running.metadata.name}
        names = ("muster_job_collectives_per_step", "muster_job_collective_bytes_per_step")
        return [metrics.registry.get_sample_value(name, labels) for name in names]

    job_metrics.refresh()
    assert exported() == [12.5, 2**31]
    for other in ({"attempt": 2}, {"phase": "Succeeded"}, {"progress": None}):
        jobs[:] = [running.model_copy(update={"status": running.status.model_copy(update=other)})]
        job_metrics.refresh()
        assert exported() == [None, None]
        jobs[:] = [running]
        job_metrics.refresh()
    job_metrics.reset()
    assert exported() == [None, None]


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--lease-duration-seconds", "5"], "--lease-duration-seconds 5 must be above --renew-deadline-seconds 10"),
        (["--qps", "0"], "must be a number above 0; got '0'"),
        (["--listen", "here"], "--listen must be HOST:PORT, such as 127.0.0.1:8080; got 'here'"),
        (
            ["--listen", "127.0.0.1:" + "9" * 5000],
            "--listen must be HOST:PORT, such as 127.0.0.1:8080; got '127.0.0.1:999",
        ),
        (["--listen-local", "0.0.0.0:1"], "--listen-local must be on loopback"),
    ],
)
def test_an_invalid_flag_is_rejected_with_the_valid_values(
    flags: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_flags(flags)
    assert error in capsys.readouterr().err


def test_two_operators_on_one_host_have_different_identities() -> None:
    assert parse_flags([]).identity != parse_flags([]).identity


def test_the_time_of_pods_is_divided_of_running_jobs_and_of_those_that_have_ended() -> None:
    run = spec.RunTimeStatus(attempt=0, last_step=9, at=60.0, milliseconds={"start": 3_000, "productive": 40_000})

    def status(cause: str, **fields: object) -> spec.TrainingJobStatus:
        spent = {"waiting/QuotaExceeded": 10_000, "running": 40_000 if cause == "running" else 50_000}
        time_spent = spec.TimeSpentStatus(cause=cause, since=60.0, milliseconds=spent, runs=[run])
        return spec.TrainingJobStatus.model_validate({"phase": "Running", "time_spent": time_spent, **fields})

    metrics = OperatorMetrics()
    running = TrainingJobWorkload(job().model_copy(update={"status": status("running")}))
    watched = JobMetrics(metrics, lambda: [running], lambda: [RESEARCH], lambda: 70.0)
    watched.refresh()
    meta = running.metadata
    shown = {
        cause: metrics.registry.get_sample_value(
            "muster_running_job_seconds", {"namespace": meta.namespace or "default", "job": meta.name, "cause": cause}
        )
        for cause in ("waiting", "start", "productive", "running", "unknown")
    }
    assert shown == {"waiting": 10.0, "start": 3.0, "productive": 40.0, "running": 7.0, "unknown": None}
    watched.on_status_written(running, status("", phase="Succeeded", finished_at=70.0), 0.0)
    ended = {
        cause: metrics.registry.get_sample_value(
            "muster_ended_job_time_seconds_total", {"queue": "research", "cause": cause}
        )
        for cause in ("waiting", "start", "productive", "running", "unknown")
    }
    assert ended == {"waiting": 10.0, "start": 3.0, "productive": 40.0, "running": None, "unknown": 7.0}
