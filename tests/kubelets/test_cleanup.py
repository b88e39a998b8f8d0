"""However a cluster with real nodes ends, nothing of it is left on the machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.kubelets.layout import BRIDGE, CGROUP, RUN

ROOT = Path(__file__).resolve().parents[2]
RUN_ONE = """
import signal, sys, time
from pathlib import Path
from tests.kubelets.cluster import Cluster
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs, and what they start, ignore it
with Cluster.start(Path(sys.argv[1]), nodes=1) as cluster:
    print("up", flush=True)
    sys.stdin.readline()
"""


def leftovers(folder: Path) -> list[str]:
    """What is left of a cluster on this machine: processes, mounts, network, cgroups, folders."""
    found = [str(path) for path in (RUN, *folder.glob("node-*/")) if path.is_dir()]
    found += [str(path) for path in Path("/sys/class/net").glob(f"{BRIDGE}*")]
    found += [
        path for path, _, _ in os.walk("/sys/fs/cgroup") if Path(path).name == CGROUP
    ]  # they may disappear meanwhile
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(str(folder).encode() in argument for argument in arguments):
            found.append(b" ".join(arguments).decode(errors="replace"))
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
@pytest.mark.usefixtures("no_cluster")
def test_nothing_is_left_of_a_cluster_whose_owner_is(number: signal.Signals, tmp_path: Path) -> None:
    assert leftovers(tmp_path) == []
    owner = subprocess.Popen(
        [sys.executable, "-c", RUN_ONE, str(tmp_path / "cluster")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        assert len(leftovers(tmp_path / "cluster")) > 10
        owner.send_signal(number)
        owner.wait(300)
    finally:
        owner.kill()
    until = time.monotonic() + 300
    while (left := leftovers(tmp_path / "cluster")) and time.monotonic() < until:
        time.sleep(0.2)
    assert left == []
