"""Random jobs, each with its expected outcome, and what its user does to it."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from tests.cluster.chaos.driver.cluster_objects import BRIEF_TAINT
from tests.cluster.chaos.driver.settings import GPUS, PER_RACK, Size

Json = dict[str, Any]
Outcome = Literal["succeeds", "fails", "cancelled", "deleted"]
NAMESPACES = ("team-a", "team-b")
LEAVES = ("research", "product-a", "product-b", "scavenger")
GPU = "nvidia.com/gpu"
_PREFIX = "kwok.muster.dev/"
_BRIEF_TOLERATION = {"key": BRIEF_TAINT, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}


@dataclass(frozen=True, slots=True)
class UserAction:
    """A patch of a job's spec, or, without one, its deletion. `orphan`: its pods are not deleted with it;
    `once_it_runs`: not before that."""

    at: float
    spec: Json | None
    orphan: bool = False
    once_it_runs: bool = False


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job, when it is submitted, its expected outcome, and what its user does to it."""

    name: str
    namespace: str
    at: float
    outcome: Outcome
    body: Json
    actions: tuple[UserAction, ...] = ()

    @property
    def path(self) -> str:
        """API path of the jobs of its namespace."""
        return f"/apis/muster.dev/v1alpha1/namespaces/{self.namespace}/trainingjobs"


def planned_jobs(size: Size) -> list[PlannedJob]:
    """All jobs of a run, by the time they are submitted."""
    planned = [_orphaned_job(size), *(_planned_job(size, number) for number in range(size.jobs))]
    return sorted(planned, key=lambda planned: (planned.at, planned.name))


def _orphaned_job(size: Size) -> PlannedJob:
    """A job that is deleted while it runs, and its pods are not: every run has one, whatever its seed."""
    rng = size.rng("orphaned")
    template = _template(rng, "deleted")
    at = rng.uniform(0.1, 0.5) * size.fault_s
    roles = [{"name": "w", "replicas": 2, "template": _with_gpus(template, 1)}]
    spec = {
        "queue": "research",
        "priority": 10,
        "flavors": ["h200"],
        "roles": roles,
        "failurePolicy": {"maxRestarts": 30},
    }
    metadata = {"name": "orphaned"}
    body = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "metadata": metadata, "spec": spec}
    deletion = UserAction(at + rng.uniform(1.0, 5.0), None, orphan=True, once_it_runs=True)
    return PlannedJob("orphaned", NAMESPACES[0], at, "deleted", body, (deletion,))


def _planned_job(size: Size, number: int) -> PlannedJob:
    rng = size.rng("wish", number)  # not renamed: the jobs of a seed follow from it
    at = rng.uniform(0.0, 0.85 * size.fault_s)
    outcome = _outcome(rng)
    template = _template(rng, outcome)
    if size.rng("tolerations", number).random() < 0.4:
        template["spec"]["tolerations"] = [_BRIEF_TOLERATION]
    spec: Json = {
        "queue": rng.choice(LEAVES),
        "priority": rng.choice((0, 0, 0, 1, 5, 10)),
        "startTimeoutSeconds": rng.choice((60, 90)),  # the machine may be slow
        "flavors": rng.choice((["h200"], ["h200"], ["h200", "a100"], ["a100"])),
        "roles": _roles(size, rng, template),
        # Faults cause restarts, too.
        "failurePolicy": {"maxRestarts": 30},
    }
    if any(name.endswith("/stuck") for name in template["metadata"]["annotations"]):
        spec["startTimeoutSeconds"] = 10
    if outcome == "fails":
        spec |= rng.choice(
            (
                {"failurePolicy": {"maxRestarts": rng.choice((0, 1))}},
                {"failurePolicy": {"maxRestarts": 30, "rules": [{"onExitCodes": [7], "action": "FailJob"}]}},
            )
        )
    elif rng.random() < 0.4:
        spec["maxRuntimeSeconds"] = rng.choice((900, 1800))  # lets it start behind a reservation
    if rng.random() < 0.15:
        strict = rng.random() >= 0.5 and _fits_a_rack(spec["roles"][0])
        spec["topology"] = {"required": "rack"} if strict else {"preferred": "rack"}
    early = size.rng("early", number)
    if outcome == "succeeds" and "topology" not in spec and early.random() < 0.25:
        spec["roles"].append(_early_role(early, template))
    name = f"j{number:04d}"
    namespace = NAMESPACES[rng.random() < 0.3]
    body = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name}, "spec": spec}
    return PlannedJob(name, namespace, at, outcome, body, _actions(rng, at, outcome))


def _outcome(rng: Random) -> Outcome:
    draw = rng.random()
    return "succeeds" if draw < 0.78 else "fails" if draw < 0.88 else "cancelled" if draw < 0.94 else "deleted"


def _template(rng: Random, outcome: Outcome) -> Json:
    """A pod template; annotations determine the behaviour of its pods, attempt by attempt."""
    grace = rng.choice((1, 2, 3))
    behaviour = {"run-seconds": f"{rng.uniform(1.0, 8.0):.1f}"}
    exits = {"succeeds": ["0"] * 4 + ["3,0", "0,1,0", "137,0"], "fails": ["7"]}.get(outcome, ["0"])
    behaviour["exit-code"] = rng.choice(exits)
    if outcome == "cancelled" or outcome == "deleted":
        behaviour["run-seconds"] = "3600"
    if rng.random() < 0.3:
        behaviour["start-seconds"] = f"{rng.uniform(0.2, 3.0):.1f}"
    if rng.random() < 0.2:
        behaviour["ready-seconds"] = f"{rng.uniform(0.2, 2.0):.1f}"
    if rng.random() < 0.4:
        behaviour["stop-seconds"] = f"{rng.uniform(0.2, grace + 1.0):.1f}"
    if rng.random() < 0.04 and outcome == "succeeds":
        behaviour["stuck"] = "ImagePullBackOff,"  # in its first attempt
    return {
        "metadata": {"annotations": {_PREFIX + name: value for name, value in behaviour.items()}},
        "spec": {"containers": [{"name": "main", "image": "trainer"}], "terminationGracePeriodSeconds": grace},
    }


def _roles(size: Size, rng: Random, template: Json) -> list[Json]:
    """Mostly one role; at most half as large as the limit of the smallest queue."""
    gpus = rng.choice((1, 2, 4, 8, 8))
    most = max(1, min(16, size.gpus_of("a100") // (4 * gpus), size.nodes_of("a100") * GPUS // (4 * gpus)))
    pods = min(most, rng.choice((1, 1, 2, 2, 4, 4, 8, rng.randint(1, 16))))
    role: Json = {"name": "w", "replicas": pods, "template": _with_gpus(template, gpus)}
    if pods > 1 and rng.random() < 0.3:
        role["minReplicas"] = rng.randint(1, pods)
    if rng.random() < 0.1:
        return [role, {"name": "aux", "replicas": 1, "essential": False, "template": _with_gpus(template, 0)}]
    return [role]


def _early_role(rng: Random, template: Json) -> Json:
    """Pods that complete while the others run, which may then fail: a restart asks for their capacity again."""
    behaviour = {"run-seconds": f"{rng.uniform(0.2, 1.0):.1f}", "exit-code": "0"}
    metadata = {"annotations": {_PREFIX + name: value for name, value in behaviour.items()}}
    return {
        "name": "early",
        "replicas": rng.choice((1, 2)),
        "template": _with_gpus({**template, "metadata": metadata}, 4),
    }


def _fits_a_rack(role: Json) -> bool:
    gpus = int(role["template"]["spec"]["containers"][0]["resources"]["limits"][GPU])
    return int(role.get("minReplicas") or role["replicas"]) <= PER_RACK * (GPUS // gpus)


def _with_gpus(template: Json, gpus: int) -> Json:
    limits = {"cpu": "1", "memory": "1Gi"} | ({GPU: str(gpus)} if gpus else {})
    container = {**template["spec"]["containers"][0], "resources": {"limits": limits}}
    return {**template, "spec": {**template["spec"], "containers": [container]}}


def _actions(rng: Random, at: float, outcome: Outcome) -> tuple[UserAction, ...]:
    actions: list[UserAction] = []
    if rng.random() < 0.08:
        off = at + rng.uniform(0.1, 10.0)
        actions += [UserAction(off, {"suspend": True}), UserAction(off + rng.uniform(0.1, 8.0), {"suspend": False})]
    end = at + rng.uniform(1.0, 20.0)
    if outcome == "cancelled":
        actions.append(UserAction(end, {"cancel": True}))
    elif outcome == "deleted":
        actions.append(UserAction(end, None, orphan=rng.random() < 0.5))
    return tuple(actions)
