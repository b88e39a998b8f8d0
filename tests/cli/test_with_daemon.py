"""The verbs against the real daemon: one run from up to down, and signals."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Muster
from tests.local.support import eventually, interrupt

pytestmark = pytest.mark.slow

JOB = """\
apiVersion: muster.dev/v1alpha1
kind: TrainingJob
metadata: {{name: {name}}}
spec:
  failurePolicy: {{maxRestarts: 0}}
  roles:
  - name: worker
    replicas: 2
    template:
      spec:
        terminationGracePeriodSeconds: 60
        containers: [{{command: [sh, -c, "{script}"], resources: {{limits: {{nvidia.com/gpu: 4}}}}}}]
"""


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, muster: Muster) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("MUSTER_HOME", str(home))
    monkeypatch.chdir(home.parent)
    yield home
    muster("local", "down", "--force")


def written(folder: Path, name: str, script: str) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(JOB.format(name=name, script=script))
    return str(path)


def test_a_job_from_submission_to_its_logs(home: Path, tmp_path: Path, muster: Muster) -> None:
    ended = muster("local", "status", "--json")
    assert (ended.code, '"reason": "NotRunning"' in ended.err) == (4, True)
    assert muster("local", "down").code == 0
    assert "2 nodes (2x4)" in muster("local", "up", "--nodes", "2x4").out
    assert re.fullmatch(r"[0-9-]{10}T[0-9:]{8}Z", muster("local", "status", "--json").rows[0]["startedAt"])

    ended = muster("submit", written(tmp_path, "good", "echo hello from $MUSTER_REPLICA"), "--wait")
    assert (ended.code, ended.out.splitlines()[-1]) == (0, "default/good Succeeded")
    assert muster("logs", "good").out == "worker-0 │ hello from 0\nworker-1 │ hello from 1\n"
    assert "Admitted" in muster("describe", "good").out

    ended = muster("submit", written(tmp_path, "bad", "echo boom; exit 3"), "--watch")
    assert ended.code == 1
    assert ended.out.splitlines()[-1] == "boom"

    ended = muster("submit", written(tmp_path, "good", "true"), "--json")
    assert (ended.code, '"reason": "AlreadyExists"' in ended.err) == (3, True)
    assert [row["status"]["phase"] for row in muster("jobs", "--json").rows] == ["Failed", "Succeeded"]
    assert [row["name"] for row in muster("queues", "--json").rows] == ["default"]
    assert [row["name"] for row in muster("nodes", "--json").rows] == ["node-0", "node-1"]

    def replayed() -> str:
        saved = tmp_path / "snapshot.json"
        assert muster("local", "snapshot", str(saved)).code == 0
        return muster("replay", str(saved)).out

    eventually(lambda: replayed().startswith("2 nodes, 0 running"))  # the next plan is the first without the last job
    assert muster("delete", "job", "good").code == 0
    assert muster("local", "down", "--json").rows == [{"result": "stopped"}]


def test_a_shape_that_is_none_starts_no_daemon(home: Path, muster: Muster) -> None:
    ended = muster("local", "up", "--nodes", "4by8", "--json")
    assert (ended.code, json.loads(ended.err)["error"]["field"]) == (2, "nodes")
    assert muster("local", "status").code == 4


@pytest.mark.smoke
def test_suspend_and_resume_and_cancel(home: Path, tmp_path: Path, muster: Muster) -> None:
    muster("local", "up", "--nodes", "2x4")
    muster("submit", written(tmp_path, "long", "exec sleep 600"))
    await_phase(muster, "long", "Running")
    assert muster("local", "down").code == 3  # it would stop what runs
    assert muster("suspend", "long").words == ["trainingjob", "default/long", "suspended"]
    await_phase(muster, "long", "Suspended")
    muster("resume", "long")
    await_phase(muster, "long", "Running")
    muster("cancel", "long")
    ended = muster("watch", "long")
    assert (ended.code, "Cancelled" in ended.out) == (1, True)
    ended = muster("resume", "long", "--json")
    assert (ended.code, ended.error["reason"]) == (3, "JobFinished")


def test_a_running_job_is_replaced_by_one_of_the_same_name(home: Path, tmp_path: Path, muster: Muster) -> None:
    muster("local", "up", "--nodes", "2x4")
    muster("submit", written(tmp_path, "same", "exec sleep 600"))
    await_phase(muster, "same", "Running")
    (before,) = muster("describe", "same", "--json").rows
    ended = muster("submit", "--replace", written(tmp_path, "same", "echo replaced"), "--wait")
    assert (ended.code, ended.err) == (0, "")
    (after,) = muster("describe", "same", "--json").rows
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert muster("logs", "same").out == "worker-0 │ replaced\nworker-1 │ replaced\n"


def test_a_run_starts_once_the_run_it_waits_for_has_ended(
    home: Path, tmp_path: Path, muster: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    muster("local", "up", "--nodes", "2x4")
    missing = muster("run", "--after", "first", "--json", "--", "true")
    assert (missing.code, missing.error["reason"]) == (3, "DependencyNotFound")
    assert muster("run", "--name", "first", "--", "sh", "-c", "until [ -e go ]; do sleep 0.1; done; exit 3").code == 0
    assert muster("run", "--name", "then", "--after", "first:notok", "--", "true").code == 0
    assert muster("run", "--name", "after", "--after", "then", "--singleton", "one", "--", "true").code == 0
    eventually(lambda: muster("describe", "then", "--json").rows[0]["status"]["reason"] == "WaitingForDependency")
    (tmp_path / "go").touch()
    await_phase(muster, "after", "Succeeded")
    phases = {row["metadata"]["name"]: row["status"]["phase"] for row in muster("jobs", "--json").rows}
    assert phases == {"first": "Failed", "then": "Succeeded", "after": "Succeeded"}


def test_a_job_larger_than_the_cluster_is_refused_with_the_largest_that_fits(
    home: Path, tmp_path: Path, muster: Muster
) -> None:
    muster("local", "up", "--nodes", "1x4")
    ended = muster("submit", written(tmp_path, "large", "true"))
    assert ended.code == 3
    assert "the largest that fits is 1 pod" in ended.err


def test_an_interrupted_watch_leaves_the_job_running(home: Path, tmp_path: Path, muster: Muster) -> None:
    muster("local", "up", "--nodes", "2x4")
    muster("submit", written(tmp_path, "long", "exec sleep 600"))
    await_phase(muster, "long", "Running")
    # What runs in the background of a script, perhaps these tests, starts with Ctrl-C ignored.
    handles_sigint = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    watching = subprocess.Popen(
        [sys.executable, "-c", f"{handles_sigint}; import muster.cli; muster.cli.main()", "watch", "long"],
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    assert "long" in watching.stdout.readline()
    err = interrupt(watching)
    assert (watching.returncode, err.endswith("muster cancel default/long\n")) == (130, True)
    assert muster("describe", "long", "--json").rows[0]["status"]["phase"] == "Running"


def test_an_interrupted_wait_prints_that_the_job_is_still_running(home: Path, tmp_path: Path, muster: Muster) -> None:
    muster("local", "up", "--nodes", "2x4")
    handles_sigint = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    waiting = subprocess.Popen(
        [sys.executable, "-c", f"{handles_sigint}; import muster.cli; muster.cli.main()", "submit", "--wait",
         written(tmp_path, "long", "exec sleep 600")],
        env=dict(os.environ) | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert waiting.stdout is not None
    assert any("muster watch long" in line for line in waiting.stdout)
    await_phase(muster, "long", "Running")
    err = interrupt(waiting)
    assert (waiting.returncode, err.endswith("muster cancel default/long\n")) == (130, True)


def await_phase(muster: Muster, name: str, phase: str) -> None:
    until = time.monotonic() + 600
    while (found := muster("describe", name, "--json").rows[0]["status"]["phase"]) != phase:
        assert time.monotonic() < until, f"{name} is {found}, not {phase}"
        time.sleep(0.1)


def test_a_run_that_waits_starts_with_the_code_that_was_submitted(
    home: Path, tmp_path: Path, muster: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    muster("local", "up", "--nodes", "1x1")
    project, release = tmp_path / "project", tmp_path / "release"
    project.mkdir()
    (project / "helper.py").write_text("TEXT = 'submitted'\n")
    (project / "train.py").write_text("import os, helper\nprint(helper.TEXT, os.getcwd())\n")
    monkeypatch.chdir(project)
    assert muster("run", "--name", "first", "--", f"until [ -e {release} ]; do sleep 0.05; done").code == 0
    await_phase(muster, "first", "Running")
    assert muster("run", "--name", "second", "--", "train.py").out == "second\n"
    await_phase(muster, "second", "Pending")
    (project / "helper.py").write_text("TEXT = 'edited'\n")
    release.touch()
    assert muster("watch", "second", "--no-report").code == 0
    assert muster("logs", "second").out == f"submitted {project}\n"
    described = muster("describe", "second").out
    assert re.search(r"command +train.py", described)
    assert re.search(r"submitted code +2 files", described)
    assert muster("run", "--follow", "--", "train.py", "--x").out == f"edited {project}\n"
    assert muster("run", "--follow", "--", "exit 3").code == 1


def test_a_diff_of_two_runs_shows_arguments_and_changed_files(
    home: Path, tmp_path: Path, muster: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("print('one')\n")
    monkeypatch.chdir(tmp_path)
    muster("run", "--name", "a", "--", "train.py", "--lr", "1")
    (tmp_path / "train.py").write_text("print('two')\n")
    muster("run", "--name", "b", "--", "train.py", "--lr", "2")
    for name in "ab":
        assert muster("watch", name, "--no-report").code == 0
    rows = {row["field"]: (row["first"], row["second"]) for row in muster("diff", "a", "b", "--json").rows}
    assert rows.pop("command") == ("train.py --lr 1", "train.py --lr 2")
    assert list(rows) == ["file train.py"]
    assert muster("diff", "a", "b", "--code").out.splitlines()[-2:] == ["-print('one')", "+print('two')"]
    assert muster("diff", "a", "a").out == "No difference.\n"


def test_a_command_runs_in_the_environment_of_a_pod_of_a_running_job(home: Path, tmp_path: Path) -> None:
    muster = str(Path(sys.executable).with_name("muster"))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([muster, *words], input="in", capture_output=True, text=True, check=False, timeout=300)

    assert run("local", "up", "--nodes", "2x4").returncode == 0
    assert run("submit", written(tmp_path, "busy", "sleep 600")).returncode == 0
    eventually(lambda: json.loads(run("jobs", "--json").stdout)[0]["status"]["phase"] == "Running")
    ended = run("exec", "busy", "--index", "1", "--", "sh", "-c", "cat; echo $MUSTER_REPLICA; exit 3")
    assert (ended.returncode, ended.stdout) == (3, "in1\n")
    for words, message in (
        (("exec", "busy", "--", "no-such-program"), "'no-such-program' is not in the PATH of the pod"),
        (("exec", "--index", "2", "busy", "ls"), "index: must be 0 to 1"),
        (("exec", "busy", "--index", "2", "--", "ls"), "index: must be 0 to 1"),
        (("exec", "busy", "--"), "COMMAND: must not be empty"),
        (("port-forward", "busy", "8888"), "runs on this host: connect to 127.0.0.1:8888"),
        (("port-forward", "busy", "88888"), "PORT: must be a port from 1 to 65535"),
    ):
        ended = run(*words)
        assert ended.returncode in (2, 3)
        assert message in ended.stderr
    assert run("cancel", "busy").returncode == 0
    eventually(lambda: json.loads(run("jobs", "--json").stdout)[0]["status"]["phase"] == "Cancelled")
    assert "has no pods: it is Cancelled" in run("exec", "busy", "--", "ls").stderr
