"""How much memory the operator needs for many jobs with the largest pod templates that it takes.

    python benchmarks/memory.py --json
    python benchmarks/memory.py --case bytes --case refused --jobs 1000

A real API server and etcd, no nodes; every template is another one, and every pod is tried. Peak RSS of an operator
that sees the jobs come, and of one that finds them all when it starts.

values: objects in an unknown field; nested: empty objects inside objects; variables: of the container;
affinity: requirements that the planner obeys; bytes: one long argument; refused: 1.3 MB of nested empty objects each,
which the operator refuses (a tenth as many jobs, since they are so long for etcd).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the control plane is that of the tests

from benchmarks.scale.programs import metrics, peak_rss_mib
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.operator.installing import install
from tests.cluster.operator.process import Operator

from muster.api.spec.limits import MAX_ROLES_BYTES, MAX_ROLES_VALUES

Json = dict[str, Any]
JOBS = "/apis/muster.dev/v1alpha1/namespaces/{}/trainingjobs"
NAMESPACES = [f"team-{number}" for number in range(10)]
"""Several, because the templates of one are bounded together."""
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_SPARE = 60  # values of the rest of a role
_LONGEST_S = 1800.0


def main() -> int:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=list(CASES), help="repeat for several; default: all")
    parser.add_argument("--jobs", type=int, default=1000, help="(default: %(default)d)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    args = parser.parse_args()
    for case in args.case or list(CASES):
        row = measured(case, args.jobs // 10 if case == "refused" else args.jobs)
        print(json.dumps(row) if args.json else "  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return 0


def measured(case: str, count: int) -> Json:
    """One case in a cluster of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="muster-memory-") as name,
        ControlPlane.start(Path(name) / "plane", scheduler=False, kwok=False) as plane,
    ):
        install(plane)
        size = len(json.dumps(CASES[case](0), separators=(",", ":")))
        peaks = [0.0, 0.0]
        for turn in range(2):
            operator = Operator(plane.kubeconfig(), Path(name) / "log", "--no-lease", "--log-level", "error")
            try:
                operator.wait("it is ready", lambda operator=operator: operator.get("/readyz")[0] == 200, _LONGEST_S)  # type: ignore[misc]
                if turn == 0:
                    idle = peak_rss_mib(operator.pid)
                    create(plane, case, count)
                wait_until_seen(operator, case, count, statuses=turn == 0)
                peaks[turn] = peak_rss_mib(operator.pid)
            finally:
                operator.kill()
    return {
        "case": case,
        "jobs": count,
        "template_kib": round(size / 1024, 1),
        "idle_mib": round(idle),
        "peak_mib": round(peaks[0]),
        "peak_after_restart_mib": round(peaks[1]),
    }


def create(plane: ControlPlane, case: str, count: int) -> None:
    """Create the jobs, in all namespaces alike, some at a time."""
    for namespace in NAMESPACES:
        plane.api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})

    def one(number: int) -> None:
        role = {"name": "worker", "template": CASES[case](number)}
        namespace = NAMESPACES[number % len(NAMESPACES)]
        meta = {"name": f"job-{number}", "namespace": namespace}
        job = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "metadata": meta}
        plane.api.create(JOBS.format(namespace), {**job, "spec": {"queue": "none", "roles": [role]}})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(count)))


def wait_until_seen(operator: Operator, case: str, count: int, *, statuses: bool) -> None:
    """Every pod was tried, and where the jobs are new, every job says why it waits."""
    calls = {"PUT": ("trainingjobs/status", "200")} if statuses else {}
    if case != "refused":
        calls["DRY-RUN"] = ("pods", "")
    for verb, (resource, code) in calls.items():
        operator.wait(
            f"{count} calls of {verb} {resource}",
            lambda verb=verb, resource=resource, code=code: _calls(operator, verb, resource, code) >= count,  # type: ignore[misc]
            _LONGEST_S,
        )


def _calls(operator: Operator, verb: str, resource: str, code: str) -> float:
    found = metrics(operator.get("/metrics")[1], "muster_api_calls_total")
    return sum(
        value
        for labels, value in found
        if (labels["verb"], labels["resource"]) == (verb, resource) and code in ("", labels["code"])
    )


# ---- templates, each another one


def template(number: int, **fields: Any) -> Json:
    """One container that says its number."""
    container = {"name": "main", "image": "none", "args": [str(number)], **fields.pop("container", {})}
    return {"spec": {"containers": [container], **fields}}


def values(number: int) -> Json:
    """Objects with one field."""
    return template(number, odd=[{"a": 1}] * ((MAX_ROLES_VALUES - _SPARE) // 2))


def nested(number: int) -> Json:
    """Empty objects inside objects."""
    return template(number, odd=[{"a": {"b": {}}}] * ((MAX_ROLES_VALUES - _SPARE) // 3))


def variables(number: int) -> Json:
    """The container's environment."""
    env = [{"name": f"V{at}", "value": str(number)} for at in range((MAX_ROLES_VALUES - _SPARE) // 3)]
    return template(number, container={"env": env})


def affinity(number: int) -> Json:
    """Requirements on nodes."""

    def lines(term: int) -> list[Json]:
        return [{"key": f"k{term}-{at}", "operator": "NotIn", "values": [f"{number}"]} for at in range(16)]

    terms = [{"matchExpressions": lines(at), "matchFields": lines(16 + at)} for at in range(16)]
    terms[0]["matchExpressions"][0]["values"] = [f"v{at}" for at in range(MAX_ROLES_VALUES - _SPARE - 2650)]
    required = {"nodeSelectorTerms": terms}
    return template(number, affinity={"nodeAffinity": {REQUIRED: required}})


def long_argument(number: int) -> Json:
    """As many bytes as are taken."""
    return template(number, container={"args": [str(number), "x" * (MAX_ROLES_BYTES - 1000)]})


def refused(number: int) -> Json:
    """More values than are taken."""
    return template(number, odd=[{"a": {}}] * 160_000)


CASES: dict[str, Callable[[int], Json]] = {
    "values": values,
    "nested": nested,
    "variables": variables,
    "affinity": affinity,
    "bytes": long_argument,
    "refused": refused,
}

if __name__ == "__main__":
    sys.exit(main())
