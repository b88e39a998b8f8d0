"""The script for tasks of workflow engines: exit codes, retries and SIGTERM, with the daemon of this host."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from tests.examples.running import EXAMPLES, run
from tests.examples.running import LIMIT_S as EXAMPLE_LIMIT_S
from tests.local.support import eventually, processes_of

from muster.api.spec import TrainingJob
from muster.local.client import LocalClient

SCRIPT = EXAMPLES / "13-workflow-engines" / "train.sh"
JOB = """
apiVersion: muster.dev/v1alpha1
kind: TrainingJob
metadata: {name: job-name}
spec:
  queue: QUEUE
  failurePolicy: {maxRestarts: 0}
  roles:
  - name: trainer
    template: {spec: {containers: [{name: main, command: [sh, -c, "LINE"]}]}}
"""
LIMIT_S = 600.0


class Task:
    """Tries of one task."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home, self.folder = home, folder

    def start(self, line: str, queue: str = "default") -> subprocess.Popen[str]:
        (self.folder / "job.yaml").write_text(JOB.replace("LINE", line).replace("QUEUE", queue))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.Popen(
            ["sh", str(SCRIPT), str(self.folder / "job.yaml"), "nightly"],
            env=os.environ | {"PATH": path, "MUSTER_HOME": str(self.home)},
            text=True,
        )

    def run(self, line: str, queue: str = "default") -> int:
        return self.start(line, queue).wait(LIMIT_S)

    def jobs(self) -> list[TrainingJob]:
        return LocalClient.connect(self.home).jobs()


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Task]:
    with tempfile.TemporaryDirectory(prefix="muster-", ignore_cleanup_errors=True) as folder:
        home = Path(folder) / "home"
        LocalClient.up(home)
        yield Task(home, tmp_path)
        for pid in processes_of(home):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_task_ends_with_the_outcome_of_its_job_and_a_retry_after_success_submits_nothing(task: Task) -> None:
    assert task.run("true") == 0
    assert task.run("true") == 0
    assert [job.metadata.name for job in task.jobs()] == ["nightly"]


def test_a_file_whose_job_has_a_name_of_its_own_is_refused_before_it_is_submitted(task: Task) -> None:
    job = task.folder / "own.yaml"
    job.write_text(JOB.replace("LINE", "true").replace("QUEUE", "default").replace("job-name", "my-train"))
    command = ["sh", str(SCRIPT), str(job), "nightly"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 2
    assert "metadata.name must be job-name" in ended.stderr
    assert task.jobs() == []


def test_a_task_whose_job_fails_ends_with_1_and_its_retry_submits_another(task: Task) -> None:
    assert task.run("exit 9") == 1
    assert task.run("true") == 0
    assert [job.metadata.name for job in task.jobs()] == ["nightly", "nightly-2"]


def run_of_page(task: Task, command: list[str]) -> list[str]:
    """The names of the jobs, once a command of a page has ended with 0 beside the script and a job file."""
    shutil.copy(SCRIPT, task.folder)
    (task.folder / "job.yaml").write_text(JOB.replace("LINE", "true").replace("QUEUE", "default"))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = os.environ | {"PATH": path, "MUSTER_HOME": str(task.home)}
    assert subprocess.run(command, env=environ, check=False, timeout=LIMIT_S).returncode == 0
    return [job.metadata.name for job in task.jobs()]


def test_the_command_of_the_airflow_page_runs_as_bash_runs_it(task: Task) -> None:
    page = (EXAMPLES.parent / "docs" / "tasks" / "airflow.md").read_text()
    (command,) = re.findall(r'bash_command="(.*)"', page)
    command = command.replace("{{ dag_run.run_after | ts_nodash | lower }}", "20261124t000000").replace(
        "/opt/dags", str(task.folder)
    )
    assert run_of_page(task, ["bash", "-c", command]) == ["nightly-20261124t000000"]


def test_the_template_of_the_argo_page_runs_as_a_container_runs_it(task: Task) -> None:
    page = (EXAMPLES.parent / "docs" / "tasks" / "argo-workflows.md").read_text()
    ((template,),) = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    assert template["retryStrategy"]["expression"] == 'lastRetry.exitCode not in ["2", "3"]', "refused and invalid"
    words = [word.replace("/config", str(task.folder)) for word in template["container"]["command"]]
    assert run_of_page(task, [word.replace("{{workflow.name}}", "nightly-x7k2p") for word in words]) == [
        "nightly-x7k2p-train"
    ]


def test_a_refused_job_and_an_invalid_file_have_the_exit_codes_of_submit(task: Task) -> None:
    assert task.run("true", queue="none") == 3
    assert task.run("true", queue="[]") == 2
    assert task.jobs() == []


def test_a_retry_follows_the_job_of_a_try_that_was_killed(task: Task, tmp_path: Path) -> None:
    line = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    first = task.start(line)
    eventually(lambda: [job.status.phase for job in task.jobs()] == ["Running"], LIMIT_S)
    first.kill()
    first.wait(LIMIT_S)
    again = task.start(line)
    (tmp_path / "go").touch()
    assert again.wait(LIMIT_S) == 0
    assert [job.metadata.name for job in task.jobs()] == ["nightly"]


def test_sigterm_cancels_the_job(task: Task) -> None:
    running = task.start("exec sleep 600")
    eventually(lambda: [job.status.phase for job in task.jobs()] == ["Running"], LIMIT_S)
    running.send_signal(signal.SIGTERM)
    assert running.wait(LIMIT_S) == 143
    eventually(lambda: [job.status.phase for job in task.jobs()] == ["Cancelled"], LIMIT_S)


@pytest.mark.slow
@pytest.mark.timeout(EXAMPLE_LIMIT_S + 100)
def test_the_example_submits_one_job_for_two_runs_of_a_task() -> None:
    out = run("13-workflow-engines")
    assert out.count("nightly-training submitted") == 1
    assert out.count("Succeeded after") == 2
