"""Command line: check requirements, run a cluster until Ctrl-C, run the first day, or measure how soon jobs are traced.

python -m tests.kubelets check
python -m tests.kubelets up --nodes 2 --gpus 2
python -m tests.kubelets day
python -m tests.kubelets captures --repeat 5
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.controlplane import binaries
from tests.cluster.controlplane.binaries import Unavailable
from tests.cluster.controlplane.catalogue import OF_CONTROL_PLANE, OF_NODES, written
from tests.cluster.controlplane.supervised import Died
from tests.kubelets import archives, machine, operator
from tests.kubelets.cluster import Cluster
from tests.kubelets.first_day import steps
from tests.kubelets.first_day.demo_cluster import DemoCluster, demo_cluster

KWOK = "`make cluster-up` runs the same control plane with virtual nodes (KWOK) anywhere."


def check() -> int:
    """Print what is missing, then get every program and image; returns the exit code."""
    lacks = machine.missing()
    for sentence in lacks:
        print(f"missing: {sentence}")
    if lacks:
        print(KWOK)
        return 1
    for binary in binaries.ensure((*OF_CONTROL_PLANE, *OF_NODES)).values():
        print(f"{binary.name:<24} {written(binary.version):<9} {binary.source:<18} {binary.path}")
    for archive in archives.ensure():
        print(f"{archive.stem:<24} {'':<9} {'image':<18} {archive}")
    return 0


def up(nodes: int, gpus: int) -> None:
    """Run a cluster with the operator until SIGINT or SIGTERM."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    images, begun = archives.ensure(), time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="muster-kubelets-") as folder,
        Cluster.start(Path(folder), nodes=nodes, gpus=gpus, images=images) as cluster,
    ):
        operator.install(cluster)
        print(f"{nodes} nodes with {gpus} GPUs each and two operators after {time.monotonic() - begun:.0f} s")
        print(f"image for jobs: {archives.TRAINER}, with imagePullPolicy: Never; logs in {folder}; Ctrl-C ends it\n")
        print(f"export KUBECONFIG={cluster.plane.kubeconfig()}", flush=True)
        ended.wait()


@contextmanager
def _demo_cluster() -> Iterator[DemoCluster]:
    """Two nodes with the operator and storage; prints the commands that are run on it."""
    images = archives.ensure()
    with (
        tempfile.TemporaryDirectory(prefix="muster-kubelets-") as folder,
        Cluster.start(Path(folder, "cluster"), images=images) as cluster,
    ):
        _heading("helm install muster: two operators as pods of their own image")
        operator.install(cluster)
        print(cluster.plane.kubectl("get", "nodes,pods", "-n", operator.SYSTEM, "-o", "wide"))
        Path(folder).chmod(0o755)  # pods that run as another user reach their volume through it
        cache = binaries.cache_folder().parents[1] / "pods"
        with demo_cluster(cluster, Path(folder), cache, lambda line: print(f"$ {line}", flush=True)) as one:
            yield one


def day() -> None:
    """Run the first day: each step prints its commands and waits for their result."""
    with _demo_cluster() as one:
        _heading("Two queues with a node of 2 GPUs each")
        steps.share_out(one)
        print(one.muster("queues"))
        _heading("Compiled FSDP on both nodes, traced")
        first = steps.train_to_the_end(one)
        print(one.torchx("log", f"muster://torchx/{first}/trainer/0"), one.muster("jobs"), sep="\n")
        print(one.muster("report", str(one.run_folder(first))))
        one.wait("the store has its traces", lambda: len(one.traces.objects) >= 2)
        print("in the store:", *sorted(one.traces.objects), sep="\n  ")
        _heading("The other queue takes its node back; the borrower is preempted, and resumes at its last step")
        long, before = steps.reclaim(one)
        print(f"{long} was preempted after step {before} and resumed with {before + 1}\n{one.muster('jobs')}")
        _heading("A node fails")
        print(f"{long} runs again with all pods in attempt {steps.lose_a_node(one, long)}\n{one.muster('jobs')}")
        one.muster("cancel", long)
        _heading("helm uninstall: objects of users are kept")
        print(steps.uninstall(one))
        print(one.kubectl("get", "trainingjobs,queues.muster.dev,flavors.muster.dev"))


def captures(repeat: int) -> None:
    """Trace a running job of two nodes on demand, again and again; prints how long each trace took."""
    with _demo_cluster() as one:
        steps.share_out(one)
        job = steps.train(one, "traced", 100_000, "--checkpoint_every", "0", "--compile", "False")
        one.wait("it has trained some steps", lambda: steps.steps_done(one, job) > 5 or one.phase(job) == "Failed")
        assert one.phase(job) == "Running", "\n".join([one.muster("describe", job), *steps.logs(one, job).values()])
        found = []
        for _ in range(repeat):
            found.append(steps.trace_on_demand(one, job))
            agreed_s, acknowledged_s, done_s = found[-1].agreed_s, found[-1].acknowledged_s, found[-1].done_s
            part = f"{acknowledged_s:.2f} s of it from the proposal to the last acknowledgement"
            print(f"agreed after {agreed_s:.2f} s ({part}), stored after {done_s:.2f} s", flush=True)
        step_s = statistics.median(line["step_time_s"] for line in one.metrics(job)[2:])
        agreed = [capture.agreed_s for capture in found]
        print(
            f"from the command to agreed steps: median {statistics.median(agreed):.2f} s, {min(agreed):.2f} to "
            f"{max(agreed):.2f} s, {repeat} captures; step {step_s:.2f} s; load average {os.getloadavg()[0]:.1f}"
        )


def _heading(title: str) -> None:
    print(f"\n== {title}", flush=True)


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.kubelets", description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("check", help="print what is missing here; get the programs and build the images")
    verb = verbs.add_parser("up", help="run a cluster until Ctrl-C")
    verb.add_argument("--nodes", type=int, default=2)
    verb.add_argument("--gpus", type=int, default=2, help="per node")
    verbs.add_parser("day", help="run a platform team's first day")
    verb = verbs.add_parser("captures", help="measure how soon a running job is traced")
    verb.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    try:
        if arguments.verb == "check":
            return check()
        if arguments.verb == "day":
            day()
        elif arguments.verb == "captures":
            captures(arguments.repeat)
        else:
            up(arguments.nodes, arguments.gpus)
    except (
        Unavailable,
        Died,
        AssertionError,
    ) as error:  # AssertionError: a step timed out; the message has the condition
        print(error, file=sys.stderr)
        if isinstance(error, Unavailable):
            print(KWOK, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
