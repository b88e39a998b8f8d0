"""How fast the dashboard is with many jobs: a daemon of this host, `muster dashboard`, Chromium.

    python benchmarks/dashboard.py --jobs 5000 --json

`first_paint_ms` is the browser's first contentful paint after a navigation, the median of several; `server_cpu_ms` is
the CPU time of the dashboard's process for one page, `daemon_cpu_ms` that of the daemon meanwhile; `bytes` is the page.
`update_ms` is the time from the submission of a job to its appearance on an open page: the median and the largest.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.tracing.browser import Browser, Tab, chromium

from muster.api import spec
from muster.local.client import LocalClient

PAGES = ("/", "/pending", "/jobs", "/timeline", "/nodes", "/preemptions", "/usage")
BATCH = 500
SECONDS_A_TICK = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class PageFigures:
    """One page."""

    page: str
    jobs: int
    first_paint_ms: float
    server_cpu_ms: float
    daemon_cpu_ms: float
    bytes: int


@dataclass(frozen=True, slots=True)
class UpdateFigures:
    """How soon a change is on an open page."""

    page: str
    jobs: int
    update_ms: float
    largest_update_ms: float


def main() -> None:
    """Print a line for each page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="muster-", ignore_cleanup_errors=True) as home:
        client = LocalClient.up(home, nodes="4x8")
        try:
            submit(client, options.jobs)
            daemon = int(client.status()["pid"])
            with dashboard(home) as (pid, url), chromium() as browser:
                for figures in measure(browser, url, pid, daemon, options.jobs, options.repeats):
                    print(json.dumps(asdict(figures)) if options.json else figures, flush=True)
                updates = measure_updates(browser, url, client, options.jobs, options.repeats)
                print(json.dumps(asdict(updates)) if options.json else updates, flush=True)
        finally:
            client.down(force=True)


def submit(client: LocalClient, count: int) -> None:
    """Jobs that wait behind one that has all GPUs."""
    client.submit(_job("first", replicas=4))
    for first in range(1, count, BATCH):
        client.submit_all([_job(f"job-{number:05}", replicas=4) for number in range(first, min(first + BATCH, count))])


def _job(name: str, replicas: int) -> spec.TrainingJob:
    container = {"command": ["sleep", "100000"], "resources": {"limits": {"nvidia.com/gpu": 8}}}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    role = {"name": "worker", "replicas": replicas, "template": template}
    return spec.TrainingJob.model_validate({"metadata": {"name": name}, "spec": {"roles": [role]}})


@contextmanager
def dashboard(home: str) -> Iterator[tuple[int, str]]:
    """(pid, address) of `muster dashboard`."""
    command = [str(Path(sys.executable).with_name("muster")), "dashboard", "--no-browser"]
    environment = {**os.environ, "MUSTER_HOME": home}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield process.pid, next(line.strip() for line in process.stdout if line.startswith("http://"))
        finally:
            process.send_signal(signal.SIGINT)


def measure(browser: Browser, url: str, pid: int, daemon: int, jobs: int, repeats: int) -> Iterator[PageFigures]:
    """Each page several times, with a pause in which nothing is shared from the last time."""
    tab = browser.open(url)
    tab.wait_for("location.search === '' && document.getElementById('live') !== null")
    base = f"http://{urlsplit(url).netloc}"
    for page in PAGES:
        paints, server, other = [], [], []
        for _ in range(repeats):
            tab.call("Page.navigate", url="about:blank")
            time.sleep(1.5)
            before = cpu_s(pid), cpu_s(daemon)
            paints.append(first_paint_ms(tab, base + page))
            server.append((cpu_s(pid) - before[0]) * 1000)
            other.append((cpu_s(daemon) - before[1]) * 1000)
        size = tab.value("performance.getEntriesByType('navigation')[0].decodedBodySize")
        paint, of_server, of_daemon = (round(statistics.median(values), 1) for values in (paints, server, other))
        yield PageFigures(page, jobs, paint, of_server, of_daemon, size)


def measure_updates(browser: Browser, url: str, client: LocalClient, jobs: int, repeats: int) -> UpdateFigures:
    """Jobs that are submitted while the page with the newest ones is open."""
    page, times = "/jobs?sort=created", []
    tab = browser.open(f"http://{urlsplit(url).netloc}{page}")
    tab.wait_for("events?.readyState === EventSource.OPEN")
    for number in range(repeats):
        time.sleep(1.3)  # at different times of the server's period of a second
        began = time.monotonic()
        client.submit(_job(f"new-{number}", replicas=4))
        tab.wait_for(f"document.getElementById('jobs').innerText.includes('default/new-{number}')")
        times.append((time.monotonic() - began) * 1000)
    return UpdateFigures(page, jobs, round(statistics.median(times)), round(max(times)))


def first_paint_ms(tab: Tab, url: str) -> float:
    """From the start of the navigation."""
    tab.call("Page.navigate", url=url)
    tab.wait_for("performance.getEntriesByName('first-contentful-paint').length === 1")
    found: float = tab.value("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    return found


def cpu_s(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * SECONDS_A_TICK


if __name__ == "__main__":
    main()
