"""`from muster import Client` on this host: a function as a job, its logs, metrics and end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.memory import MemoryClient
from tests.cli.objects import queue

from muster import Client
from muster.api.spec import TrainingJob
from muster.cli.run import run
from muster.errors import InvalidSpec, InvalidTrace, NotFound, Refused
from muster.sdk.client import RunKeywords


def train(steps: int, lr: float = 0.1) -> None:
    import os
    import time

    import muster

    for step in range(1, steps + 1):
        time.sleep(0.05)
        muster.report(step=step, steps=steps, loss=lr / step)
    print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "ends")


def fail() -> None:
    raise ValueError("no data")


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    memory = MemoryClient(tmp_path / "runs")
    memory.kept_queues = {name: queue(name) for name in ("default", "research")}
    monkeypatch.setattr("muster.cli.options._connect_local", lambda start: memory)
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path)
    return Client()


def command(job: TrainingJob) -> list[str]:
    return job.spec.roles[0].template.spec.containers[0].command


def test_a_script_is_started_as_muster_run_starts_it(client: Client) -> None:
    job = client.run("train.py", "--lr", 0.1, processes=2, queue="research", time="2h", env={"MODE": "quick"})
    assert job.name.startswith("train-")
    assert command(job.object)[-2:] == ["--lr", "0.1"]
    spec = job.object.spec
    assert (spec.queue, spec.max_runtime_seconds) == ("research", 7200)
    assert {one.name: one.value for one in spec.roles[0].template.spec.containers[0].env}["MODE"] == "quick"


def test_a_function_gives_its_name_to_the_job(client: Client) -> None:
    assert client.run(fail).name.startswith("fail-")


def test_every_option_of_muster_run_about_the_job_is_an_argument() -> None:
    of_the_command = {"command", "dry_run", "wait", "follow", "as_json"}
    keywords = {parameter.name for parameter in run.params} - of_the_command - {"namespace"}
    assert RunKeywords.__annotations__.keys() == keywords


def test_an_array_is_one_job(client: Client) -> None:
    array = client.run("train.py", array="0-9%2").object.spec.array
    assert array is not None
    assert (array.indices, array.parallelism) == ("0-9", 2)


def test_errors_name_the_argument(client: Client) -> None:
    for options, message in (
        ({"name": "A_B"}, "name: must consist of lower-case"),
        ({"time": "soon"}, "time: 'soon' must be a duration"),
        ({"max_restarts": -1}, "max_restarts: "),
        ({"processes": 0}, "processes: must be at least 1; got 0"),
        ({"gpus": -1}, "gpus: must be at least 0; got -1"),
        ({"array": "9-1"}, "array: the last index"),
        ({"array": "0-9%0"}, "array: must be at least 1"),
        ({"nam": "a"}, "nam: must be one of after, array, begin"),
    ):
        with pytest.raises(InvalidSpec) as raised:
            client.run("train.py", **options)
        assert str(raised.value).startswith(message)
        assert raised.value.field in options
    with pytest.raises(InvalidSpec, match=r"kwargs: must be those of a function"):
        client.run("train.py", kwargs={"lr": 1})
    with pytest.raises(InvalidSpec, match=r"script 'missing.py' does not exist"):
        client.run("missing.py")


def test_jobs_of_files_are_submitted_together(client: Client, tmp_path: Path) -> None:
    job = client.run("train.py").object.model_dump(mode="json", by_alias=True, exclude_none=True)
    written = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "of-a-file"}}
    import yaml

    (tmp_path / "job.yaml").write_text(yaml.safe_dump(written | {"spec": job["spec"]}))
    assert [one.name for one in client.submit(tmp_path / "job.yaml")] == ["of-a-file"]
    (tmp_path / "queue.yaml").write_text("apiVersion: muster.dev/v1alpha1\nkind: Queue\nmetadata: {name: a}\n")
    with pytest.raises(InvalidSpec, match=r"queue.yaml: kind: must be TrainingJob"):
        client.submit(tmp_path / "queue.yaml")


def test_jobs_are_found_by_name_queue_and_phase(client: Client) -> None:
    first, second = client.run("train.py", name="one"), client.run("train.py", name="two", queue="research")
    assert [job.name for job in client.jobs()] == ["one", "two"]
    assert [job.name for job in client.jobs(queue="research")] == [second.name]
    assert client.jobs(phase="Failed") == []
    assert client.job("one").object.metadata.uid == first.object.metadata.uid
    with pytest.raises(NotFound):
        client.job("three")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    from click.testing import CliRunner

    from muster.cli.app import cli

    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    yield Client()
    CliRunner().invoke(cli, ["local", "down", "--force"])


@pytest.mark.slow
def test_a_function_runs_on_every_rank_and_its_losses_are_a_frame(host: Client) -> None:
    job = host.run(train, 8, kwargs={"lr": 0.5}, processes=2).wait(timeout=300)
    assert (job.phase, job.logs(rank=1)) == ("Succeeded", "[r1] rank 1 of 2 ends\n")
    assert job.logs(grep="rank 0") == "rank 0 of 2 ends\n"
    curve = job.metrics()
    assert (curve.step.iloc[-1], curve.loss.iloc[-1]) == (8, 0.5 / 8)

    failed = host.run(fail, name="fails").wait(timeout=300)
    assert failed.phase == "Failed"
    assert "ValueError: no data" in failed.reason
    assert [one.name for one in host.jobs(phase="Failed")] == ["fails"]
    with pytest.raises(Refused):
        host.run(fail, name="fails")
    with pytest.raises(InvalidTrace, match="nothing to report"):
        failed.report()
    page = job.report()
    assert page.page.is_file()
    assert "sandbox" in page._repr_html_()
    assert repr(page) == f"<JobReport {page.page}>"
