from __future__ import annotations

import csv
import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.simulate import auditor
from tests.simulate.recordings import FORMS

from muster.api import spec
from muster.simulate import (
    POLICIES,
    RecordedWorkload,
    SimulationConfig,
    SimulationProgress,
    SimulationResult,
    TraceJob,
    TraceNode,
    WorkloadAssumptions,
    read_workload,
    run,
    write_placements,
)  # fmt: skip

KEYS = [
    "policy", "jobs", "completed", "refused", "wait_s", "jct_s", "gpu_utilization", "fragmentation", "preemptions",
    "lost_work_s", "makespan_s", "wall_s", "time_s",
]  # fmt: skip


WHOLE = 1_000_000  # jobs, more than any recording here has
BEGINNING = 40


@functools.cache
def replayed(form: str, policy: str, first: int = BEGINNING) -> tuple[RecordedWorkload, SimulationResult]:
    workload = beginning(form, first)
    return workload, run(workload, POLICIES[policy], SimulationConfig(WorkloadAssumptions(start_delay_s=2.5)))


def beginning(form: str = "plain", first: int = BEGINNING) -> RecordedWorkload:
    whole = read_workload(*FORMS[form])
    return replace(whole, jobs=whole.jobs[:first])


def audit(form: str, result: SimulationResult, path: Path, **named: Any) -> list[str]:
    write_placements(path, result.pod_runs, result.job_rows)
    return auditor.find_errors(*FORMS[form], path, **named)


@pytest.mark.parametrize("first", [BEGINNING, pytest.param(WHOLE, marks=pytest.mark.slow)], ids=["beginning", "whole"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("form", FORMS)
def test_no_node_is_oversubscribed_and_no_gang_runs_partially(
    form: str, policy: str, first: int, tmp_path: Path
) -> None:
    workload, result = replayed(form, policy, first)
    assert result.completed + result.refused == result.jobs == len(workload.jobs), result.notes
    assert audit(form, result, tmp_path / "placements.csv") == []


def test_the_auditor_finds_errors(tmp_path: Path) -> None:
    _, result = replayed("plain", "muster")
    path = tmp_path / "placements.csv"
    assert audit("plain", result, path) == []
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, *(line.replace("cpu-0", "b0-r0-n0") for line in lines[1:40])]))
    assert any("in use of" in error for error in auditor.find_errors(*FORMS["plain"], path))
    runs = [line for line in lines[1:] if line.count(",") == 8]
    gang = next(line for line in runs if sum(other.split(",")[0] == line.split(",")[0] for other in runs) == 8)
    path.write_text("\n".join([lines[0], *(line for line in runs if line != gang)]))
    assert any("the gang has" in error for error in auditor.find_errors(*FORMS["plain"], path))


def test_the_placements_have_one_line_per_run_of_a_pod(tmp_path: Path) -> None:
    workload, result = replayed("plain", "fifo")
    write_placements(tmp_path / "p.csv", result.pod_runs, result.job_rows)
    with (tmp_path / "p.csv").open(newline="") as file:
        header, *lines = csv.reader(file)
    assert header == ["job", "pod", "node", "gpus", "cpu_milli", "memory_mib", "start_s", "end_s", "outcome"]
    pods = {job.name: job.pods for job in workload.jobs}
    refused = {refusal.job for refusal in result.refused_jobs}
    wanted = sum(count for name, count in pods.items() if name not in refused)
    assert len(lines) >= wanted - sum(job.pods - job.min_pods for job in workload.jobs)
    assert {line[8] for line in lines} == {"completed"}


def test_the_metrics_have_the_documented_names() -> None:
    figures = replayed("openb", "backfill")[1].to_json()
    assert list(figures) == KEYS
    assert list(figures["wait_s"]) == list(figures["jct_s"]) == ["mean", "p50", "p95", "p99"]
    assert json.loads(json.dumps(figures)) == figures


def test_the_same_input_gives_the_same_result() -> None:
    workload = beginning()
    first, second = (run(workload, POLICIES["muster"]) for _ in range(2))
    assert first.pod_runs == second.pod_runs
    assert replace(first, wall_s=0.0) == replace(second, wall_s=0.0)


def test_policies_are_compared_and_progress_is_reported_to_the_last_job() -> None:
    workload = beginning()
    seen: list[SimulationProgress] = []
    config = SimulationConfig(progress=seen.append, progress_every_s=0.0)
    results = [run(workload, policy, config) for policy in POLICIES.values()]
    assert [result.policy for result in results] == ["muster", "fifo", "priority", "backfill"]
    assert seen[-1].finished == seen[-1].jobs
    assert max(one.waiting for one in seen) > 0
    by_name = {result.policy: result for result in results}
    assert by_name["backfill"].wait_s.mean < by_name["fifo"].wait_s.mean
    assert by_name["fifo"].preemptions == by_name["priority"].preemptions == by_name["backfill"].preemptions == 0
    assert by_name["muster"].preemptions > 0


# ---- small cases, computed by hand


def one(name: str, submit_s: float, runtime_s: float, pods: int = 1, gpus: int = 8, **fields: Any) -> TraceJob:
    return TraceJob(name, submit_s, runtime_s, pods, gpus, fields.pop("min_pods", pods), **fields)


def figures(*jobs: TraceJob, nodes: int = 2, policy: str = "muster", **habits: Any) -> SimulationResult:
    rows = tuple(TraceNode(f"n{i}", 8, 64_000, 1 << 20, "h200") for i in range(nodes))
    return run(RecordedWorkload(rows, jobs), POLICIES[policy], SimulationConfig(WorkloadAssumptions(**habits)))


def test_waits_and_completion_times_of_two_gangs_that_need_all_nodes() -> None:
    result = figures(one("a", 0, 100, 2), one("b", 40, 50, 2))
    assert (result.wait_s.mean, result.wait_s.p50, result.jct_s.mean) == (30.0, 30.0, 105.0)
    assert (result.makespan_s, result.gpu_utilization) == (150.0, 1.0)
    assert result.fragmentation == 0.0


def test_fifo_blocks_jobs_that_backfill_starts() -> None:
    jobs = (one("running", 0, 100), one("wide", 10, 100, 2), one("small", 20, 50))
    assert figures(*jobs, policy="fifo").wait_s.mean == pytest.approx((0 + 90 + 180) / 3)
    bounded = figures(*jobs, policy="backfill", bound_factor=1.0)
    assert bounded.wait_s.mean == pytest.approx((0 + 90 + 0) / 3)


def test_policy_priority_orders_jobs_without_eviction() -> None:
    jobs = (one("running", 0, 100, 2), one("early", 10, 50, 2), one("urgent", 20, 50, 2, priority=5))
    result = figures(*jobs, policy="priority")
    ends = {run_of_pod.job: run_of_pod.end_s for run_of_pod in result.pod_runs}
    assert [ends[f"j{n:07d}"] for n in range(3)] == [100, 200, 150]
    assert result.preemptions == 0


def test_a_preempted_job_loses_the_work_since_its_checkpoint_and_resumes_there() -> None:
    jobs = (one("low", 0, 100, 2), one("high", 55, 10, 2, priority=5))
    result = figures(*jobs, checkpoint_every_s=20.0, stop_s=5.0)
    assert result.preemptions == 1
    assert result.lost_work_s == pytest.approx(15 * 2), "two pods since 40"
    outcomes = [
        (run_of_pod.start_s, run_of_pod.end_s, run_of_pod.outcome)
        for run_of_pod in result.pod_runs
        if run_of_pod.job == "j0000000"
    ]
    assert outcomes == [(0, 60, "preempted")] * 2 + [(70, 130, "completed")] * 2


def test_a_job_that_checkpoints_on_sigterm_loses_nothing() -> None:
    jobs = (one("low", 0, 100, 2), one("high", 55, 10, 2, priority=5))
    result = figures(*jobs, checkpoint_on_stop=True, stop_s=5.0)
    assert result.lost_work_s == 0.0
    assert result.makespan_s == 60 + 10 + 45


def test_an_elastic_gang_runs_smaller_and_proportionally_longer() -> None:
    jobs = (one("fixed", 0, 1000), one("elastic", 10, 100, 2, min_pods=1))
    result = figures(*jobs)
    assert [(s.start_s, s.end_s) for s in result.pod_runs if s.job == "j0000001"] == [(10, 210)]


def test_a_job_that_exceeds_its_maximum_run_time_fails_with_a_note() -> None:
    result = figures(one("a", 0, 100, max_runtime_s=50))
    assert (result.completed, result.refused) == (0, 0)
    assert any("1 jobs failed" in note for note in result.notes)
    assert [(run_of_pod.end_s, run_of_pod.outcome) for run_of_pod in result.pod_runs] == [(60.0, "maxruntimeexceeded")]


@pytest.mark.parametrize(
    ("job", "code"),
    [
        (one("a", 0, 1, 3), "LargerThanCluster"),
        (one("a", 0, 1, gpus=9), "LargerThanCluster"),
        (one("a", 0, 1, gpu_types=("b200",)), "FlavorNotFound"),
        (one("a", 0, 1, topology="rack"), "UnknownTopologyLevel"),
    ],
)
def test_jobs_that_could_never_start_are_refused_and_the_others_run(job: TraceJob, code: str) -> None:
    result = figures(job, one("b", 5, 10))
    assert (result.jobs, result.completed, result.refused) == (2, 1, 1)
    assert [(refusal.job, refusal.code) for refusal in result.refused_jobs] == [("a", code)]


def test_fragmentation_is_the_share_of_free_gpus_that_no_waiting_job_can_use() -> None:
    half = [one(f"half{i}", 0, 100, gpus=5) for i in range(2)]
    result = figures(*half, one("whole", 50, 10, gpus=8))
    assert result.fragmentation == pytest.approx(6 / 16), "6 GPUs are free on two nodes, a waiting job needs 8 on one"
    usable = figures(*half, one("small", 50, 10, gpus=3), one("whole", 50, 10, gpus=8))
    assert usable.fragmentation == pytest.approx((10 * 3 + 40 * 6) / (16 * 50))


def quota(**gpus: int) -> list[dict[str, Any]]:
    amounts = {kind: {"nvidia.com/gpu": amount} for kind, amount in gpus.items()}
    return [{"flavor": "h200", **amounts}, {"flavor": "cpu"}]


def test_quotas_of_a_given_tree_are_never_exceeded(tmp_path: Path) -> None:
    whole = beginning()
    workload = replace(whole, jobs=tuple(job for job in whole.jobs if job.min_pods * job.gpus_per_pod <= 40))
    share = quota(guaranteed=32, limit=40)
    tree = tuple(
        spec.Queue.model_validate(
            {"metadata": {"name": name}, "spec": {"parent": parent, "namespaceSelector": {}, "resources": resources}}
        )
        for name, parent, resources in (
            ("all", None, quota(guaranteed=64)),
            ("vision", "all", share),
            ("language", "all", share),
        )
    )
    result = run(workload, POLICIES["muster"], SimulationConfig(queue_tree=tree))
    assert result.completed + result.refused == result.jobs
    limits = {"vision": 40, "language": 40}
    assert audit("plain", result, tmp_path / "p.csv", limits=limits) == []
    free = run(workload, POLICIES["muster"])
    assert audit("plain", free, tmp_path / "q.csv", limits=limits) != [], "the limit did bind"


def test_notes_report_rounded_requests_and_jobs_that_never_ran() -> None:
    notes = " ".join(replayed("openb", "fifo", WHOLE)[1].notes)
    with FORMS["openb"][1].open(newline="") as file:
        rows = list(csv.DictReader(file))
    fractions = sum(int(row["num_gpu"]) > 0 and int(row["gpu_milli"]) < 1000 for row in rows)
    never = sum(not row["scheduled_time"] for row in rows)
    assert f"{fractions} jobs request a fraction of a GPU" in notes
    assert f"{never} jobs never ran in the recording" in notes


def test_qos_classes_can_set_the_priority() -> None:
    jobs = (one("running", 0, 100, 2), one("batch", 10, 50, 2, qos="BE"), one("service", 20, 50, 2, qos="LS"))
    result = figures(*jobs, policy="priority", qos_priorities={"LS": 10})
    ends = {run_of_pod.job: run_of_pod.end_s for run_of_pod in result.pod_runs}
    assert ends["j0000002"] < ends["j0000001"]
