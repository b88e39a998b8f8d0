"""The figures of docs/tasks/local.md: `python -m tests.local.measurements`."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

from tests.local.support import eventually, phase_of, processes_of, shell_job

from muster.local.client import LocalClient

ROUNDS = 7
_LONG = "trap 'exit 0' TERM; while :; do sleep 1; done"


def main() -> None:
    """Print one figure a line."""
    with tempfile.TemporaryDirectory(prefix="muster-") as folder:
        home = Path(folder, "home")
        began = time.monotonic()
        client = LocalClient.up(home, nodes="8x8", idle_s=60)
        print(f"daemon from nothing to its first answer: {time.monotonic() - began:.2f} s")
        for pods in (1, 32):
            waits = [first_line_s(client, home.parent, pods, number) for number in range(ROUNDS)]
            print(f"submit to the last replica's first line, {pods} pods: {statistics.median(waits) * 1000:.0f} ms")
        client.submit(shell_job("long", _LONG, replicas=8))
        eventually(lambda: phase_of(client, "long") == "Running")
        daemon = client.status()["pid"]
        shims = [pid for pid in processes_of(home) if b"shim.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        print(
            f"memory of a shim: {statistics.median(map(pss_mib, shims)):.1f} MiB, of the daemon: {pss_mib(daemon):.0f}"
        )
        before, began = cpu_s(daemon), time.monotonic()
        time.sleep(20)
        used = (cpu_s(daemon) - before) / (time.monotonic() - began)
        print(f"CPU of the daemon while a job runs: {used * 100:.2f} %")
        client.down(force=True)


def first_line_s(client: LocalClient, folder: Path, pods: int, number: int) -> float:
    """Seconds from submit until every replica has written a line."""
    notes = folder / f"notes-{pods}-{number}"
    job = shell_job(f"first-{pods}-{number}", "date +%s.%N >> $NOTES", replicas=pods, env={"NOTES": str(notes)})
    began = time.time()
    client.submit(job)
    eventually(lambda: phase_of(client, job.metadata.name) == "Succeeded")
    return max(float(line) for line in notes.read_text().split()) - began


def pss_mib(pid: int) -> float:
    """Memory of a process, shared pages divided among those who share them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def cpu_s(pid: int) -> float:
    """CPU seconds a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
