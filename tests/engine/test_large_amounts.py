"""Amounts beyond 64 bits, wherever they come from: the cycle ends, and all other gangs are decided about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.objects import adapted, flavor, nodes

from muster.api import spec
from muster.api.spec.pods import pod_request
from muster.cluster import PodView
from muster.engine import CycleResult, Engine
from muster.kinds.trainingjob.adapter import to_roles
from muster.model import MAX_AMOUNT, Resources
from muster.workload.observed import ObservedState

GPU = "nvidia.com/gpu"
AMOUNTS = ("4E", "4611686018427387904", "1Pi", "1Gi", "0")


def job(name: str, *memory: str, pods: int = 1, roles: int = 1, **fields: object) -> spec.TrainingJob:
    """A job whose containers ask for these amounts, checked one by one only: as the API server may complete a job."""
    containers = [{"name": f"c{i}", "resources": {"requests": {"memory": one}}} for i, one in enumerate(memory)]
    pod = spec.PodSpec.model_validate({"containers": containers or [{}]})
    small = {"replicas": pods, "template": {"spec": {"containers": [{}]}}}
    wanted = {"roles": [{"name": f"r{i}", **small} for i in range(roles)], **fields}
    meta = {"name": name, "uid": f"u-{name}", "namespace": "d"}
    one = spec.TrainingJob.model_validate({"metadata": meta, "spec": wanted})
    template = spec.PodTemplate.model_construct(metadata=spec.TemplateMeta(), spec=pod)
    large = [role.model_copy(update={"template": template}) for role in one.spec.roles]
    return one.model_copy(update={"spec": one.spec.model_copy(update={"roles": large})})


def queue(name: str, *resources: str, parent: str | None = None, amount: str = "16") -> spec.Queue:
    wanted = [{"flavor": "any", "guaranteed": dict.fromkeys((GPU, *resources), amount)}]
    body: dict[str, object] = {"namespaceSelector": {}, "resources": wanted, "parent": parent}
    return spec.Queue.model_validate({"metadata": {"name": name}, "spec": body})


def decide(
    *jobs: spec.TrainingJob,
    queues: tuple[spec.Queue, ...] = (),
    unmanaged: int = 0,
    pods: Mapping[str, tuple[PodView, ...]] | None = None,
) -> CycleResult:
    """One cycle with three nodes; unmanaged pods use so much memory of the first."""
    first, *rest = nodes(3)
    there = (replace(first, unmanaged_usage=Resources.of({"memory": unmanaged})), *rest)
    observed = ObservedState(
        1000.0,
        there,
        (flavor(),),
        queues or (queue("default"),),
        adapted(jobs),
        pods or {},
        namespaces={"d": {}},
    )
    return Engine().reconcile(observed)


SMALL = job("small", "1Gi")


@pytest.mark.parametrize("limited", [(), ("memory",)], ids=["memory is free", "memory has a quota"])
@pytest.mark.parametrize(
    "large",
    [job("a", "4E", "4E", "4E"), job("a", "4E", pods=100), job("a", "4E", roles=5), job("a", *["4E"] * 5, pods=3)],
    ids=["three containers", "100 pods", "five roles", "five containers of three pods"],
)
def test_a_gang_that_asks_for_more_than_can_be_counted_waits_and_others_start(
    large: spec.TrainingJob, limited: tuple[str, ...]
) -> None:
    queues = (queue("default", *limited, amount="64Gi"),)
    result = decide(large, SMALL, queues=queues)
    assert result.waits["u-a"].reason in ("LargerThanCluster", "LargerThanQuota")
    assert "u-small" not in result.waits


def test_a_node_of_which_others_take_more_than_can_be_counted_is_passed_over() -> None:
    result = decide(SMALL, unmanaged=12 * 10**18)
    (admitted,) = result.decisions
    assert "n0" not in str(admitted)


def test_pods_that_stop_and_ask_for_more_than_can_be_counted_keep_no_gang_from_starting() -> None:
    leaving = {
        f"u-{name}": tuple(
            PodView(
                f"{name}-{i}", f"u-{name}", "r0", i, 0, "n0", "Running", request=Resources.of({"memory": MAX_AMOUNT})
            )
            for i in range(3)
        )
        for name in ("a", "b", "c")
    }
    queues = (queue("default", "memory", amount="64Gi"),)
    jobs = [job(name) for name in ("a", "b", "c")]
    jobs = [one.model_copy(update={"status": spec.TrainingJobStatus(attempt=1)}) for one in jobs]
    result = decide(*jobs, SMALL, queues=queues, pods=leaving)
    assert result.waits["u-small"].reason == "QuotaExceeded"
    without = decide(*jobs, SMALL, pods=leaving)
    assert "u-small" not in without.waits


def test_queues_that_are_given_more_than_can_be_counted_stop_no_gang() -> None:
    red = [queue(name, "memory", parent="all", amount="4611686018427387904") for name in ("a", "b", "default")]
    result = decide(SMALL, queues=(queue("all", "memory", amount="4611686018427387904"), *red))
    assert "u-small" not in result.waits


@settings(deadline=None)
@given(
    st.lists(
        st.builds(
            job,
            st.just("x"),
            st.sampled_from(AMOUNTS),
            st.sampled_from(AMOUNTS),
            pods=st.sampled_from((1, 3, 100_000)),
            roles=st.integers(1, 3),
            queue=st.sampled_from(("a", "b")),
            maxRuntimeSeconds=st.sampled_from((None, 60)),
        ),
        max_size=5,
    ),
    st.sampled_from((0, 10**18, 2**62, 2**65)),
    st.tuples(*[st.sampled_from(AMOUNTS)] * 3),
)
def test_every_cycle_ends_whatever_jobs_request(
    jobs: list[spec.TrainingJob], unmanaged: int, given_: tuple[str, str, str]
) -> None:
    tree = [
        queue(name, "memory", parent=above, amount=amount)
        for name, above, amount in zip(("all", "a", "b"), (None, "all", "all"), given_, strict=True)
    ]
    named = [
        one.model_copy(update={"metadata": one.metadata.model_copy(update={"name": f"j{i}", "uid": f"u-{i}"})})
        for i, one in enumerate(jobs)
    ]
    result = decide(*named, queues=tuple(tree), unmanaged=unmanaged)
    assert {one.gang_uid for one in result.decisions} == {one.metadata.uid for one in named}


def test_amounts_of_a_gang_that_can_be_counted_stay_as_they_are_and_others_add_up_to_no_more_than_that() -> None:
    whole = job("a", "1Ei", pods=2, roles=2)
    assert {role.request.get("memory") for role in to_roles(whole.spec)} == {2**60}
    large = job("a", "4E", "4E", pods=3, roles=2)
    assert all(pod_request(role.template.spec).get("memory") == 8 * 10**18 for role in large.spec.roles)
    assert sum(role.replicas * role.request.get("memory") for role in to_roles(large.spec)) <= MAX_AMOUNT
