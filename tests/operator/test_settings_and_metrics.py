"""Finalizers, metrics, flags."""

from __future__ import annotations

import pytest
from tests.operator.objects import job

from muster import spec
from muster_operator.finalizers import desired_finalizers
from muster_operator.job_metrics import JobMetrics
from muster_operator.labels import IN_USE
from muster_operator.metrics import Histogram, Metric, OperatorMetrics
from muster_operator.settings import parse_flags


def queue(*finalizers: str, leaving: bool = False) -> spec.Queue:
    meta = {"name": "q", "finalizers": list(finalizers), "deletionTimestamp": 5.0 if leaving else None}
    return spec.Queue.model_validate({"metadata": meta})


def test_a_queue_has_the_finalizer_while_jobs_name_it() -> None:
    nobody, somebody = frozenset[str](), frozenset({"q"})
    assert desired_finalizers(queue("other"), nobody) == ["other", IN_USE]
    assert desired_finalizers(queue(IN_USE), nobody) is None
    assert desired_finalizers(queue(IN_USE, leaving=True), somebody) is None
    assert desired_finalizers(queue("other", IN_USE, leaving=True), nobody) == ["other"]
    assert desired_finalizers(queue("other", leaving=True), nobody) is None


def test_metrics_have_the_prometheus_text_format() -> None:
    calls = Metric("counter", "calls_total", "Calls.", ("verb",))
    calls.add(1, ('say "hi"\n',))
    calls.add(1.5, ("GET",))
    assert list(calls.lines()) == [
        "# HELP calls_total Calls.",
        "# TYPE calls_total counter",
        'calls_total{verb="GET"} 1.5',
        'calls_total{verb="say \\"hi\\"\\n"} 1',
    ]
    waits = Histogram("wait_seconds", "Waits.", (1.0, 10.0))
    for value in (0.5, 1.0, 3.0, 99.0):
        waits.observe(value)
    assert list(waits.lines())[2:] == [
        'wait_seconds_bucket{le="1"} 2',
        'wait_seconds_bucket{le="10"} 3',
        'wait_seconds_bucket{le="+Inf"} 4',
        "wait_seconds_sum 103.5",
        "wait_seconds_count 4",
    ]


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
    accounts = JobMetrics(metrics, lambda: jobs, lambda: now[0])
    accounts.on_status_written(waiting, status)
    now[0] = 110.0
    accounts.refresh()
    cell = ("research", "team", "nvidia.com/gpu")
    assert metrics.gpu_s.value(cell) == 20.0
    assert metrics.admitted.value(("research",)) == 1.0
    assert 'muster_wait_seconds_sum{queue="research"} 60' in metrics.text()
    assert 'muster_queue_jobs{queue="research",phase="Admitted"} 1' in metrics.text()
    jobs.clear()
    now[0] = 115.0
    accounts.refresh()
    accounts.refresh()
    assert metrics.gpu_s.value(cell) == 30.0
    assert 'phase="Admitted"' not in metrics.text()


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--lease-duration-seconds", "5"], "--lease-duration-seconds 5 must be above --renew-deadline-seconds 10"),
        (["--qps", "0"], "must be a number above 0; got '0'"),
        (["--listen", "here"], "--listen must be HOST:PORT, such as 127.0.0.1:8080; got 'here'"),
        (["--listen-local", "0.0.0.0:1"], "--listen-local must be on loopback"),
    ],
)
def test_an_invalid_flag_is_rejected_with_the_valid_values(
    flags: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_flags(flags)
    assert complaint in capsys.readouterr().err


def test_two_operators_on_one_host_have_different_identities() -> None:
    assert parse_flags([]).identity != parse_flags([]).identity
