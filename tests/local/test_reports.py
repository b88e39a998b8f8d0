"""The report of a traced job: built after its end, shown by watch and log, with the traces of killed collectors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.local.support import ended, eventually, processes_of, shell_job
from tests.tracing.kineto import trace_text, training_steps

from muster.local.client import LocalClient
from muster.tracing.runs.trace_files import read_manifests
from muster.tracing.shared_folder import SharedFolder

pytestmark = pytest.mark.slow

TRACE = {"startStep": 20, "steps": 5}
WRITE = (
    'spool="$MUSTER_RUN_DIR/traces/spool"; mkdir -p "$spool"; '
    'name="rank-$MUSTER_REPLICA.attempt-$MUSTER_ATTEMPT.steps-20-25.json"; '
    'cp "$SOURCE" "$spool/$name.tmp"; mv "$spool/$name.tmp" "$spool/$name"; '
)


@pytest.fixture
def client(home: Path) -> Iterator[LocalClient]:
    client = LocalClient.up(home, nodes="1x8", idle_s=60)
    yield client
    client.down(force=True)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_bytes(trace_text(training_steps(5), rank=None))
    return path


def muster(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"MUSTER_HOME": str(home), "NO_COLOR": "1"}
    command = [sys.executable, "-c", "from muster.cli import main; main()", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_each_trace_of_a_job_is_listed_once(client: LocalClient, source: Path) -> None:
    """Although the pods end before their collectors have started."""
    client.submit(shell_job("shared", WRITE, replicas=4, env={"SOURCE": str(source)}, trace=TRACE))
    assert ended(client, "shared").status.phase == "Succeeded"
    traces = eventually(lambda: client.job("shared").status.traces, 200)
    run_dir = client.run_dir("shared")
    listed = [entry for manifest in read_manifests(SharedFolder(run_dir)) for entry in manifest.traces]
    assert sorted(entry.rank for entry in listed) == [0, 1, 2, 3]
    assert (traces.files, traces.report) == (4, str(run_dir / "report" / "report.html"))
    assert json.loads((run_dir / "report" / "report.json").read_text())["summary"]["name"] == "shared"


def test_the_last_line_of_a_watch_is_the_path_of_the_report(home: Path, client: LocalClient, source: Path) -> None:
    client.submit(shell_job("seen", WRITE, replicas=2, env={"SOURCE": str(source)}, trace=TRACE))
    watched = muster(home, "watch", "seen")
    assert (watched.returncode, watched.stderr) == (0, "")
    assert watched.stdout.splitlines()[-1] == str(client.run_dir("seen") / "report" / "report.html")
    assert client.job("seen").status.traces is not None


def test_a_watch_of_a_job_without_traces_reports_that_there_is_no_report(home: Path, client: LocalClient) -> None:
    client.submit(shell_job("bare", "true", trace=TRACE))
    watched = muster(home, "watch", "bare")
    assert (watched.returncode, "no report: no trace was recorded" in watched.stderr) == (0, True)
    assert "muster_components.trainer.instrument" in watched.stderr
    (event,) = [event for event in client.events("bare") if event["reason"] == "ReportFailed"]
    assert "muster_components.trainer.instrument" in event["message"]
    described = muster(home, "describe", "bare").stdout
    assert "none recorded" in described


def test_traces_claimed_by_killed_collectors_are_in_report_and_manifest(
    home: Path, client: LocalClient, source: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    line = f'{WRITE} while [ ! -e "$GO" ]; do sleep 0.05; done'
    env = {"SOURCE": str(source), "GO": str(go)}
    client.submit(shell_job("killed", line, replicas=2, env=env, trace=TRACE))
    traces = client.run_dir("killed") / "traces"
    eventually(lambda: len(list(traces.glob("rank-*.json.gz"))) == 2)
    collectors = [pid for pid in processes_of(home) if b"muster.tracing.collector" in command_line(pid)]
    assert len(collectors) == 2
    for pid in collectors:
        os.kill(pid, signal.SIGKILL)
    claimed = traces / "claimed" / "trainer-1" / "rank-9.attempt-0.steps-20-25.json"
    claimed.parent.mkdir(parents=True, exist_ok=True)  # the second one may not have created it
    claimed.write_bytes(source.read_bytes())
    go.touch()
    assert ended(client, "killed").status.phase == "Succeeded"
    assert eventually(lambda: client.job("killed").status.traces, 200).files == 3
    assert not claimed.exists()
    reasons = [event["reason"] for event in client.events("killed")]
    assert reasons.count("CollectorFailed") == 2


def command_line(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def test_torchx_log_ends_with_the_path_of_the_report(home: Path, client: LocalClient, source: Path) -> None:
    client.submit(shell_job("followed", WRITE, env={"SOURCE": str(source)}, trace=TRACE))
    environment = os.environ | {"MUSTER_HOME": str(home)}
    command = [
        sys.executable,
        "-m",
        "torchx.cli.main",
        "log",
        "--tail",
        "muster_local://torchx/default:followed/trainer",
    ]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    last = result.stdout.splitlines()[-1] if result.stdout else result.stderr
    assert re.search(rf"muster: report {re.escape(str(client.run_dir('followed')))}/report/report\.html$", last), last
