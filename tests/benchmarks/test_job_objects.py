import json
from collections.abc import Iterable

import pytest
from benchmarks.scale.client import Request
from benchmarks.scale.muster import training_job
from benchmarks.scale.peers import job_objects
from benchmarks.scale.peers.job_objects import Form
from benchmarks.scale.work import Jobs

GANGS = Jobs("gang", 2, 3, 8)
FORMS = {
    "alone": job_objects.alone, "native": job_objects.native,
    "volcano": job_objects.volcano, "kai": job_objects.kai, "batch": job_objects.batch,
    "kueue": job_objects.kueue,
}  # fmt: skip
WITH_GROUPS = ("native", "volcano", "kai")


def resources_in(thing: object) -> Iterable[object]:
    if isinstance(thing, dict):
        for key, value in thing.items():
            if key == "resources":
                yield value
            else:
                yield from resources_in(value)
    elif isinstance(thing, list | tuple):
        for one in thing:
            yield from resources_in(one)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_pods_ask_for_what_musters_pods_ask_for(form: Form) -> None:
    (expected,) = resources_in(training_job(GANGS, "gang-0"))
    found = list(resources_in([body for _, body in form(GANGS, "gang-0")]))

    assert found
    assert all(one == expected for one in found)


@pytest.mark.parametrize("name", WITH_GROUPS)
def test_a_group_is_sent_first_and_its_pods_once_it_is_there(name: str) -> None:
    sent = list(job_objects.requests(FORMS[name], GANGS))

    assert [request.path.rpartition("/")[2] for request in sent] == ["podgroups"] * 2
    assert [[json.loads(pod.body)["metadata"]["name"] for pod in request.then] for request in sent] == [
        ["gang-0-0", "gang-0-1", "gang-0-2"],
        ["gang-1-0", "gang-1-1", "gang-1-2"],
    ]


def test_single_pods_wait_for_nothing() -> None:
    sent = list(job_objects.requests(job_objects.alone, GANGS))

    assert [request.path for request in sent] == [job_objects.PODS] * 6
    assert all(request.then == () for request in sent)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_pod_carries_the_label_by_which_the_watch_knows_its_job(form: Form) -> None:
    documents = form(GANGS, "gang-1")
    pods = [body for path, body in documents if path == job_objects.PODS]
    labels = [pod["metadata"]["labels"] for pod in pods] or [documents[0][1]["spec"]["template"]["metadata"]["labels"]]

    assert {label["muster.dev/job"] for label in labels} == {"gang-1"}


def test_a_group_asks_for_all_of_its_pods() -> None:
    def spec(form: Form) -> object:
        return form(GANGS, "gang-0")[0][1]["spec"]

    assert spec(job_objects.native) == {"schedulingPolicy": {"gang": {"minCount": 3}}}
    assert spec(job_objects.kai) == {"minMember": 3, "queue": "all"}
    together = {"cpu": "24", "memory": "24Gi", "nvidia.com/gpu": "24"}
    assert spec(job_objects.volcano) == {"minMember": 3, "queue": "default", "minResources": together}


def test_a_job_of_kueue_is_suspended_and_in_a_queue_and_a_plain_one_is_neither() -> None:
    (_, plain), (_, queued) = (*job_objects.batch(GANGS, "gang-0"), *job_objects.kueue(GANGS, "gang-0"))

    assert (plain["spec"]["suspend"], plain["metadata"]["labels"]) == (False, {})
    assert (queued["spec"]["suspend"], queued["metadata"]["labels"]) == (True, {"kueue.x-k8s.io/queue-name": "all"})
    assert plain["spec"]["parallelism"] == plain["spec"]["completions"] == 3


def test_a_pod_without_gpus_asks_for_cpus_alone() -> None:
    (found,) = resources_in(job_objects.alone(Jobs("cpu", 1, 1, 0), "cpu-0")[0][1])

    assert found == {"requests": {"cpu": "1"}, "limits": {}}


def test_requests_know_what_follows_them() -> None:
    assert Request("/path", b"{}").then == ()
