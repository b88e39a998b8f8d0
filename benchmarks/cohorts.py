"""A workload of many queues and short jobs, as files for `muster simulate`: that of Kueue's own performance test.

    python benchmarks/cohorts.py FOLDER
    muster simulate --nodes FOLDER/nodes.csv --jobs FOLDER/jobs.csv --queues FOLDER/queues.yaml --stop-seconds 0

30 queues in 5 cohorts. A queue owns 20 CPUs and may borrow 100 more from its cohort. 15,000 jobs of one pod come to
them: 350 small, 100 medium and 50 large ones to each queue. There are more nodes than the queues may use, as in a test
of quota alone, and a job that is evicted terminates at once, as there. The work itself takes 66 s. Its source is
kubernetes-sigs/kueue, test/performance/scheduler/configs/baseline/generator.yaml.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COHORTS, QUEUES = 5, 6
OWNED_CPUS, BORROWED_CPUS = 20, 100
NODES, NODE_CPUS = 100, 96


@dataclass(frozen=True, slots=True)
class Kind:
    """Jobs that are alike: how many come to each queue, one every `every_s`, and what each requests."""

    name: str
    count: int
    every_s: float
    runtime_s: float
    priority: int
    cpus: int


KINDS = (
    Kind("small", 350, 0.1, 0.2, 50, 1),
    Kind("medium", 100, 0.5, 0.5, 100, 5),
    Kind("large", 50, 1.2, 1.0, 200, 20),
)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job, the queue it comes to, and when."""

    at_s: float
    kind: Kind
    queue: str
    name: str


def queues(cohorts: int = COHORTS) -> Iterator[tuple[str, str]]:
    """Every queue and its cohort."""
    for cohort in range(cohorts):
        for queue in range(QUEUES):
            yield f"q{cohort}-{queue}", f"cohort{cohort}"


def arrivals(cohorts: int = COHORTS) -> list[Arrival]:
    """All jobs, in the order in which they come."""
    every = [
        Arrival(kind.every_s * number, kind, queue, f"{queue}-{kind.name}-{number}")
        for queue, _ in queues(cohorts)
        for kind in KINDS
        for number in range(kind.count)
    ]
    return sorted(every, key=lambda one: (one.at_s, one.name))


def write(folder: Path, cohorts: int) -> None:
    """The three files."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "nodes.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["name", "gpus", "cpu_milli", "memory_mib"])
        rows.writerows([f"node-{index}", 0, NODE_CPUS * 1000, 1 << 20] for index in range(NODES))
    with (folder / "jobs.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["name", "submit_s", "runtime_s", "pods", "gpus_per_pod", "cpu_milli", "queue", "priority"])
        for one in arrivals(cohorts):
            kind = one.kind
            rows.writerow([one.name, f"{one.at_s:g}", kind.runtime_s, 1, 0, kind.cpus * 1000, one.queue, kind.priority])
    (folder / "queues.yaml").write_text("---\n".join(_documents(cohorts)))


def _documents(cohorts: int) -> Iterator[str]:
    for number in range(cohorts):
        yield _queue(f"cohort{number}", "  namespaceSelector: {}", OWNED_CPUS * QUEUES, OWNED_CPUS * QUEUES)
    for name, cohort in queues(cohorts):
        yield _queue(name, f"  parent: {cohort}", OWNED_CPUS, OWNED_CPUS + BORROWED_CPUS)


def _queue(name: str, first: str, guaranteed: int, limit: int) -> str:
    return f"""\
apiVersion: muster.dev/v1alpha1
kind: Queue
metadata: {{name: {name}}}
spec:
{first}
  resources:
  - flavor: cpu
    guaranteed: {{cpu: "{guaranteed}"}}
    limit: {{cpu: "{limit}"}}
"""


def main() -> None:
    """Read the command line, write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cohorts", type=int, default=COHORTS, help="fewer cost less; they do not meet")
    args = parser.parse_args()
    write(args.folder, args.cohorts)


if __name__ == "__main__":
    main()
