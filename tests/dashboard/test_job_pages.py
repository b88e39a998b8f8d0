"""The page of one job and the timeline, of a state in memory."""

from __future__ import annotations

import json
import re
import time
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.dashboard.serving import ReadStateClient, get, serving
from tests.state.observed_states import NOW, admitted, named
from tests.visibility.states import in_state, leader, two_queues

from muster.api.spec import ProgressStatus, RunTimeStatus, StopStatus, TimeSpentStatus, TrainingJob
from muster.dashboard.pages.job import LOG_LINES
from muster.dashboard.pages.timeline import MAX_LANES, MAX_NODES, MAX_PENDING, gantt_chart, round_times
from muster.dashboard.render import run_time
from muster.errors import ClusterError, NotFound, Refused
from muster.visibility.columns import pods_text
from muster.visibility.jobs import job_summary, readable_job
from muster.visibility.types import API_VERSION, ItemMeta, JobSummary
from muster.workload.transitions import finish

HOUR = 3600.0


def client(*jobs: Any, folder: Path = Path("/nonexistent"), **fields: Any) -> ReadStateClient:
    found = ReadStateClient(run_root=folder, state=leader(two_queues(*jobs)), **fields)
    found.kept_jobs = {job.metadata.name: job for job in jobs}
    return found


def page(source: ReadStateClient, target: str, status: int = 200, now: float | None = None) -> str:
    with serving(source, time.time if now is None else lambda: now) as server:
        found = get(server, target)
    assert found.status == status, found.text
    return found.text


def words(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def write_steps(folder: Path, count: int) -> None:
    (folder / "metrics").mkdir(parents=True)
    lines = [
        {"step": n, "loss": 6 - n / count, "step_time_s": 0.5, "tokens_per_s": 1234.0} for n in range(1, count + 1)
    ]
    (folder / "metrics" / "rank-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_page_of_a_job_has_its_state_pods_events_and_the_end_of_its_log() -> None:
    logs = {("trainer", 0): [f"line {n}" for n in range(LOG_LINES + 1)], ("trainer", 1): ["of the other"]}
    events = [
        {"at": NOW - 9, "type": "Normal", "reason": "Admitted", "message": "first", "count": 1},
        {"at": NOW - 3, "type": "Warning", "reason": "PodRejected", "message": "second", "count": 4},
    ]
    source = client(admitted("a"), logs=logs, kept_events=events)
    shown = words(page(source, "/jobs/default/a"))
    assert "default/a Admitted" in shown
    assert "trainer 0 n0 any trainer 1 n1 any" in shown
    assert "line 200" in shown
    assert "line 0 " not in shown
    assert shown.index("second 4 times") < shown.index("first")
    assert "The job has not started yet." in shown
    assert "in Perfetto" not in shown
    assert "of the other" in words(page(source, "/jobs/default/a?index=1"))


def test_the_page_of_a_job_says_what_was_lost_when_it_was_stopped() -> None:
    job = admitted("a")
    stop = StopStatus(
        attempt=0, reason="Preempted", at=NOW - 60, started_at=NOW - 660, ended_at=NOW - 50, step=140,
        lost_seconds=600, ranks="rank 0 is in load (data.py:3)",
    )  # fmt: skip
    source = client(job.model_copy(update={"status": job.status.model_copy(update={"last_stop": stop})}))
    shown = words(page(source, "/jobs/default/a"))
    assert "Last stop attempt 0 was stopped at step 140 (Preempted): no checkpoint was saved, 10m00s of work" in shown
    assert "when it was stopped, rank 0 is in load (data.py:3)" in shown


def test_the_log_of_an_earlier_attempt_can_be_chosen() -> None:
    job = admitted("a")
    again = job.model_copy(update={"status": job.status.model_copy(update={"attempt": 2, "restarts": 2})})
    source = client(again, logs={("trainer", 0): ["said"]})
    newest = page(source, "/jobs/default/a")
    assert re.findall(r"<option( selected)?>(\d)</option>", newest) == [("", "2"), ("", "1"), ("", "0")]
    assert "Attempt 2 restarts 2" in words(newest)
    earlier = page(source, "/jobs/default/a?role=trainer&index=0&attempt=1")
    assert re.findall(r"<option selected>(\d)</option>", earlier) == ["1"]
    assert "The last 200 lines of trainer/0 in attempt 1; all of it: muster logs a" in words(earlier)
    assert "--attempt 1" in words(earlier)
    assert [call[3] for call in source.calls if call[0] == "logs"] == [None, 1]
    assert "attempt: must be a number from 0; got" in unescape(page(source, "/jobs/default/a?attempt=x", 400))
    assert 'name="attempt"' not in page(client(job), "/jobs/default/a"), "there is one attempt"


def test_pods_are_those_that_are_ready_and_before_those_that_are_requested() -> None:
    running = admitted("a")
    ready = running.status.model_copy(update={"pods_wanted": 2, "pods_ready": 1})
    running = running.model_copy(update={"status": ready})
    elastic = named("b", roles=[named("b").spec.roles[0].model_copy(update={"min_replicas": 1})])
    ended = running.model_copy(update={"status": finish(ready, "Complete", "Completed", "", NOW)})
    found = [pods_text(job_summary(readable_job(job))) for job in (running, named("c"), elastic, ended)]
    assert found == ["1/2", "2", "1-2", "2"]


def test_loss_and_step_time_are_drawn_from_the_run_folder(tmp_path: Path) -> None:
    write_steps(tmp_path / "a", 5000)
    html = page(client(admitted("a"), folder=tmp_path), "/jobs/default/a")
    assert "Step 5,000 Loss 5 Tokens/s, last step 1,234" in words(html)
    loss, step_time = (
        re.findall(r'aria-label="([^"]*)"', html).count(name) for name in ("Loss over steps", "Step time over steps")
    )
    assert (loss, step_time) == (1, 1)
    assert "style=" not in html
    assert max(path.count("L") for path in re.findall(r' d="([^"]*)"', html)) < 500


class ClusterClient(ReadStateClient):
    """No run folder on this host; the read API has a curve, or raises `missing`."""

    missing: Exception | None = None

    def run_dir(self, name: str, namespace: str = "default") -> Any:
        return None

    def read(self, url: str) -> Any:
        if "/curves/" not in url:
            return super().read(url)
        self.urls.append(url)
        if self.missing is not None:
            raise self.missing
        points = [{"step": n, "loss": 6 - n / 100, "stepSeconds": 0.5} for n in range(1, 301)]
        meta = {"name": "a", "namespace": "default"}
        return {"apiVersion": API_VERSION, "kind": "JobCurve", "metadata": meta, "points": points}


def on_cluster(*, has_progress: bool = True, **changes: Any) -> ClusterClient:
    job = admitted("a")
    progress = ProgressStatus(step=300, at=NOW, loss=3.0) if has_progress else None
    job = job.model_copy(update={"status": job.status.model_copy(update={"progress": progress, **changes})})
    return ClusterClient(state=leader(two_queues(job)), kept_jobs={"a": job})


def test_loss_and_step_time_of_a_cluster_are_drawn_from_the_read_api() -> None:
    html = page(on_cluster(), "/jobs/default/a")
    assert "Step 300" in words(html)
    labels = re.findall(r'aria-label="([^"]*)"', html)
    assert (labels.count("Loss over steps"), labels.count("Step time over steps")) == (1, 1)


def test_the_page_shows_step_last_step_loss_and_time_left() -> None:
    progress = ProgressStatus(step=500, steps=600, at=NOW, loss=4.25, estimated_remaining_seconds=21)
    shown = words(page(on_cluster(progress=progress), "/jobs/default/a"))
    assert re.search(r"Step 500/600 .* Loss 4.25 ETA 21s", shown), shown


@pytest.mark.parametrize("source", [on_cluster(has_progress=False), on_cluster(finished_at=NOW)])
def test_a_job_that_has_reported_nothing_or_has_ended_is_not_asked_for_its_curve(source: ClusterClient) -> None:
    assert "Loss over steps" not in page(source, "/jobs/default/a")
    assert not any("/curves/" in url for url in source.urls)


def test_a_curve_that_cannot_be_read_is_said_and_a_missing_one_is_not() -> None:
    source = on_cluster()
    for missing in (NotFound("no pod with a collector runs"), Refused("user cannot get resource curves")):
        source.missing = missing
        assert str(missing) not in words(page(source, "/jobs/default/a"))
    source.missing = ClusterError("no answer within 3 s")
    shown = words(page(source, "/jobs/default/a"))
    assert "no answer within 3 s" in shown
    assert "default/a Admitted" in shown


def test_a_job_without_a_run_folder_has_no_curves() -> None:
    html = page(client(admitted("a")), "/jobs/default/a")
    assert "Loss over steps" not in html
    assert "No output yet." in html
    assert "No events." in words(html)


@pytest.mark.parametrize(
    ("target", "status", "message"),
    [
        ("/jobs/default/absent", 404, "job 'absent' does not exist in namespace 'default'"),
        ("/jobs/default/a?index=-1", 400, "index: must be a number from 0; got '-1'"),
        ("/jobs/default/a?line=1", 400, "line: is not a parameter; valid: role, index"),
        ("/timeline?hours=2", 400, "hours: must be one of 1, 6, 24, 168; got '2'"),
    ],
)
def test_a_page_that_does_not_exist_or_a_bad_parameter_is_named(target: str, status: int, message: str) -> None:
    assert message in words(page(client(admitted("a")), target, status))


def test_text_from_the_job_is_escaped() -> None:
    hostile = "<script>alert(1)</script>"
    events = [{"at": NOW, "type": "Normal", "reason": hostile, "message": hostile, "count": 1}]
    html = page(client(admitted("a"), logs={("trainer", 0): [hostile]}, kept_events=events), "/jobs/default/a")
    assert hostile not in html
    assert html.count("&lt;script&gt;alert(1)") == 3


def test_an_error_of_one_part_leaves_the_others() -> None:
    from muster.errors import Refused

    class WithoutLogs(ReadStateClient):
        def log_lines(self, *args: Any, **kwargs: Any) -> Any:
            raise Refused("you may not read logs in namespace default")

    source = WithoutLogs(state=leader(two_queues(admitted("a"))))
    source.kept_jobs = {"a": admitted("a")}
    shown = words(page(source, "/jobs/default/a"))
    assert "you may not read logs in namespace default" in shown
    assert "trainer 1 n1 any" in shown


def summary(name: str, **fields: Any) -> JobSummary:
    given = {"queue": "default", "phase": "Running", "min_pods": 1, "max_pods": 1, "nodes": ["n0"], **fields}
    return JobSummary(metadata=ItemMeta(name=name, namespace="default", uid=name), **given)


def test_jobs_at_the_same_time_on_a_node_are_in_lanes_and_a_later_one_uses_a_free_lane() -> None:
    jobs = [
        summary("a", admitted_at=NOW - HOUR / 2),
        summary("b", admitted_at=NOW - HOUR / 2, finished_at=NOW - 900, phase="Succeeded"),
        summary("c", admitted_at=NOW - 600, nodes=["n0", "n1"]),
        summary("before", admitted_at=NOW - 3 * HOUR, finished_at=NOW - 2 * HOUR, phase="Succeeded"),
    ]
    chart = gantt_chart(jobs, NOW, HOUR)
    assert [row.label for row in chart.rows] == ["n0", "n1"]
    assert [(bar.job.metadata.name, bar.lane) for bar in chart.rows[0].bars] == [("a", 0), ("b", 1), ("c", 1)]
    first, second, third = chart.rows[0].bars
    assert first.x + first.width == pytest.approx(chart.now_x)
    assert second.x + second.width < third.x


def test_pending_jobs_are_drawn_from_their_estimated_start_in_its_order() -> None:
    jobs = [
        summary("late", phase="Pending", nodes=[], estimated_start=NOW + 600),
        summary("soon", phase="Pending", nodes=[], estimated_start=NOW + 60),
        summary("unknown", phase="Pending", nodes=[]),
    ]
    chart = gantt_chart(jobs, NOW, HOUR)
    assert [row.label for row in chart.expected] == ["default/soon", "default/late"]
    soon, late = (row.bars[0].x for row in chart.expected)
    assert chart.now_x < soon < late


def test_the_timeline_has_a_limited_number_of_nodes_lanes_and_pending_jobs_and_says_that_there_are_more() -> None:
    jobs = [summary(f"n{i:03}", admitted_at=NOW - 60, nodes=[f"n{i:03}"]) for i in range(MAX_NODES + 3)]
    jobs += [summary(f"j{i}", admitted_at=NOW - 60, nodes=["n000"]) for i in range(MAX_LANES + 1)]
    jobs += [summary(f"p{i}", phase="Pending", nodes=[], estimated_start=NOW + i) for i in range(MAX_PENDING + 5)]
    chart = gantt_chart(jobs, NOW, HOUR)
    assert (len(chart.rows), chart.omitted_nodes) == (MAX_NODES, 3)
    assert (len(chart.expected), chart.has_more_pending) == (MAX_PENDING, True)
    assert (len(chart.rows[0].bars), chart.rows[0].omitted) == (MAX_LANES, 2)


@pytest.mark.parametrize(("hours", "step_s"), [(1, 600), (6, 3600), (24, 3 * 3600), (168, 86400)])
def test_the_ticks_of_the_timeline_are_at_round_local_times(hours: int, step_s: float) -> None:
    begin = NOW - hours * HOUR
    times = round_times(begin, NOW)
    assert [b - a for a, b in pairwise(times)] == [step_s] * (len(times) - 1)
    assert begin <= times[0] < begin + step_s
    shown = {time.strftime("%H%M%S", time.localtime(at)) for at in times}
    assert all(int(one[2:4]) * 60 % min(step_s, 3600) == 0 and one[4:] == "00" for one in shown)


def test_the_label_of_a_tick_at_the_right_edge_is_not_cut() -> None:
    newest = round_times(NOW, NOW + 6 * HOUR)[0]
    html = page(client(admitted("a")), "/timeline?hours=1", now=newest - 175)  # three minutes before the right edge
    anchors = re.findall(r'<text class="quiet" x="[0-9.]+" y="12" text-anchor="([a-z]+)">', html)
    assert anchors == ["middle"] * (len(anchors) - 1) + ["end"]


def test_pending_jobs_of_the_timeline_are_below_a_heading() -> None:
    jobs = [summary("a", admitted_at=NOW - 60), summary("p", phase="Pending", estimated_start=NOW)]
    with_pending = gantt_chart(jobs, NOW, HOUR)
    (row,), (pending,) = with_pending.rows, with_pending.expected
    assert row.y + row.height < with_pending.heading_y < pending.y


def test_the_timeline_links_to_the_jobs() -> None:
    html = page(client(admitted("a"), named("b")), "/timeline", now=NOW + 10)
    assert html.count('href="/jobs/default/a"') == 2  # one bar on each node
    assert "default/a, Admitted, queue default" in html


def test_a_job_that_failed_is_on_the_timeline_while_its_last_process_ends() -> None:
    job = admitted("z")
    job = job.model_copy(update={"status": finish(job.status, "Failed", "Error", "exited with code 1", NOW)})
    ending = in_state(job, phase="Failed")
    html = page(client(named("b"), ending), "/timeline", now=NOW + 10)
    assert html.count('href="/jobs/default/z"') == 2  # one bar on each node


def test_the_timeline_of_a_week_is_not_sent_again_each_second() -> None:
    contents = [page(client(admitted("a")), "/timeline?hours=168", now=NOW + second) for second in (10, 11)]
    first, second = (re.findall(r'<section id="gantt">.*?</section>', one, re.DOTALL) for one in contents)
    assert first
    assert first == second


def test_the_timeline_reads_only_jobs_that_it_shows() -> None:
    """Of 5,000 jobs it would read all for each change otherwise."""

    def ended(name: str, at: float) -> TrainingJob:
        return in_state(admitted(name), phase="Succeeded", finished_at=at)

    jobs = [ended(f"old{i}", NOW - 3 * HOUR - i) for i in range(1200)]
    jobs += [ended(f"new{i}", NOW - 60 - i) for i in range(3)]
    jobs += [in_state(named(f"p{i}"), estimated_start=NOW + i if i % 2 else None) for i in range(1200)]
    source = client(admitted("a"), *jobs)
    html = page(source, "/timeline?hours=1", now=NOW + 10)
    assert len(source.urls) == 2
    drawn = set(re.findall(r'href="/jobs/default/(\w+)"', html))
    assert drawn == {"a", "new0", "new1", "new2", *(f"p{i}" for i in range(1, 2 * MAX_PENDING, 2))}


def test_the_timeline_names_the_process_that_answered_also_if_another_page_has_read_the_jobs() -> None:
    with serving(client(admitted("a")), lambda: NOW) as server:
        server.pages.reader._clock = lambda: 0.0
        assert ["Read from leader" in words(get(server, "/timeline").text) for _ in range(2)] == [True, True]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"phase": "Pending"}, ""),
        ({"phase": "Pending", "ran_seconds": 60}, "1m00s"),
        ({"started_at": NOW - 30, "ran_seconds": 60}, "1m30s"),
        ({"phase": "Succeeded", "started_at": NOW - 30, "finished_at": NOW - 10, "ran_seconds": 60}, "1m20s"),
        ({"phase": "Failed", "started_at": NOW - 30, "finished_at": NOW - 30}, "0s"),
        ({"phase": "Cancelled", "finished_at": NOW - 30}, ""),
    ],
)
def test_the_run_time_is_that_of_all_attempts(fields: dict[str, Any], expected: str) -> None:
    assert words(run_time(summary("a", **fields), NOW)) == expected


def test_a_job_shows_what_its_time_was_spent_on() -> None:
    job = admitted("a")
    run = RunTimeStatus(attempt=0, last_step=9, at=1.0, milliseconds={"start": 2_000, "productive": 30_000})
    spent = {"waiting/QuotaExceeded": 8_000, "running": 32_000}
    time_spent = TimeSpentStatus(cause="", since=1.0, milliseconds=spent, runs=[run])
    ended = job.status.model_copy(update={"time_spent": time_spent})
    shown = words(page(client(job.model_copy(update={"status": ended})), "/jobs/default/a"))
    assert "of 40s 75% productive, 20% waiting, 5% start" in shown
    assert "productive 30s 75.0%" in shown
