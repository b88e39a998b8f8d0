"""Sessions with a cluster in memory: the submitted jobs, when runs end, what is collected after an interruption."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.bench.fake_cluster import FakeCluster, TimesOf

from muster.api.spec import TrainingJobStatus
from muster.bench.bisection import Bisection
from muster.bench.compare import compare_sides
from muster.bench.results import ResultsFile, RunKey
from muster.bench.session import JobFailed, Session, Side, WantedRun, build_job
from muster.bench.statistics import Outcome
from muster.bench.suite import parse_suite, resolve_suite
from muster.client import ClusterClient
from muster.errors import NotFound
from muster_components.bench.plan import parse_plan

A, B = Side("A", "/a"), Side("B", "/b", env=(("X", "$(HOME) $$y"),))
SUITE = """\
criteria: {minRuns: 6, maxRuns: 12}
resources: {cpu: 2}
queue: bench
image: example.com/bench
benchmarks:
- {name: one, command: [python, one.py], warmup: 1}
"""


def steady(program: dict[str, Any], repetition: int) -> list[float]:
    return [9.0, 1.1 if program["name"].endswith("B") else 1.0]


def noisy(program: dict[str, Any], repetition: int) -> list[float]:
    return [9.0, 1.0 + 0.1 * ((7 * repetition + (3 if program["name"].endswith("B") else 0)) % 5)]


def session(folder: Path, cluster: FakeCluster, suite: str = SUITE) -> Session:
    resolved = resolve_suite(parse_suite(suite, "s.yaml"), Path("s.yaml"), {})
    results = ResultsFile(folder / "r.jsonl", {"suite": resolved.as_json()})
    return Session(cast("ClusterClient", cluster), "default", resolved, results, notes.append)


notes: list[str] = []


@pytest.fixture(autouse=True)
def no_notes() -> None:
    notes.clear()


def test_the_job_requests_what_the_suite_says_and_its_plan_is_read_as_it_was_meant(tmp_path: Path) -> None:
    suite = session(tmp_path, FakeCluster(steady)).suite
    one = suite.benchmarks[0]
    job = build_job(suite, "bench-1", "team", [WantedRun(one, A, 0), WantedRun(one, B, 0), WantedRun(one, A, 0, True)])
    container = job.spec.roles[0].template.spec.containers[0]
    assert (job.spec.queue, job.metadata.namespace, container.resources.limits) == ("bench", "team", {"cpu": "2"})
    assert container.image == "example.com/bench"
    assert container.command[:3] == ["python", "-m", "muster_components.bench"]
    assert "$" not in container.command[3]  # Kubernetes would expand it
    runs = parse_plan(container.command[3])
    assert [run.key for run in runs] == ["one@A.0", "one@B.0", "one@A.trace"]
    assert (runs[1].program.env, runs[1].program.folder) == ({"X": "$(HOME) $$y"}, "/b")


def test_precise_runs_end_after_the_minimum_and_others_at_the_maximum(tmp_path: Path) -> None:
    cluster = FakeCluster(steady)
    (result,) = compare_sides(session(tmp_path / "a", cluster), A, B)
    assert (result.outcome, len(cluster.submitted)) == (Outcome.REGRESSION, 1)
    assert result.interval is not None
    assert result.interval.samples == 6
    assert result.interval.ratio == pytest.approx(1.1)
    cluster = FakeCluster(noisy)
    (result,) = compare_sides(session(tmp_path / "b", cluster), A, B)
    assert result.interval is not None
    assert (result.interval.samples, len(cluster.submitted)) == (12, 3)


def test_a_job_that_was_killed_is_followed_in_its_next_attempt_and_each_run_is_kept_once(tmp_path: Path) -> None:
    cluster = FakeCluster(steady, attempts=(3, 5))
    current = session(tmp_path, cluster)
    compare_sides(current, A, B)
    assert len(current.results.runs) == 12
    assert len((tmp_path / "r.jsonl").read_text().splitlines()) == 1 + 1 + 12


def test_an_interrupted_command_collects_what_its_job_has_done_and_submits_the_rest(tmp_path: Path) -> None:
    cluster = FakeCluster(steady)
    first = session(tmp_path, cluster)
    lines = cluster.log_lines
    cluster.log_lines = lambda *arguments: iter(list(lines(*arguments))[:4])  # type: ignore[method-assign]
    with pytest.raises(JobFailed, match="ended as Succeeded without 9 of 12 runs"):
        compare_sides(first, A, B)
    cluster.log_lines = lambda *arguments: iter(list(lines(*arguments))[:8])  # type: ignore[method-assign]
    (result,) = compare_sides(session(tmp_path, cluster), A, B)
    assert (result.outcome, len(cluster.submitted)) == (Outcome.REGRESSION, 2)
    (command,) = (one.command for one in cluster.submitted[1].spec.roles[0].template.spec.containers)
    assert len(parse_plan(command[3])) == 12 - 7


def running(attempt: int) -> TrainingJobStatus:
    return TrainingJobStatus.model_validate({"phase": "Running", "attempt": attempt})


@pytest.mark.parametrize(
    ("attempts", "statuses"),
    [((), []), ((3,), [running(1)]), ((3, 5), [running(0)]), ((3, 5, 2), [running(0), running(2)])],
    ids=["finished before it was seen", "restarted before it was seen", "restarted twice", "restarted often"],
)
def test_where_logs_are_deleted_with_their_attempt_the_current_attempt_is_read(
    tmp_path: Path, attempts: tuple[int, ...], statuses: list[TrainingJobStatus]
) -> None:
    cluster = FakeCluster(steady, attempts=attempts, statuses=statuses, deletes_logs=True)
    current = session(tmp_path, cluster)
    compare_sides(current, A, B)
    assert (len(current.results.runs), len(cluster.submitted)) == (12, 1)


@pytest.mark.parametrize("attempts", [(), (3,)], ids=["finished", "restarted"])
def test_an_interrupted_command_collects_its_job_where_logs_are_deleted_with_their_attempt(
    tmp_path: Path, attempts: tuple[int, ...]
) -> None:
    cluster = FakeCluster(steady, statuses=[running(0)], deletes_logs=True)
    lines = cluster.log_lines

    def interrupted(*arguments: Any) -> Iterator[str]:
        yield from list(lines(*arguments))[:4]
        raise KeyboardInterrupt

    cluster.log_lines = interrupted  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        compare_sides(session(tmp_path, cluster), A, B)
    cluster.log_lines, cluster.attempts = lines, attempts  # type: ignore[method-assign]
    cluster.statuses += [running(1)] if attempts else []
    again = session(tmp_path, cluster)
    assert compare_sides(again, A, B)[0].outcome is Outcome.REGRESSION
    assert (len(again.results.runs), len(cluster.submitted)) == (12, 1)


def test_only_a_deleted_job_is_replaced(tmp_path: Path) -> None:
    cluster = FakeCluster(steady, end="Failed")
    cluster.log_lines = lambda *arguments: iter([])  # type: ignore[method-assign]
    with pytest.raises(JobFailed):
        compare_sides(session(tmp_path, cluster), A, B)

    def other_role(*arguments: Any) -> Iterator[str]:
        raise NotFound("job has no role 'bench'", field="role", reason="RoleNotFound")

    cluster.log_lines = other_role  # type: ignore[method-assign, assignment]
    with pytest.raises(NotFound, match="no role"):
        compare_sides(session(tmp_path, cluster), A, B)
    assert len(cluster.submitted) == 1


def test_a_job_that_was_deleted_is_replaced(tmp_path: Path) -> None:
    cluster = FakeCluster(steady)
    lines = cluster.log_lines
    cluster.log_lines = lambda *arguments: iter([])  # type: ignore[method-assign]
    with pytest.raises(JobFailed):
        compare_sides(session(tmp_path, cluster), A, B)
    cluster.submitted.clear()
    cluster.log_lines = lines  # type: ignore[method-assign]
    assert compare_sides(session(tmp_path, cluster), A, B)[0].outcome is Outcome.REGRESSION


def test_why_a_job_waits_is_printed_once_for_each_reason(tmp_path: Path) -> None:
    def waiting(message: str) -> TrainingJobStatus:
        condition = {
            "type": "Admitted", "status": "False", "reason": "X", "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }  # fmt: skip
        return TrainingJobStatus.model_validate({"phase": "Pending", "conditions": [condition]})

    cluster = FakeCluster(steady, statuses=[waiting("no CPU"), waiting("no CPU"), waiting("no quota")])
    compare_sides(session(tmp_path, cluster), A, B)
    assert [note.partition(" waits: ")[2] for note in notes if "waits" in note] == ["no CPU", "no quota"]


def test_a_failed_benchmark_is_not_started_again_and_the_others_are_decided(tmp_path: Path) -> None:
    def times_of(program: dict[str, Any], repetition: int) -> list[float] | str:
        return "exit code 1" if program["benchmark"] == "two" else steady(program, repetition)

    cluster = FakeCluster(times_of)
    one, two = compare_sides(session(tmp_path, cluster, f"{SUITE}- {{name: two, command: [x]}}\n"), A, B)
    assert (one.outcome, two.outcome, two.error) == (Outcome.REGRESSION, None, "two@A, run 0: exit code 1")
    assert len(cluster.submitted) == 1


def test_traced_runs_follow_the_decision_and_their_folder_is_kept_where_it_can_be_read(tmp_path: Path) -> None:
    traced = SUITE.replace("warmup: 1", "warmup: 1, trace: {startStep: 5, steps: 3}")
    for folder, expected in ((tmp_path / "run", str(tmp_path / "run" / "bench" / "0")), (None, "")):
        current = session(tmp_path / str(folder is None), FakeCluster(steady, folder=folder), traced)
        compare_sides(current, A, B)
        assert current.results.runs[RunKey("one@A", 0, True)].folder == expected


def bisected(folder: Path, times_of: TimesOf, count: int = 8) -> tuple[tuple[str, ...], list[str], FakeCluster]:
    """(first bad, commits whose sources were removed, cluster) of a search over commits 0 (good) to `count`."""
    cluster, removed = FakeCluster(times_of), list[str]()
    commits = [str(number) for number in range(1, count + 1)]
    search = Bisection(session(folder, cluster), "0", commits, lambda commit: f"/{commit}", removed.append)
    return search.run().first_bad, removed, cluster


def test_bisect_names_the_first_slow_commit_and_resumes_without_a_job(tmp_path: Path) -> None:
    def times_of(program: dict[str, Any], repetition: int) -> list[float]:
        return [9.0, 1.05 if int(program["folder"][1:]) >= 6 else 1.0]

    first_bad, removed, cluster = bisected(tmp_path, times_of)
    assert first_bad == ("6",)
    assert removed == ["4", "6", "5"]
    assert len(cluster.submitted) == 4
    again, _, cluster = bisected(tmp_path, times_of)
    assert (again, cluster.submitted) == (("6",), [])


def test_bisect_names_all_candidates_if_commits_before_the_slow_one_do_not_run(tmp_path: Path) -> None:
    def times_of(program: dict[str, Any], repetition: int) -> list[float] | str:
        commit = int(program["folder"][1:])
        return "setup: exit code 2" if commit in (4, 5) else [9.0, 1.05 if commit >= 5 else 1.0]

    assert bisected(tmp_path, times_of)[0] == ("4", "5", "6")


def test_bisect_without_a_regression_searches_nothing(tmp_path: Path) -> None:
    first_bad, _, cluster = bisected(tmp_path, lambda program, repetition: [9.0, 1.0])
    assert (first_bad, len(cluster.submitted)) == ((), 1)


def test_the_criteria_of_a_suite_with_many_benchmarks_alarm_less_often_in_each(tmp_path: Path) -> None:
    suite = session(tmp_path, FakeCluster(steady)).suite
    many = replace(suite, benchmarks=suite.benchmarks * 5)
    assert many.criteria.false_alarm_rate == pytest.approx(suite.criteria.false_alarm_rate / 5)
