"""The `torchx` command as a user types it: its own process, its own exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.local.support import interrupt
from tests.torchx.torchrun_components import TORCHRUN_COMPONENTS

from muster.api.spec import TrainingJob
from muster.api.yaml_input import load_objects
from muster.local.client import LocalClient

pytestmark = pytest.mark.slow


def torchx(
    home: Path, *arguments: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """One command, with its output and exit code."""
    command = [sys.executable, "-m", "torchx.cli.main", *arguments]
    environ = {**os.environ, "MUSTER_HOME": str(home), "NO_COLOR": "1", **environment}
    return subprocess.run(command, capture_output=True, text=True, env=environ, cwd=cwd, check=False)


@pytest.mark.smoke
def test_run_with_log_prints_progress_and_ends_with_the_run_folder(home: Path) -> None:
    ran = torchx(home, "run", "-s", "muster_local", "--wait", "--log", "utils.echo", "--msg", "hello")
    assert ran.returncode == 0, ran.stderr
    lines = ran.stderr.strip().splitlines()
    assert any(line.endswith(" hello") for line in lines)
    assert "muster: run folder /" in lines[-1]
    handle = ran.stdout.strip()
    status = torchx(home, "status", handle)
    assert status.returncode == 0
    assert "SUCCEEDED" in status.stdout
    assert "hello" in torchx(home, "log", f"{handle}/echo/0").stdout
    assert handle in torchx(home, "list", "-s", "muster_local").stdout
    assert "echo" in torchx(home, "describe", handle).stdout


def test_run_with_wait_prints_progress_without_the_log(home: Path) -> None:
    ran = torchx(home, "run", "-s", "muster_local", "--wait", "utils.echo", "--msg", "hello")
    assert ran.returncode == 0, ran.stderr
    message = [line.rpartition("INFO")[2].strip() for line in ran.stderr.splitlines()]
    (end,) = [line for line in message if line.startswith("succeeded: ")]
    assert "; run folder /" in end
    assert not any(line.endswith(" hello") for line in message)


def test_a_failing_app_gives_exit_code_1_and_its_last_words(home: Path) -> None:
    ran = torchx(home, "run", "-s", "muster_local", "--wait", "utils.python", "-c", "print('no luck'); exit(3)")
    assert ran.returncode == 1
    assert "exited with code 3" in ran.stderr
    assert "no luck" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("-cfg", "quue=x", "utils.echo"), "`quue` is not an option of muster_local; did you mean 'queue'?"),
        (("-cfg", "priority=high", "utils.echo"), "priority"),
        (
            ("muster.train.fsdp", "--model", "gpt:1m", "--data", ".", "--steps", "-1"),
            "--steps must be at least 1; got -1",
        ),
    ],
)
def test_invalid_input_is_one_line_without_traceback(home: Path, arguments: tuple[str, ...], expected: str) -> None:
    ran = torchx(home, "run", "-s", "muster_local", *arguments)
    assert ran.returncode == 1
    assert '("' not in ran.stderr, "the arguments of an exception"
    assert expected in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("tail", [(), ("--tail",)])
def test_an_unknown_replica_is_one_line(home: Path, tail: tuple[str, ...]) -> None:
    handle = torchx(home, "run", "-s", "muster_local", "--wait", "utils.echo").stdout.strip()
    ran = torchx(home, "log", *tail, f"{handle}/echo/7")
    assert ran.returncode == 1
    assert "index: must be 0 to 0 for role" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_cancelling_an_unknown_job_is_an_error(home: Path) -> None:
    ran = torchx(home, "cancel", "muster_local://torchx/nope")
    assert "'nope'" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_listing_without_a_daemon_is_one_line(tmp_path: Path) -> None:
    client = LocalClient.up(tmp_path / "home")
    client.down()
    for arguments in (("list", "-s", "muster_local"), ("status", "muster_local://torchx/nope")):
        ran = torchx(tmp_path / "home", *arguments)
        assert ran.returncode == 1
        assert "the daemon was stopped" in ran.stderr
        assert "Traceback" not in ran.stderr


def test_a_dry_run_starts_no_daemon(tmp_path: Path) -> None:
    ran = torchx(
        tmp_path / "unused", "run", "-s", "muster_local", "--dryrun", "muster.train.fsdp", "--model", "gpt:1m",
        "--data", ".", "-j", "1x1",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "kind: TrainingJob" in ran.stdout
    assert not (tmp_path / "unused").exists()


def test_torchxconfig_sets_the_scheduler_its_options_and_arguments_of_components(tmp_path: Path) -> None:
    config = [
        *("[cli:run]", "scheduler = muster_local", "[muster_local]", "queue = red", "max_runtime = 2h"),
        *("[component:utils.echo]", "msg = from-the-file"),
    ]
    (tmp_path / ".torchxconfig").write_text("\n".join(config))
    ran = torchx(tmp_path / "unused", "run", "--dryrun", "utils.echo", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert [text in ran.stdout for text in ("queue: red", "maxRuntimeSeconds: 7200", "from-the-file")] == [True] * 3
    overridden = torchx(tmp_path / "unused", "run", "-cfg", "queue=blue", "--dryrun", "utils.echo", cwd=tmp_path)
    assert "queue: blue" in overridden.stdout


def test_the_torchxconfig_of_the_page_of_torchx_is_valid_and_has_the_effect_that_it_says(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "tasks" / "torchx.md").read_text()
    (config,) = re.findall(r"```ini\n(.*?)```", page, re.DOTALL)
    (tmp_path / ".torchxconfig").write_text(config)
    server = {"name": "c", "cluster": {"server": "https://host"}}
    context = {"name": "prod", "context": {"cluster": "c", "namespace": "team-a"}}
    (tmp_path / "kubeconfig").write_text(json.dumps({"contexts": [context], "clusters": [server]}))
    ran = torchx(
        tmp_path / "unused", "run", "--dryrun", "muster.train.fsdp", "--model", "gpt:1m", "--data", "/data", "-j",
        "1x1", "--gpu", "0", cwd=tmp_path, KUBECONFIG=str(tmp_path / "kubeconfig"),
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    _, _, text = ran.stdout.partition("=== SCHEDULER REQUEST ===")
    (job,) = load_objects(text)
    assert isinstance(job, TrainingJob)
    (role,) = job.spec.roles
    assert (job.metadata.namespace, job.spec.queue, job.spec.failure_policy.max_restarts) == ("team-a", "research", 5)
    assert role.template.spec.containers[0].image == "registry.example.com/my-training:3"
    pod = role.template.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert "runs" in [one.get("persistentVolumeClaim", {}).get("claimName") for one in pod["volumes"]]


def test_a_dry_run_prints_no_secrets_neither_of_the_app_nor_of_the_request(tmp_path: Path) -> None:
    ran = torchx(
        tmp_path / "unused", "run", "-s", "muster_local", "--dryrun", "utils.sh", "--env", "MY_TOKEN=do-not-tell,A=b",
        "true",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("MY_TOKEN") == 2
    assert "do-not-tell" not in ran.stdout + ran.stderr


@pytest.mark.parametrize("daemon", [True, False], ids=["with a daemon", "without one"])
def test_a_dry_run_refuses_a_script_and_data_that_are_not_there(home: Path, tmp_path: Path, daemon: bool) -> None:
    where = home if daemon else tmp_path / "unused"
    for arguments, message in (
        (("muster.train.script", "--script", "no/such.py"), "the script 'no/such.py' does not exist in"),
        (("muster.train.fsdp", "--model", "gpt:1m", "--data", "no/such"), "--data 'no/such' does not exist in"),
    ):
        ran = torchx(where, "run", "-s", "muster_local", "--dryrun", *arguments)
        assert (ran.returncode, message in ran.stderr, "Traceback" in ran.stderr) == (1, True, False), ran.stderr
    assert (tmp_path / "unused").exists() is False


def test_what_torchx_ships_is_still_there(home: Path) -> None:
    listed = torchx(home, "builtins").stdout
    for name in (
        *(f"dist.{name}" for name in TORCHRUN_COMPONENTS),
        "utils.echo",
        "muster.train.fsdp",
        "muster.train.ddp",
        "muster.train.script",
    ):
        assert name in listed
    options = torchx(home, "runopts", "local_cwd").stdout
    assert "log_dir" in options
    assert "max_runtime" in torchx(home, "runopts", "muster_local").stdout


def test_a_script_runs_from_where_the_user_stands(home: Path, tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text("import os\nprint('rank', os.environ['RANK'], os.environ['MUSTER_REPLICA'])\n")
    ran = torchx(
        home, "run", "-s", "muster_local", "--wait", "--log", "utils.python", "-m", "muster_components.launch",
        "--", "--nproc", "2", "--", "here.py", cwd=tmp_path,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "rank 0 0" in ran.stderr
    assert "[r1] rank 1 0" in ran.stderr


def watching(home: Path) -> subprocess.Popen[str]:
    """`torchx run --wait` of a job that runs. What a script has in its background starts with Ctrl-C ignored."""
    handles_sigint = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    run = ["run", "-s", "muster_local", "--wait", "utils.sh", "sleep", "600"]
    child = subprocess.Popen(
        [sys.executable, "-c", f"{handles_sigint}; from torchx.cli.main import main; main({run!r})"],
        env={**os.environ, "MUSTER_HOME": str(home), "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    assert any("Waiting for the app" in line for line in child.stderr)
    return child


def test_an_interrupted_wait_prints_that_the_job_is_still_running(home: Path, client: LocalClient) -> None:
    child = watching(home)
    err = interrupt(child)
    last = err.strip().splitlines()[-1]
    assert last.startswith("the job continues; to stop it: muster cancel default/sh-")
    name = last.rpartition("/")[2]
    assert client.job(name).status.phase != "Failed"
    client.cancel(name)


def test_a_daemon_that_is_stopped_ends_a_wait_with_a_sentence(tmp_path: Path) -> None:
    client = LocalClient.up(tmp_path / "home")
    child = watching(tmp_path / "home")
    client.down(force=True)
    _, err = child.communicate()
    assert child.returncode == 1
    assert "the daemon was stopped; start it with: muster local up" in err
    assert "Traceback" not in err
