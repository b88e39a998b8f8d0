"""Objects that the API server accepted under CRDs without rules and that cannot be decoded: reports and corrections."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.controlplane.api import Refused
from tests.cluster.controlplane.nodes import GPU
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.operator.installing import CRDS, install
from tests.cluster.operator.pools import GROUP, Json, Pool
from tests.cluster.operator.process import Operator
from tests.cluster.users.conftest import Muster, file_of

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
HALF = f"spec.resources[0].guaranteed[\"{GPU}\"]: must be a whole number; got '0.5'"


def without_rules(schema: Any) -> Any:
    """The schema as it was before there were rules in CEL."""
    if isinstance(schema, list):
        return [without_rules(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: without_rules(value) for key, value in schema.items() if key != "x-kubernetes-validations"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("unreadable")


@pytest.fixture(scope="module")
def plane(folder: Path) -> Iterator[ControlPlane]:
    """A cluster that checks no object by rules."""
    with ControlPlane.start(folder / "plane", crds=CRDS) as plane:
        install(plane)
        for one in yaml.safe_load_all(CRDS.read_text()):
            plane.api.patch(f"{DEFINITIONS}/{one['metadata']['name']}", {"spec": without_rules(one["spec"])})
        plane.api.create("/api/v1/namespaces", {"metadata": {"name": "odd"}})
        plane.wait_for("the API server learns of the edited CRDs", lambda: takes_anything(plane))
        yield plane


@pytest.fixture(scope="module")
def pool(plane: ControlPlane, folder: Path) -> Iterator[Pool]:
    """Its nodes, queues and jobs, and an operator that can be replaced."""
    operators = [start(plane, folder)]
    one = Pool(plane, "odd", lambda: operators[-1])
    one.set_up(nodes=2, gpus=16)  # pods of jobs that were deleted go after a while
    one.restart = lambda: replace_last(operators, plane, folder)  # type: ignore[attr-defined]
    try:
        yield one
        assert operators[-1].stop() == 0, operators[-1].tail()
    finally:
        operators[-1].kill()


def start(plane: ControlPlane, folder: Path) -> Operator:
    return Operator(plane.kubeconfig(), folder / "log", "--no-lease")


def replace_last(operators: list[Operator], plane: ControlPlane, folder: Path) -> None:
    operators[-1].kill()
    operators.append(start(plane, folder))


def takes_anything(plane: ControlPlane) -> bool:
    """Whether objects that a rule would refuse are taken, of every kind."""
    half: Json = {"resources": [{"flavor": "x", "guaranteed": {GPU: "0.5"}}]}
    twice = {"topology": [{"name": name, "nodeLabel": "same"} for name in ("a", "b")]}
    container = {"name": "main", "image": "i", "resources": {"limits": {GPU: "0.5"}}}
    roles = [{"name": "worker", "template": {"spec": {"containers": [container]}}}]
    with suppress(Refused):
        for path, wanted in (("queues", half), ("flavors", twice), ("namespaces/odd/trainingjobs", {"roles": roles})):
            plane.api.create(f"{GROUP}/{path}?dryRun=All", {**OBJECT[path], "metadata": {"name": "x"}, "spec": wanted})
        return True
    return False


OBJECT: dict[str, Json] = {
    "queues": {"apiVersion": "muster.dev/v1alpha1", "kind": "Queue"},
    "flavors": {"apiVersion": "muster.dev/v1alpha1", "kind": "Flavor"},
    "namespaces/odd/trainingjobs": {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob"},
}


def condition(pool: Pool, path: str, kind: str) -> tuple[str, str, str]:
    """Status, reason and message of a condition of a queue or a flavor."""
    status = pool.api.get(f"{GROUP}/{path}").get("status", {})
    one: Json = next((one for one in status.get("conditions", []) if one["type"] == kind), {})
    return one.get("status", ""), one.get("reason", ""), one.get("message", "")


def event_messages(pool: Pool, kind: str, name: str) -> list[str]:
    """What Events tell of an object that is in no namespace."""
    events = pool.api.items("/apis/events.k8s.io/v1/namespaces/default/events")
    ours = [one for one in events if (one["regarding"]["kind"], one["regarding"]["name"]) == (kind, name)]
    return [f"{one['reason']}: {one['note']}" for one in ours]


def halved(pool: Pool, name: str) -> Json:
    """A job that asks for half a GPU."""
    document = pool.job(name, pods=1)
    document["spec"]["roles"][0]["template"]["spec"]["containers"][0]["resources"]["limits"][GPU] = "0.5"
    return document


def test_a_job_that_cannot_be_decoded_has_the_error_and_starts_once_it_is_corrected(pool: Pool) -> None:
    half = halved(pool, "half")
    pool.api.create(f"{GROUP}/namespaces/{pool.namespace}/trainingjobs", half)
    pool.submit("other", pods=1)
    message = pool.wait_for_reason("half", "InvalidSpec")
    assert message == (
        'spec.roles[0].template.spec.containers[0].resources.limits["nvidia.com/gpu"]: '
        "must be a whole number; got '0.5'"
    )
    assert (pool.phase("half"), pool.status("half")["reason"]) == ("Pending", "InvalidSpec")
    pool.wait("an Event tells", lambda: pool.events("half") == ["InvalidSpec"])
    pool.wait_for_phase("other", "Running")
    assert pool.pods("half") == []
    half["spec"]["roles"][0]["template"]["spec"]["containers"][0]["resources"]["limits"][GPU] = "1"
    pool.edit("half", roles=half["spec"]["roles"])
    pool.wait_for_phase("half", "Running")
    assert pool.events("half").count("InvalidSpec") == 1
    for name in ("half", "other"):
        pool.delete(name)


def test_a_queue_that_cannot_be_decoded_admits_nothing_until_it_is_corrected(pool: Pool) -> None:
    path = f"queues/{pool.queue('red')}"
    pool.submit("runs", pods=1)
    pool.wait_for_phase("runs", "Running")
    pool.edit_queue("red", resources=[{"flavor": pool.namespace, "guaranteed": {GPU: "0.5"}}])
    pool.wait("the queue says so", lambda: condition(pool, path, "Active")[:2] == ("False", "InvalidSpec"))
    assert condition(pool, path, "Active")[2].startswith(f"it cannot be read: {HALF}")
    (line,) = [one for one in pool.plane.kubectl("get", "mq").splitlines() if one.startswith(f"{pool.queue('red')} ")]
    assert "InvalidSpec" in line
    assert HALF in pool.plane.kubectl("describe", "mq", pool.queue("red"))
    pool.wait("an Event tells", lambda: bool(event_messages(pool, "Queue", pool.queue("red"))))
    assert event_messages(pool, "Queue", pool.queue("red"))[0].startswith(f"InvalidSpec: {HALF}")
    pool.submit("waits", pods=1)
    message = pool.wait_for_reason("waits", "QueueInactive")
    assert message.startswith(f"queue {pool.queue('red')} cannot be read: {HALF}")
    pool.restart()  # type: ignore[attr-defined]
    pool.submit("later", pods=1)
    assert pool.wait_for_reason("later", "QueueInactive") == message, "also to one who never read the queue"
    assert pool.attempt("runs") == 0, "who runs there runs on"
    pool.set_quota("red", 4)
    for name in ("waits", "later"):
        pool.wait_for_phase(name, "Running")
    pool.wait("the queue is mended", lambda: condition(pool, path, "Active")[:2] == ("True", "Ready"))
    for name in ("runs", "waits", "later"):
        pool.delete(name)


def test_a_queue_that_cannot_be_decoded_can_be_deleted(pool: Pool) -> None:
    pool.add_queue("green", "all", 1)
    pool.edit_queue("green", resources=[{"flavor": pool.namespace, "guaranteed": {GPU: "0.5"}}])
    path = f"queues/{pool.queue('green')}"
    pool.wait("the queue says so", lambda: condition(pool, path, "Active")[1] == "InvalidSpec")
    pool.api.delete(f"{GROUP}/{path}")
    pool.wait("it is gone", lambda: pool.api.gone(f"{GROUP}/{path}"))


def test_a_flavor_that_cannot_be_decoded_gets_no_jobs_until_it_is_corrected(pool: Pool) -> None:
    path = f"flavors/{pool.namespace}"
    topology = pool.api.get(f"{GROUP}/{path}")["spec"]["topology"]
    pool.submit("runs", pods=1)
    pool.wait_for_phase("runs", "Running")
    twice = [{"name": name, "nodeLabel": "same"} for name in ("a", "b")]
    pool.api.patch(f"{GROUP}/{path}", {"spec": {"topology": twice}})
    error_text = "spec.topology: the nodeLabel of each level must be unique; got 'same' more than once"
    pool.wait("the flavor says so", lambda: condition(pool, path, "Valid") == ("False", "InvalidSpec", error_text))
    assert "False" in pool.plane.kubectl("get", "mf", pool.namespace)
    pool.wait("an Event tells", lambda: bool(event_messages(pool, "Flavor", pool.namespace)))
    assert event_messages(pool, "Flavor", pool.namespace) == [f"InvalidSpec: {error_text}"]
    pool.submit("waits", pods=1)
    assert pool.wait_for_reason("waits", "FlavorNotFound") == f"flavor {pool.namespace} cannot be read: {error_text}"
    assert (pool.phase("runs"), pool.attempt("runs")) == ("Running", 0)
    pool.api.patch(f"{GROUP}/{path}", {"spec": {"topology": topology}})
    pool.wait_for_phase("waits", "Running")
    pool.wait("the flavor is mended", lambda: condition(pool, path, "Valid")[:2] == ("True", "Valid"))
    for name in ("runs", "waits"):
        pool.delete(name)


def test_muster_lists_all_other_jobs_and_names_the_one_that_cannot_be_decoded(
    pool: Pool, muster: Muster, tmp_path: Path
) -> None:
    document = halved(pool, "part")
    pool.api.create(f"{GROUP}/namespaces/{pool.namespace}/trainingjobs", document)
    pool.submit("rest", pods=1)
    pool.wait_for_phase("rest", "Running")
    error_text = 'spec.roles[0].template.spec.containers[0].resources.limits["nvidia.com/gpu"]'
    listed = muster("jobs")
    assert (listed.code, [line.split()[0] for line in listed.out.splitlines()]) == (0, ["JOB", "rest"])
    assert listed.err.startswith(
        f"warning: job {pool.namespace}/part cannot be read: {error_text}: must be a whole number; got '0.5'"
    )
    rows = muster("jobs", "--json").rows
    assert [row["metadata"]["name"] for row in rows] == ["rest", "part"]
    assert rows[1]["unreadable"].startswith(error_text)
    assert rows[1]["spec"]["roles"][0]["name"] == "worker"
    answered = muster("describe", "part", "--json")
    error = json.loads(answered.err)["error"]
    assert (answered.code, error["reason"], error_text in error["message"]) == (4, "WrongVersion", True)
    assert muster("queues").code == 0
    assert muster("nodes").code == 0
    document["spec"]["roles"][0]["template"]["spec"]["containers"][0]["resources"]["limits"][GPU] = "1"
    assert muster("apply", file_of(tmp_path, document), "--json").rows[0]["result"] == "configured"
    pool.wait_for_phase("part", "Running")
    assert muster("jobs").err == ""
    for name in ("part", "rest"):
        assert muster("delete", "job", name).code == 0


def test_muster_shows_a_queue_that_cannot_be_decoded_refuses_jobs_for_it_and_corrects_it(
    pool: Pool, muster: Muster, tmp_path: Path
) -> None:
    name = pool.queue("blue")
    pool.edit_queue("blue", resources=[{"flavor": pool.namespace, "guaranteed": {GPU: "0.5"}}])
    tree = muster("queues")
    assert tree.code == 0
    (line,) = [line for line in tree.out.splitlines() if line.startswith(f"! {name}: ")]
    assert line.startswith(f"! {name}: it cannot be read: {HALF}")
    rows = {row["name"]: row for row in muster("queues", "--json").rows}
    assert (rows[name]["active"], rows[name]["reason"], rows[name]["parent"]) == (
        False,
        "InvalidSpec",
        pool.queue("all"),
    )
    refused = muster("submit", file_of(tmp_path, pool.job("early", queue="blue")), "--json")
    error = json.loads(refused.err)["error"]
    assert (refused.code, error["reason"]) == (3, "QueueInactive")
    assert f"spec.queue: queue {name} cannot be read: {HALF}" in error["message"]
    assert muster("submit", file_of(tmp_path, pool.job("red", queue="red")), "--dry-run").code == 0
    resources = [{"flavor": pool.namespace, "guaranteed": {GPU: "4"}}]
    wanted = {"parent": pool.queue("all"), "resources": resources}
    mended = {**OBJECT["queues"], "metadata": {"name": name}, "spec": wanted}
    assert muster("apply", file_of(tmp_path, mended), "--json").rows[0]["result"] == "configured"
    assert "cannot be read" not in muster("queues").out
    pool.wait("the queue is mended", lambda: condition(pool, f"queues/{name}", "Active")[1] == "Ready")
