"""`muster exec` and `muster port-forward` into a pod of a real kubelet."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kubelets.archives import TRAINER
from tests.kubelets.cluster import Cluster
from tests.kubelets.jobs import phase

SERVE = "echo served by a pod > /tmp/page; cd /tmp; exec python -m http.server 8899"

PROBE = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8899/page').read()"


@pytest.fixture
def job(cluster: Cluster) -> Iterator[str]:
    main = {"name": "main", "image": TRAINER, "imagePullPolicy": "Never", "command": ["sh", "-c", SERVE]}
    template = {"spec": {"containers": [main], "terminationGracePeriodSeconds": 1}}
    document = {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "shell", "namespace": "default"},
        "spec": {"queue": "default", "roles": [{"name": "worker", "replicas": 1, "template": template}]},
    }
    cluster.plane.kubectl("apply", "-f", "-", stdin=json.dumps(document))
    cluster.plane.wait_for("the job runs", lambda: phase(cluster, "shell") == "Running", 300)
    probe = words(cluster, "exec", "shell", "--", "python", "-c", PROBE)
    cluster.plane.wait_for("it serves", lambda: run(probe).returncode == 0, 300)
    yield "shell"
    cluster.plane.kubectl("delete", "trainingjob", "shell")


def words(cluster: Cluster, *arguments: str) -> list[str]:
    muster = str(Path(sys.executable).with_name("muster"))
    return [muster, "--kubeconfig", str(cluster.plane.kubeconfig()), *arguments]


def run(command: list[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=stdin, text=True, capture_output=True, check=False, timeout=300)


def test_a_command_gets_stdin_and_its_output_and_exit_code_come_back(cluster: Cluster, job: str) -> None:
    lines = "a line\n" * 20_000
    ended = run(words(cluster, "exec", job, "--", "sh", "-c", "cat; echo to stderr >&2; exit 3"), lines)
    assert (ended.returncode, ended.stderr, ended.stdout == lines) == (3, "to stderr\n", True)
    missing = run(words(cluster, "exec", job, "--", "no-such-program"))
    assert missing.returncode != 0
    assert "no-such-program" in missing.stderr


def test_a_shell_in_a_pod_is_on_a_terminal(cluster: Cluster, job: str) -> None:
    child, terminal = pty.fork()
    if child == 0:
        command = words(cluster, "exec", job, "--", "sh")
        os.execv(command[0], command)
    os.write(terminal, b"tty; stty size; echo $((40 + 2)); exit 7\n")
    seen = b""
    while True:
        if not select.select([terminal], [], [], 600)[0]:
            os.kill(child, signal.SIGKILL)
        try:
            data = os.read(terminal, 4096)
        except OSError:  # Linux's way to say that the other end is closed
            break
        seen += data
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7, seen
    assert re.search(rb"/dev/pts/\d+", seen), seen
    assert b"42" in seen


def test_a_port_of_a_pod_is_reached_on_this_host(cluster: Cluster, job: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = words(cluster, "port-forward", job, f"{port}:8899")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as forward:
        try:
            assert forward.stderr is not None
            assert "until Ctrl-C" in forward.stderr.readline()
            for _ in range(2):  # each connection is one of its own
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/page", timeout=600) as page:
                    assert page.read() == b"served by a pod\n"
        finally:
            forward.terminate()
