"""An array on a real control plane: one TrainingJob, many gangs."""

from __future__ import annotations

from tests.cluster.operator.pools import Pool

from muster.api.spec import index_set


def test_failed_indices_of_an_array_run_again_once_they_are_retried(pool: Pool) -> None:
    pool.set_up()
    does = {"run_seconds": 0.1, "exit_code": "1,0"}
    pool.submit("sweep", 1, does=does, array={"indices": "0-5", "parallelism": 4}, failurePolicy={"maxRestarts": 0})
    pool.wait("all indices have failed", lambda: pool.phase("sweep") == "Failed", 90)
    failed = pool.status("sweep")
    assert (failed["array"]["failed"], failed["array"]["active"], failed["reason"]) == ("0-5", {}, "IndicesFailed")
    pool.edit("sweep", array={"retries": 1})
    pool.wait("they succeed", lambda: pool.phase("sweep") == "Succeeded", 90)
    assert index_set(pool.status("sweep")["array"]["succeeded"]) == frozenset(range(6))
    labels = [pod["metadata"]["labels"] for pod in pool.pods("sweep")]
    assert sorted((one["muster.dev/array-index"], one["muster.dev/attempt"]) for one in labels) == [
        (str(index), "1") for index in range(6)
    ]


def test_an_index_is_cancelled_without_the_others_and_the_pods_are_gone_with_the_array(pool: Pool) -> None:
    pool.set_up()
    pool.submit("sweep", 1, array={"indices": "0-9", "parallelism": 2})
    pool.wait("two run", lambda: pool.condition("sweep", "PodsReady").get("message", "").endswith("2 running"), 90)
    pool.wait("their pods exist", lambda: len(pool.pods("sweep")) == 2, 90)
    first = {pod["metadata"]["labels"]["muster.dev/array-index"] for pod in pool.pods("sweep")}
    assert first == {"0", "1"}
    variables = {one["name"]: one.get("value") for one in pool.pods("sweep")[0]["spec"]["containers"][0]["env"]}
    assert variables["MUSTER_ARRAY_INDEX"] in first
    pool.edit("sweep", array={"cancel": "1,3"})
    pool.wait("2 runs instead", lambda: set(pool.status("sweep")["array"]["active"]) == {"0", "2"}, 90)
    pool.wait("3 does not start", lambda: pool.status("sweep")["array"]["cancelled"] == "1,3", 90)
    pool.delete("sweep")
    pool.wait("its pods are gone", lambda: not pool.pods(), 90)
