"""What users want: random jobs, each with the end it must come to, and what its user does to it meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from tests.cluster.chaos.driver.settings import GPUS, PER_RACK, Size

Json = dict[str, Any]
Fate = Literal["succeeds", "fails", "cancelled", "deleted"]
NAMESPACES = ("team-a", "team-b")
LEAVES = ("research", "product-a", "product-b", "scavenger")
GPU = "nvidia.com/gpu"
_STEER = "kwok.muster.dev/"


@dataclass(frozen=True, slots=True)
class Act:
    """What its user does to a job: a patch of its spec, or, without one, its deletion."""

    at: float
    spec: Json | None


@dataclass(frozen=True, slots=True)
class Wish:
    """A job, when it is submitted, how it must end, and what its user does to it."""

    name: str
    namespace: str
    at: float
    fate: Fate
    body: Json
    acts: tuple[Act, ...] = ()

    @property
    def path(self) -> str:
        """Where it lies."""
        return f"/apis/muster.dev/v1alpha1/namespaces/{self.namespace}/trainingjobs"


def wishes(size: Size) -> list[Wish]:
    """All jobs of a run, by the time they are submitted."""
    return sorted((_wish(size, number) for number in range(size.jobs)), key=lambda wish: (wish.at, wish.name))


def _wish(size: Size, number: int) -> Wish:
    chance = size.chance("wish", number)
    at = chance.uniform(0.0, 0.85 * size.busy_s)
    fate = _fate(chance)
    template = _template(chance, fate)
    spec: Json = {
        "queue": chance.choice(LEAVES),
        "priority": chance.choice((0, 0, 0, 1, 5, 10)),
        "startTimeoutSeconds": chance.choice((60, 90)),  # the machine may be slow
        "flavors": chance.choice((["h200"], ["h200"], ["h200", "a100"], ["a100"])),
        "roles": _roles(size, chance, template),
        # Chaos takes restarts, too: what is to succeed has plenty.
        "failurePolicy": {"maxRestarts": 30},
    }
    if any(name.endswith("/stuck") for name in template["metadata"]["annotations"]):
        spec["startTimeoutSeconds"] = 10
    if fate == "fails":
        spec |= chance.choice(
            (
                {"failurePolicy": {"maxRestarts": chance.choice((0, 1))}},
                {"failurePolicy": {"maxRestarts": 30, "rules": [{"onExitCodes": [7], "action": "FailJob"}]}},
            )
        )
    elif chance.random() < 0.4:
        spec["maxRuntimeSeconds"] = chance.choice((900, 1800))  # lets it start behind a reservation
    if chance.random() < 0.15:
        strict = chance.random() >= 0.5 and _fits_a_rack(spec["roles"][0])
        spec["topology"] = {"required": "rack"} if strict else {"preferred": "rack"}
    name = f"j{number:04d}"
    namespace = NAMESPACES[chance.random() < 0.3]
    body = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name}, "spec": spec}
    return Wish(name, namespace, at, fate, body, _acts(chance, at, fate))


def _fate(chance: Random) -> Fate:
    draw = chance.random()
    return "succeeds" if draw < 0.78 else "fails" if draw < 0.88 else "cancelled" if draw < 0.94 else "deleted"


def _template(chance: Random, fate: Fate) -> Json:
    """A pod template: how its pods live is steered by annotations, attempt by attempt."""
    grace = chance.choice((1, 2, 3))
    steer = {"run-seconds": f"{chance.uniform(1.0, 8.0):.1f}"}
    exits = {"succeeds": ["0"] * 4 + ["3,0", "0,1,0", "137,0"], "fails": ["7"]}.get(fate, ["0"])
    steer["exit-code"] = chance.choice(exits)
    if fate == "cancelled" or fate == "deleted":
        steer["run-seconds"] = "3600"
    if chance.random() < 0.3:
        steer["start-seconds"] = f"{chance.uniform(0.2, 3.0):.1f}"
    if chance.random() < 0.2:
        steer["ready-seconds"] = f"{chance.uniform(0.2, 2.0):.1f}"
    if chance.random() < 0.4:
        steer["stop-seconds"] = f"{chance.uniform(0.2, grace + 1.0):.1f}"
    if chance.random() < 0.04 and fate == "succeeds":
        steer["stuck"] = "ImagePullBackOff,"  # in its first attempt
    return {
        "metadata": {"annotations": {_STEER + name: value for name, value in steer.items()}},
        "spec": {"containers": [{"name": "main", "image": "trainer"}], "terminationGracePeriodSeconds": grace},
    }


def _roles(size: Size, chance: Random, template: Json) -> list[Json]:
    """One role mostly; at most as large as half of what the smallest queue may ever use."""
    gpus = chance.choice((1, 2, 4, 8, 8))
    most = max(1, min(16, size.gpus_of("a100") // (4 * gpus), size.nodes_of("a100") * GPUS // (4 * gpus)))
    pods = min(most, chance.choice((1, 1, 2, 2, 4, 4, 8, chance.randint(1, 16))))
    role: Json = {"name": "w", "replicas": pods, "template": _with_gpus(template, gpus)}
    if pods > 1 and chance.random() < 0.3:
        role["minReplicas"] = chance.randint(1, pods)
    if chance.random() < 0.1:
        return [role, {"name": "aux", "replicas": 1, "essential": False, "template": _with_gpus(template, 0)}]
    return [role]


def _fits_a_rack(role: Json) -> bool:
    gpus = int(role["template"]["spec"]["containers"][0]["resources"]["limits"][GPU])
    return int(role.get("minReplicas") or role["replicas"]) <= PER_RACK * (GPUS // gpus)


def _with_gpus(template: Json, gpus: int) -> Json:
    limits = {"cpu": "1", "memory": "1Gi"} | ({GPU: str(gpus)} if gpus else {})
    container = {**template["spec"]["containers"][0], "resources": {"limits": limits}}
    return {**template, "spec": {**template["spec"], "containers": [container]}}


def _acts(chance: Random, at: float, fate: Fate) -> tuple[Act, ...]:
    acts: list[Act] = []
    if chance.random() < 0.08:
        off = at + chance.uniform(0.1, 10.0)
        acts += [Act(off, {"suspend": True}), Act(off + chance.uniform(0.1, 8.0), {"suspend": False})]
    end = at + chance.uniform(1.0, 20.0)
    if fate == "cancelled":
        acts.append(Act(end, {"cancel": True}))
    elif fate == "deleted":
        acts.append(Act(end, None))
    return tuple(acts)
