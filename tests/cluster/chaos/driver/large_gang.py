"""A gang larger than its queue's guarantee, while other queues have a backlog that fills theirs: at the end of a run,
without any other fault. The observer checks that it starts in time, and that others borrow until it is its turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.cluster.chaos.checker.objects import STARTS_WITHIN
from tests.cluster.chaos.driver.cluster_objects import BORROWING_DELAY_S
from tests.cluster.chaos.driver.environment import GROUP, Environment, wait_for
from tests.cluster.chaos.driver.settings import GPUS
from tests.cluster.chaos.driver.users import GPU, NAMESPACES

Json = dict[str, Any]
_FLAVOR = "a100"
_AT_ONCE, _ROUNDS, _RUN_S = 10, 16, 6.0  # the backlog: so many gangs fill the flavor, and so often
_MARGIN_S = 50.0  # beyond its delay and one run time
_NAME = "large"
_PATH = f"{GROUP}/namespaces/{NAMESPACES[0]}/trainingjobs"


def end_with_large_gang(env: Environment, progress: Callable[[], None]) -> list[str]:
    """Submit the backlog and the gang, wait until that runs, delete all. What went wrong."""
    env.counts["large_gang"] += 1
    nodes = env.size.nodes_of(_FLAVOR)
    backlog = [f"backlog-{number:03d}" for number in range(_AT_ONCE * _ROUNDS)]
    for number, name in enumerate(backlog):
        _submit(env, _job(name, ("research", "product-a")[number % 2], max(1, nodes // _AT_ONCE)))
    large = _job(_NAME, "product-b", 2 * nodes // 5)  # below the limit of its queue, four times the guarantee
    large["metadata"]["annotations"] = {STARTS_WITHIN: str(BORROWING_DELAY_S + _RUN_S + _MARGIN_S)}
    _submit(env, large)
    ran = wait_for(progress, lambda: _phase(env) in ("Running", "Succeeded"))
    names = {*backlog, _NAME}
    for name in sorted(names):
        env.retry(lambda name=name: env.api.delete_if_exists(f"{_PATH}/{name}"))  # type: ignore[misc]
    stopped = wait_for(progress, lambda: not _has_pods(env, names))
    wrong = [] if ran else [f"{_NAME} does not run beside a backlog"]
    return wrong if stopped else [*wrong, "pods of the backlog are not deleted"]


def _submit(env: Environment, body: Json) -> None:
    env.retry(lambda: env.api.create(_PATH, body))


def _job(name: str, queue: str, pods: int) -> Json:
    annotations = {"kwok.muster.dev/run-seconds": f"{_RUN_S:g}", "kwok.muster.dev/exit-code": "0"}
    container = {"name": "main", "image": "trainer", "resources": {"limits": {"cpu": "1", GPU: str(GPUS)}}}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 1}
    role = {"name": "w", "replicas": pods, "template": {"metadata": {"annotations": annotations}, "spec": spec}}
    wanted = {"queue": queue, "flavors": [_FLAVOR], "roles": [role]}
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": wanted,
    }


def _phase(env: Environment) -> str:
    status = env.retry(lambda: env.api.get(f"{_PATH}/{_NAME}")).get("status") or {}
    return str(status.get("phase", ""))


def _has_pods(env: Environment, jobs: set[str]) -> bool:
    return any(pod["metadata"]["labels"]["muster.dev/job"] in jobs for pod in env.pods(labelSelector="muster.dev/job"))
