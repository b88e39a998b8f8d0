"""Start, stop and replacement of daemons, and access to them; each test has its own daemon."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.local.support import ended, eventually, has, phase_of, processes_of, shell_job

from muster.client import LogOptions
from muster.errors import ClusterError, Conflict, DaemonUnavailable, MusterError, NotFound, Refused
from muster.local.client import LocalClient
from muster.local.daemon import ALREADY_RUNNING_EXIT_CODE
from muster.local.daemon_client import request
from muster.local.environment import JobEnvironmentStore, annotate_submitter, pass_variables
from muster.local.home import open_home
from muster.local.pod_folder import LogSize, PodFolder

pytestmark = pytest.mark.slow


@pytest.fixture
def own(home: Path) -> LocalClient:
    """The client of a new daemon."""
    return LocalClient.up(home, nodes="4x8", idle_s=60)


def test_a_job_gets_the_environment_of_its_submitter_not_of_the_process_that_started_the_daemon(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("NCCL_DEBUG", "of-the-daemon"), ("HF_TOKEN", "token-of-the-daemon")):
        monkeypatch.setenv(name, value)
    client = LocalClient.up(home, idle_s=60)
    daemon = client.status()["pid"]
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    for name in ("WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "PYTHONPATH"):
        monkeypatch.setenv(name, f"value-of-{name}")
    job = shell_job("curious", "env; cat /proc/$PPID/environ /proc/$PPID/cmdline >&2", env={"MINE": "a-b"})
    client.submit(pass_variables(job, ["AWS_SECRET_ACCESS_KEY"]))
    done = ended(client, "curious")
    seen = "\n".join(client.log_lines("curious", "default", "trainer", 0))
    assert {
        "MINE=a-b", "NCCL_DEBUG=WARN", "WANDB_API_KEY=value-of-WANDB_API_KEY", "PYTHONPATH=value-of-PYTHONPATH",
        "AWS_SECRET_ACCESS_KEY=value-of-AWS_SECRET_ACCESS_KEY",
    } <= set(seen.splitlines())  # fmt: skip
    assert "value-of-GITHUB_TOKEN" not in seen
    assert "of-the-daemon" not in seen
    assert b"of-the-daemon" not in Path(f"/proc/{daemon}/environ").read_bytes().replace(
        b"NCCL_DEBUG=of-the-daemon", b""
    )
    kept = home / "pods" / done.metadata.uid / "environment.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    printed = done.model_dump_json() + json.dumps([client.events("curious"), client.pods("curious"), client.status()])
    written = Path(home, "daemon.log").read_text() + printed + client.snapshot().decode()
    assert "value-of-" not in written
    assert all(b"value-of-" not in path.read_bytes() for path in home.glob("muster.db*"))
    client.delete_all([("TrainingJob", "curious", "default")])
    eventually(lambda: not kept.exists())


def test_environments_without_a_job_are_removed_at_the_start(home: Path) -> None:
    environments = JobEnvironmentStore(open_home(home))
    environments.save("0123", {"PATH": "/bin", "HF_TOKEN": "t"})
    LocalClient.up(home, idle_s=60)
    assert environments.load("0123") is None


def test_log_lines_can_be_selected_by_time(own: LocalClient, home: Path, tmp_path: Path) -> None:
    """A line is written only after the shim has recorded the one before, however slow it is."""
    recorded: dict[str, LogSize] = {}
    size, begin = 0, time.time()
    line = 'for word in early middle late; do echo $word; until [ -e "$GO-$word" ]; do sleep 0.05; done; done'
    own.submit(shell_job("clock", line, env={"GO": str(tmp_path / "go")}))
    for word in ("early", "middle", "late"):
        size += len(f"{word}\n")
        eventually(lambda size=size: [there for there in log_sizes(home) if there.size == size])  # type: ignore[misc]
        recorded[word] = log_sizes(home)[-1]
        assert recorded[word].earliest <= recorded[word].latest <= time.time()
        assert recorded[word].latest >= begin
        begin = time.time()
        (tmp_path / f"go-{word}").touch()
    ended(own, "clock")
    later, earlier = LogOptions(since=recorded["middle"].latest), LogOptions(until=recorded["early"].earliest)
    assert list(own.log_lines("clock", "default", "trainer", 0, later)) == ["late"]
    assert list(own.log_lines("clock", "default", "trainer", 0, earlier)) == ["early"]


def log_sizes(home: Path) -> list[LogSize]:
    """Of the home's only replica."""
    return [recorded for folder in home.glob("pods/*/*") for recorded in PodFolder(folder).log_sizes()]


def test_a_second_daemon_exits_with_an_error(own: LocalClient, home: Path) -> None:
    command = [sys.executable, "-m", "muster.local.daemon", "--home", str(home)]
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert second.returncode == ALREADY_RUNNING_EXIT_CODE
    assert f"a daemon is already running for {home} (pid {own.status()['pid']})" in second.stderr


def test_clients_that_start_at_the_same_time_share_one_daemon(home: Path) -> None:
    code = "import sys; from muster.local.client import LocalClient as C; print(C.connect(sys.argv[1]).status()['pid'])"
    starts = [subprocess.Popen([sys.executable, "-c", code, str(home)], stdout=subprocess.PIPE) for _ in range(3)]
    assert len({start.communicate()[0] for start in starts}) == 1


def test_a_database_of_a_newer_version_is_refused_and_not_changed(home: Path) -> None:
    open_home(home)
    with sqlite3.connect(home / "muster.db") as database:
        database.execute("PRAGMA user_version = 99")
        database.execute("CREATE TABLE later (x)")
    database.close()
    before = (home / "muster.db").read_bytes()
    with pytest.raises(MusterError) as refusal:
        LocalClient.connect(home)
    assert refusal.value.reason == "NewerDatabase"
    assert (home / "muster.db").read_bytes() == before


def test_a_damaged_database_is_refused_by_name(home: Path) -> None:
    open_home(home)
    (home / "muster.db").write_bytes(b"not a database, but long enough to be taken for one" * 50)
    with pytest.raises(ClusterError, check=has("muster.db", reason="StoreUnreadable")):
        LocalClient.connect(home)


@pytest.mark.smoke
def test_an_idle_daemon_exits_and_the_next_call_starts_one_with_the_same_jobs(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_IDLE_SECONDS", "0.5")  # of every daemon, since one may exit between two calls
    client = LocalClient.connect(home)
    client.submit(shell_job("kept", "until [ -e $GO ]; do sleep 0.05; done", env={"GO": str(tmp_path / "go")}))
    first = client.status()["pid"]  # it does not exit while the job runs
    (tmp_path / "go").touch()
    eventually(lambda: not Path(f"/proc/{first}").exists())
    with pytest.raises(DaemonUnavailable):
        LocalClient.connect(home, start=False)
    client = LocalClient.connect(home)
    assert (client.job("kept").status.phase, client.status()["pid"] != first) == ("Succeeded", True)


def test_down_is_refused_while_a_job_runs_unless_forced_and_the_job_restarts(own: LocalClient, home: Path) -> None:
    own.submit(shell_job("long", "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"))
    eventually(lambda: list(own.log_lines("long", "default", "trainer", 0)))
    with pytest.raises(Refused, check=has("long", reason="JobsRunning")):
        own.down()
    own.down(force=True)
    assert processes_of(home) == []
    own = LocalClient.up(home)
    eventually(lambda: own.job("long").status.attempt == 1 and phase_of(own, "long") == "Running")
    assert list(own.log_lines("long", "default", "trainer", 0, LogOptions(attempt=0))) == ["up", "saved"]
    assert own.job("long").status.restarts == 0


def test_other_nodes_are_refused_while_a_job_runs(own: LocalClient, home: Path) -> None:
    own.submit(shell_job("there", "sleep 60", grace=0))
    eventually(lambda: phase_of(own, "there") == "Running")
    with pytest.raises(Refused, check=has("1 job", reason="JobsRunning", field="nodes")):
        LocalClient.up(home, nodes="2x8")
    own.cancel("there")
    ended(own, "there")
    assert len(LocalClient.up(home, nodes="2x8").nodes()) == 2


def test_no_tcp_port_is_opened_and_only_the_user_can_use_the_socket(own: LocalClient, home: Path) -> None:
    pid = own.status()["pid"]
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile, as the one of the request above
            inodes.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    sockets = {name[8:-1] for name in inodes if name.startswith("socket:[")}
    listening = [
        line.split()[9]
        for table in ("tcp", "tcp6", "udp", "udp6")
        for line in Path("/proc/net", table).read_text().splitlines()[1:]
    ]
    assert not sockets & set(listening)
    assert (home / "daemon.sock").stat().st_mode & 0o777 == 0o600
    assert home.stat().st_mode & 0o777 == 0o700


def test_a_client_of_another_api_version_is_refused(own: LocalClient, home: Path) -> None:
    with pytest.raises(NotFound, check=has("v3", "v9", reason="WrongVersion")):
        request(home / "daemon.sock", "GET", "/v9/jobs")


def test_removing_the_home_ends_its_daemon_and_replicas(own: LocalClient, home: Path) -> None:
    own.submit(shell_job("homeless", "trap '' TERM; while :; do sleep 0.05; done"))
    eventually(lambda: phase_of(own, "homeless") == "Running")
    home.rename(home.with_name("moved"))
    eventually(lambda: processes_of(home) == [])


def test_a_daemon_whose_home_was_created_again_does_not_affect_the_new_one(own: LocalClient, home: Path) -> None:
    old = own.status()["pid"]
    own.submit(shell_job("homeless", "trap '' TERM; while :; do sleep 0.05; done"))
    eventually(lambda: phase_of(own, "homeless") == "Running")
    os.kill(old, signal.SIGSTOP)
    home.rename(home.with_name("moved"))
    new = LocalClient.up(home, nodes="4x8", idle_s=60)
    new.submit(shell_job("new", "while :; do sleep 0.05; done"))
    eventually(lambda: phase_of(new, "new") == "Running")
    os.kill(old, signal.SIGTERM)  # it looks for its home at once, not within a minute
    os.kill(old, signal.SIGCONT)
    eventually(lambda: not Path(f"/proc/{old}").exists())
    assert (new.status()["pid"] != old, phase_of(new, "new"), new.job("new").status.restarts) == (True, "Running", 0)
    assert not list(home.rglob("exit.json"))
    assert "was removed: stopping all jobs" in (home.with_name("moved") / "daemon.log").read_text()


def test_a_new_home_with_a_long_path_is_not_served_by_the_daemon_of_the_old_one(home: Path) -> None:
    long = home / ("long-" * 30)  # the socket of both homes is at one path outside of them
    old = LocalClient.up(long, nodes="4x8", idle_s=60)
    pid = old.status()["pid"]
    old.submit(shell_job("same", "trap '' TERM; while :; do sleep 0.05; done"))
    eventually(lambda: phase_of(old, "same") == "Running")
    long.rename(home / "moved")
    new = LocalClient.connect(long)
    new.submit(shell_job("same", "true"))
    assert ended(new, "same").status.phase == "Succeeded"
    assert new.status()["pid"] != pid
    eventually(lambda: not Path(f"/proc/{pid}").exists())
    assert [job.metadata.name for job in new.jobs()] == ["same"]


@pytest.mark.parametrize("name", ["home", "long-" * 30])
def test_reading_does_not_create_a_removed_home_again(home: Path, name: str) -> None:
    path = home / name
    client = LocalClient.up(path, idle_s=60)
    pid = client.status()["pid"]
    path.rename(home / "moved")
    with pytest.raises(DaemonUnavailable, check=has(str(path), "removed", reason="NotRunning")):
        client.jobs()
    assert not path.exists()
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)  # it looks for its home at once, not within a minute
    eventually(lambda: not Path(f"/proc/{pid}").exists())


def test_a_watch_does_not_start_a_stopped_daemon(own: LocalClient, home: Path) -> None:
    own.submit(shell_job("watched", "trap 'exit 0' TERM; while :; do sleep 0.05; done"))
    watcher = LocalClient.connect(home)
    seen = watcher.watch("watched")
    next(seen)
    own.down(force=True)
    with pytest.raises(DaemonUnavailable, check=has(reason="NotRunning")):
        list(seen)
    assert processes_of(home) == []


def test_a_stopped_daemon_is_started_only_by_a_submit_or_up(own: LocalClient, home: Path) -> None:
    own.down()
    later = LocalClient.connect(home)
    for ask in (later.jobs, later.queues, lambda: later.cancel("none"), own.nodes):
        with pytest.raises(DaemonUnavailable, check=has("muster local up", reason="NotRunning")):
            ask()
    assert processes_of(home) == []
    later.submit(shell_job("again", "true"))
    assert [job.metadata.name for job in own.jobs()] == ["again"]
    ended(own, "again")
    own.down()
    assert [job.metadata.name for job in LocalClient.up(home).jobs()] == ["again"]


def test_a_watch_continues_after_kill_9_of_the_daemon(own: LocalClient, home: Path) -> None:
    own.submit(shell_job("survives", "sleep 2; echo done"))
    phases = []
    for job in own.watch("survives"):
        phases.append(job.status.phase)
        if phases == ["Running"] or phases[-2:] == ["Admitted", "Running"]:
            os.kill(own.status()["pid"], signal.SIGKILL)
    assert phases[-1] == "Succeeded"
    assert list(own.log_lines("survives", "default", "trainer", 0)) == ["done"]


def test_a_repeated_submit_returns_the_same_job(own: LocalClient, home: Path) -> None:
    body = annotate_submitter(shell_job("once", "sleep 0.1")).model_dump(mode="json", by_alias=True, exclude_none=True)
    sent = {"objects": [body], "environments": [{"PATH": os.environ["PATH"]}]}
    (first,), (second,) = (request(home / "daemon.sock", "POST", "/v3/jobs", sent) for _ in range(2))
    assert first["metadata"]["uid"] == second["metadata"]["uid"]


def test_an_exported_job_that_is_submitted_again_is_a_new_submission(own: LocalClient) -> None:
    own.submit(shell_job("once", "sleep 0.1"))
    with pytest.raises(Conflict, check=has("'once'", reason="AlreadyExists")):
        own.submit(own.job("once"))


def test_the_daemon_exits_while_all_jobs_are_suspended(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_IDLE_SECONDS", "0.5")  # of every daemon, since one may exit between two calls
    client = LocalClient.connect(home)
    client.submit(shell_job("asleep", "echo awake", suspend=True))
    first = client.status()["pid"]
    eventually(lambda: not Path(f"/proc/{first}").exists())
    client.resume("asleep")
    assert ended(client, "asleep").status.phase == "Succeeded"


def test_a_drain_is_refused_and_an_unknown_node_is_not_found(home: Path) -> None:
    client = LocalClient.up(home, nodes="2x8")
    with pytest.raises(NotFound, check=has("'n9'", "node-0, node-1", field="node")):
        client.drain("n9")
    with pytest.raises(Refused, check=has("'node-1'", reason="DrainUnsupported")):
        client.drain("node-1")


@pytest.fixture
def with_job(home: Path) -> LocalClient:
    """The client of a new daemon with a job that runs until it is deleted."""
    with_job = LocalClient.up(home, nodes="4x8", idle_s=60)
    with_job.submit(shell_job("llama", "echo first; exec sleep 600"))
    eventually(lambda: phase_of(with_job, "llama") == "Running")
    return with_job


def replace(with_job: LocalClient, line: str) -> None:
    """Delete the job, and submit another one with its name."""
    with_job.delete_all([("TrainingJob", "llama", "default")])
    eventually(lambda: not with_job.jobs())
    with_job.submit(shell_job("llama", line))
    eventually(lambda: phase_of(with_job, "llama") in ("Running", "Succeeded"))


@pytest.mark.parametrize("line", ["exec sleep 600", "true"])
def test_a_watch_of_a_deleted_job_fails_although_a_new_job_has_its_name(with_job: LocalClient, line: str) -> None:
    seen = with_job.watch("llama")
    assert next(seen).status.phase == "Running"
    replace(with_job, line)
    with pytest.raises(NotFound, check=has("default/llama")):
        next(seen)


def test_a_followed_log_ends_when_its_job_is_replaced(with_job: LocalClient) -> None:
    lines = with_job.log_lines("llama", "default", "trainer", 0, LogOptions(follow=True))
    assert next(lines) == "first"
    replace(with_job, "echo second; exec sleep 600")
    assert list(lines) == []
    assert phase_of(with_job, "llama") == "Running"
