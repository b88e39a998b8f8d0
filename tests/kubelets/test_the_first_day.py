"""A platform team's first day on two real nodes: each test continues where the previous one ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.controlplane.binaries import cache_folder
from tests.kubelets.cluster import Cluster
from tests.kubelets.conftest import Shared
from tests.kubelets.first_day import steps
from tests.kubelets.first_day.demo_cluster import DemoCluster, demo_cluster


@pytest.fixture(scope="module")
def day(shared: Shared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoCluster]:
    """Two nodes, the operator, two queues, a volume for runs, a store for traces."""
    cluster: Cluster = shared.get()
    folder = tmp_path_factory.mktemp("first-day")
    folder.chmod(0o755)
    with demo_cluster(cluster, folder, cache_folder().parents[1] / "pods", print) as one:
        steps.share_out(one)
        yield one
    shared.end()  # not usable without its operator


@pytest.fixture(scope="module")
def first(day: DemoCluster) -> str:
    """A job that has trained to its end."""
    return steps.train_to_the_end(day)


@pytest.fixture(scope="module")
def long(day: DemoCluster, first: str) -> tuple[str, int]:
    """A job that was preempted and resumed, and its last step before."""
    return steps.reclaim(day)


def test_compiled_fsdp_trains_on_two_nodes_over_the_pod_network(day: DemoCluster, first: str) -> None:
    output = steps.logs(day, first)
    assert day.phase(first) == "Succeeded", output
    assert {pod["spec"]["nodeName"] for pod in day.pods(first)} == {"node-1", "node-2"}
    assert list(output) == ["0", "1"]
    metrics = day.metrics(first)
    assert [line["step"] for line in metrics] == list(range(metrics[0]["step"], metrics[0]["step"] + 30))
    assert metrics[-1]["loss"] < 0.8 * metrics[0]["loss"]


def test_the_collectors_have_uploaded_the_traces_of_both_ranks(day: DemoCluster, first: str) -> None:
    folder = f"muster/default/{first}-{day.job(first)['metadata']['uid']}"
    names = {f"{folder}/traces/rank-{rank}.attempt-0.steps-10-15.json.gz" for rank in (0, 1)}
    day.wait("both traces are there", lambda: names <= set(day.traces.objects))


def test_every_command_shows_the_job(day: DemoCluster, first: str) -> None:
    rows = {row["metadata"]["name"]: row for row in json.loads(day.muster("jobs", "--json"))}
    assert (rows[first]["spec"]["queue"], rows[first]["status"]["phase"]) == ("research", "Succeeded")
    handle = f"muster://torchx/{first}"
    assert "SUCCEEDED" in day.torchx("status", handle)
    shown, own = day.torchx("log", f"{handle}/trainer/0"), steps.logs(day, first)["0"]
    assert own.strip().splitlines()[-1] in shown
    assert first in day.kubectl("get", "trainingjobs")


def test_the_report_has_both_ranks(day: DemoCluster, first: str) -> None:
    folder = day.run_folder(first)
    day.muster("report", str(folder))
    report = json.loads((folder / "report" / "report.json").read_text())
    assert [row["label"] for row in report["traces"]] == ["rank 0", "rank 1"]
    assert report["summary"]["world_size"] == 2


def test_a_preempted_job_resumes_from_its_last_step(day: DemoCluster, long: tuple[str, int]) -> None:
    job, before = long
    metrics = day.metrics(job)
    done = [line["step"] for line in metrics]
    assert done == list(range(done[0], done[0] + len(done)))
    assert {line["attempt"] for line in metrics if line["step"] <= before} == {0}
    assert {line["attempt"] for line in metrics if line["step"] > before} == {1}
    status = day.job(job)["status"]
    assert status.get("restarts", 0) == 0
    assert "reclaimed for default/claim" in day.muster("describe", job)


def test_a_running_job_is_traced_on_demand_in_the_same_steps_of_both_nodes(
    day: DemoCluster, long: tuple[str, int]
) -> None:
    job, _ = long
    status = steps.trace_on_demand(day, job).object["status"]
    assert (status["phase"], status["endStep"] - status["startStep"]) == ("Succeeded", 3)
    traced = f"attempt-1.steps-{status['startStep']}-{status['endStep']}.json.gz"
    assert {(one["rank"], one["file"]) for one in status["ranks"]} == {(r, f"rank-{r}.{traced}") for r in (0, 1)}
    assert {pod["spec"]["nodeName"] for pod in day.pods(job)} == {"node-1", "node-2"}
    folder = f"muster/default/{job}-{day.job(job)['metadata']['uid']}/traces"
    assert {f"{folder}/rank-{rank}.{traced}" for rank in (0, 1)} <= set(day.traces.objects)


def test_a_job_restarts_with_all_pods_after_a_node_failure(day: DemoCluster, long: tuple[str, int]) -> None:
    job, _ = long
    attempt = steps.lose_a_node(day, job)
    pods = [pod for pod in day.pods(job) if pod["metadata"]["labels"]["muster.dev/attempt"] == str(attempt)]
    assert {pod["spec"]["nodeName"] for pod in pods} == {"node-1", "node-2"}
    day.muster("cancel", job)
    day.wait("it is over", lambda: day.phase(job) == "Cancelled")


def test_uninstalling_keeps_objects_of_users_and_lists_them(
    day: DemoCluster, first: str, long: tuple[str, int]
) -> None:
    output = steps.uninstall(day)
    assert "kept due to the resource policy" in output
    left = {job["metadata"]["name"] for job in day.cluster.plane.api.items("/apis/muster.dev/v1alpha1/trainingjobs")}
    assert left >= {first, long[0], "claim"}
    queues = {queue["metadata"]["name"] for queue in day.cluster.plane.api.items("/apis/muster.dev/v1alpha1/queues")}
    assert queues >= {"company", *steps.QUEUES, "default"}
    assert Path(day.run_folder(first), "checkpoints").is_dir()
