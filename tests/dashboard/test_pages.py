"""What the pages show, of a state in memory: the numbers of the read API, as text."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from html import unescape

import pytest
from tests.dashboard.serving import ReadStateClient, get, serving
from tests.engine.objects import flavor, nodes, queue
from tests.state.observed_states import NOW, admitted, named, observed_state, pod
from tests.visibility.states import failed, in_namespace, leader, two_queues

from muster.dashboard.page import MAX_ROWS
from muster.dashboard.pages.nodes import node_groups, resource_uses
from muster.errors import ClusterError, Refused
from muster.model import Wait
from muster.visibility.state import ReadState
from muster.visibility.types import ItemMeta, NodeSummary, Preemption
from muster.workload import transitions
from muster.workload.timeouts import Timeouts

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&\x1b]0;x\x07\u202e"


def text(page: str) -> str:
    """The words of a page without markup, with single spaces."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())


def one_page(state: ReadState, target: str) -> str:
    with serving(ReadStateClient(state=state)) as server:
        found = get(server, target)
        assert found.status == 200, found.text
        return found.text


def waiting(name: str, position: int | None, message: str = "needs 16 GPUs") -> dict[str, Wait]:
    return {name: Wait(name, "QuotaExceeded", message, position, NOW + 3600 if position == 1 else None)}


def test_the_overview_has_the_queue_tree_with_usage_and_the_counts_of_jobs() -> None:
    state = leader(two_queues(admitted("a"), named("b")), waiting("b", 1))
    page = text(one_page(state, "/"))
    assert "Running 0 Pending 1 All jobs 2" in page
    assert "root 1 1 gpu 16 used of 16 guaranteed 16 16 default 1 1 gpu 16 used of 0 guaranteed 16 0 16" in page
    assert "1 default default / b" in page
    assert "QuotaExceeded needs 16 GPUs" in page


def test_a_queue_that_names_a_flavor_which_does_not_exist_says_so() -> None:
    page = text(one_page(leader(observed_state(queues=(queue("root"),), flavors=(flavor("a100"),))), "/"))
    assert "spec.resources[0].flavor: flavor 'any' does not exist; there is a100" in page


def test_bars_show_own_borrowed_and_idle_amounts_in_hundredths_of_the_tree() -> None:
    queues = (queue("root", gpus=32), queue("idle", gpus=4, parent="root"), queue("default", gpus=4, parent="root"))
    page = one_page(leader(observed_state(admitted("a"), queues=queues)), "/")
    bars = [re.findall(r'class="(\w+)" x="([\d.]+)" width="([\d.]+)"', one) for one in page.split("<svg")[1:]]
    assert bars == [
        [("own", "0.0", "50.0"), ("idle", "50.0", "50.0")],
        [("own", "0.0", "12.5"), ("borrowed", "12.5", "37.5"), ("borrowable", "50.0", "50.0")],
        [("idle", "0.0", "12.5"), ("borrowable", "12.5", "87.5")],
    ]


def test_only_queues_that_can_have_jobs_link_to_a_list_of_them() -> None:
    page = one_page(leader(two_queues(admitted("a"), named("b"))), "/")
    assert set(re.findall(r'href="/(\w+\?queue=\w+)"', page)) == {"jobs?queue=default", "pending?queue=default"}


def test_the_overview_has_the_first_pending_jobs_by_position_and_the_number_of_the_others() -> None:
    jobs = [named(f"job-{number:02}") for number in range(12)]
    waits = {job.metadata.uid: Wait(job.metadata.uid, "QuotaExceeded", "", 12 - n) for n, job in enumerate(jobs)}
    page = text(one_page(leader(two_queues(*jobs), waits), "/"))
    assert re.findall(r"(\d+) default default / job-(\d+) ", page) == [(str(n), f"{12 - n:02}") for n in range(1, 11)]
    assert "All pending jobs 2 more" in page


def test_of_many_pending_jobs_the_overview_and_the_first_page_have_those_that_are_next() -> None:
    jobs = [named(f"job-{number:03}") for number in range(3 * MAX_ROWS)]
    waits = {job.metadata.uid: Wait(job.metadata.uid, "QuotaExceeded", "", len(jobs) - n) for n, job in enumerate(jobs)}
    state = leader(two_queues(*jobs, named("a-without-position")), waits)
    backwards = [job.metadata.name for job in reversed(jobs)]
    assert re.findall(r"<strong>([\w-]+)</strong>", one_page(state, "/")) == backwards[:10]
    with serving(ReadStateClient(state=state)) as server:
        target, found = "/pending", list[str]()
        while target:
            page = get(server, target).text
            found += re.findall(r"<strong>([\w-]+)</strong>", page)
            following = re.search(r'<a href="([^"]*)" rel="next"', page)
            target = unescape(following[1]) if following else ""
    assert found == [*backwards, "a-without-position"]


def test_a_preempted_job_says_so_on_the_pages_of_jobs_and_of_pending_jobs() -> None:
    evicting = transitions.evict(admitted("a").status, "Preempted", "preempted for <b>default/b</b>", NOW - 9)
    waits = admitted("a").model_copy(update={"status": transitions.requeue(evicting, NOW, Timeouts(), [], 600.0)})
    for target in ("/", "/jobs", "/pending"):
        page = one_page(leader(two_queues(waits), waiting("a", 1)), target)
        assert "Preempted" in text(page)
        assert "preempted for &lt;b&gt;default/b" in page


def test_pending_jobs_are_by_queue_in_the_order_of_their_positions_with_the_holders_of_the_capacity() -> None:
    waits = {**waiting("x", 2), **waiting("y", 1), **waiting("z", None)}
    page = text(one_page(leader(two_queues(admitted("a"), *map(named, "xyz")), waits), "/pending"))
    assert "Capacity is held by default (16 gpu of any, 16 borrowed)." in page
    assert re.findall(r"(\d|–) default / (\w) ", page) == [("1", "y"), ("2", "x"), ("–", "z")]


def test_a_pending_job_has_its_estimated_start_or_that_it_is_not_known() -> None:
    page = one_page(leader(two_queues(*map(named, "xy")), {**waiting("y", 1), **waiting("x", 2)}), "/pending")
    starts = re.findall(r'data-label="Estimated start">(.*?)</td>', page)
    assert [re.findall(r'datetime="([^"]*)"', one) or text(one) for one in starts] == [
        [datetime.fromtimestamp(NOW + 3600, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")],
        "not known",
    ]


def test_the_queue_of_pending_jobs_can_be_chosen() -> None:
    queues = (queue("root"), queue("left", gpus=None, parent="root"), queue("right", gpus=None, parent="root"))
    state = leader(observed_state(named("a", queue="left"), named("b", queue="right"), queues=queues))
    page = text(one_page(state, "/pending?queue=right"))
    assert "default / b" in page
    assert "default / a" not in page


def test_jobs_are_listed_page_by_page_each_job_once() -> None:
    jobs = [named(f"job-{number:04}") for number in range(2 * MAX_ROWS)]
    jobs.append(admitted("job-9999"))
    found: list[str] = []
    with serving(ReadStateClient(state=leader(two_queues(*jobs)))) as server:
        target, sizes = "/jobs", []
        while target:
            page = get(server, target).text
            names = re.findall(r"<strong>(job-\d+)</strong>", page)
            sizes.append(len(names))
            found += names
            following = re.search(r'<a href="([^"]*)" rel="next"', page)
            target = unescape(following[1]) if following else ""
    assert sizes == [MAX_ROWS, MAX_ROWS, 1]
    assert found == [job.metadata.name for job in (jobs[-1], *jobs[:-1])]


def test_jobs_are_selected_by_queue_phase_and_namespace_also_on_their_next_pages() -> None:
    jobs = [in_namespace(named(f"b-{number:04}"), "team-b") for number in range(MAX_ROWS + 1)]
    state = leader(two_queues(*jobs, admitted("runs"), in_namespace(admitted("other"), "team-b")))
    assert re.findall(r"<strong>(\w+)</strong>", one_page(state, "/jobs?phase=Admitted&namespace=team-b")) == ["other"]
    page = one_page(state, "/jobs?phase=Pending&queue=default&namespace=team-b")
    (following,) = re.findall(r'<a href="([^"]*)" rel="next"', page)
    assert re.findall(r"<strong>([\w-]+)</strong>", one_page(state, unescape(following))) == [f"b-{MAX_ROWS:04}"]


@pytest.mark.parametrize("path", ["/jobs", "/pending"])
def test_the_queue_that_a_list_is_limited_to_is_selected_also_if_it_does_not_exist_any_more(path: str) -> None:
    page = one_page(leader(two_queues(named("a"))), f"{path}?queue=deleted")
    assert re.findall(r"<option selected>([^<]*)</option>", page) == ["deleted"]
    page = one_page(leader(two_queues(named("a"))), f"{path}?queue=default")
    assert re.findall(r"<option selected>([^<]*)</option>", page) == ["default"]


def test_a_failed_job_is_listed_with_the_error_that_it_wrote() -> None:
    state = leader(two_queues(failed("a", "step 7\nRuntimeError: no space\n")))
    assert "Error RuntimeError: no space exited with code 1" in text(one_page(state, "/jobs"))


def test_without_preemptions_the_page_says_since_when() -> None:
    page = text(one_page(leader(two_queues()), "/preemptions"))
    assert "since the operator that answers started" in page


def test_nodes_are_grouped_by_rack_with_their_state_and_use() -> None:
    kind = flavor(levels={"block": "block", "rack": "rack", "host": "host"})
    hosts = [
        replace(one, labels={"block": "b0", "rack": f"r{number // 2}", "host": one.name})
        for number, one in enumerate(nodes(4))
    ]
    hosts[2], hosts[3] = replace(hosts[2], ready=False), replace(hosts[3], cordoned=True)
    job = admitted("a")
    runs = pod(job, 0, "n0")
    state = leader(observed_state(job, nodes=tuple(hosts), flavors=(kind,), pods={job.metadata.uid: (runs,)}))
    page = text(one_page(state, "/nodes"))
    assert "Ready 2 Cordoned 1 NotReady 1" in page
    assert (
        "block b0, rack r0 any n0 8/8 gpu n1 8/8 gpu block b0, rack r1 any n2 0/8 gpu NotReady n3 0/8 gpu Cordoned"
        in page
    )
    one = text(one_page(state, "/nodes/n0"))
    assert "State Ready Flavor any block b0 rack r0 host n0" in one
    assert "nvidia.com/gpu 8 8" in one
    assert f"default/{runs.name}" in one


def test_the_use_of_a_node_is_that_of_its_gpus_before_other_devices_and_huge_pages() -> None:
    amounts = {"hugepages-2Mi": "4Gi", "cpu": "64", "devices.kubevirt.io/kvm": "1k", "memory": "1Ti"}
    gpus = {"nvidia.com/gpu": "8"}
    mig = {"nvidia.com/mig-1g.10gb": "7"}

    def shown(allocatable: dict[str, str]) -> str:
        (use,) = (cell.use for group in node_groups([summary(allocatable)]) for cell in group.cells)
        assert use is not None
        return use.resource

    def summary(allocatable: dict[str, str]) -> NodeSummary:
        return NodeSummary(metadata=ItemMeta(name="n"), flavor="any", ready=True, allocatable=allocatable)

    assert shown({**amounts, **gpus}) == "nvidia.com/gpu"
    assert shown({"hugepages-2Mi": "4Gi", "cpu": "64", **mig}) == "nvidia.com/mig-1g.10gb"
    assert shown({"hugepages-2Mi": "4Gi", "cpu": "64", "memory": "1Ti"}) == "cpu"
    assert [use.resource for use in resource_uses(summary({**amounts, **gpus}))] == [
        "nvidia.com/gpu", "devices.kubevirt.io/kvm", "cpu", "hugepages-2Mi", "memory",
    ]  # fmt: skip


def test_a_node_that_does_not_exist_is_not_found() -> None:
    with serving(ReadStateClient(state=leader(two_queues()))) as server:
        found = get(server, "/nodes/none")
    assert (found.status, "node 'none' does not exist" in text(found.text)) == (404, True)


def test_preemptions_are_listed_with_the_newest_first_and_can_be_chosen_by_queue() -> None:
    def one(name: str, at: float, **fields: object) -> Preemption:
        about = ItemMeta(name=name, namespace="default", uid=name)
        return Preemption(metadata=about, reason="Reclaimed", message=f"for b-{name}", at=at, **fields)  # type: ignore[arg-type]

    found = (one("c", NOW - 5, queue="default", resized=True), one("a", NOW - 60, queue="root"))
    state = leader(two_queues(), preemptions=found)
    page = text(one_page(state, "/preemptions"))
    assert re.findall(r"default / (\w) (\w+) (\w+) Reclaimed for b-(\w)", page) == [
        ("c", "default", "shrunk", "c"),
        ("a", "root", "evicted", "a"),
    ]
    assert re.findall(r"default / (\w) ", text(one_page(state, "/preemptions?queue=root"))) == ["a"]


def test_names_and_messages_of_a_cluster_are_text() -> None:
    job = named("b").model_copy(update={"metadata": named("b").metadata.model_copy(update={"namespace": HOSTILE})})
    state = leader(two_queues(job), waiting("b", 1, HOSTILE))
    for target in ("/", "/pending", "/jobs"):
        page = one_page(state, target)
        assert "alert(1)" in page
        assert not re.search(r"<(script(?! src=\"/static)|img)", page), target
        assert not re.search("[\x00-\x08\x1b\x07\u202e]", page), target


@pytest.mark.parametrize(
    ("target", "status", "message"),
    [
        ("/none", 404, "there is no '/none'"),
        ("/jobs/", 404, "there is no '/jobs/'"),
        ("/jobs?phase=Runs", 400, "phase: must be one of Pending, "),
        ("/jobs?color=red", 400, "color: is not a parameter; valid: namespace, queue, phase, sort, after"),
        ("/jobs?queue=a&queue=b", 400, "queue: must be given once; got 'a' and more"),
        ("/jobs?after=x", 400, "continue: must be the value of an earlier page; got 'x'"),
        (f"/jobs?queue={'q' * 5000}", 400, "query: must be at most 4096 characters; got 5006"),
    ],
)
def test_what_is_wrong_with_an_address_is_said(target: str, status: int, message: str) -> None:
    with serving(ReadStateClient(state=leader(two_queues()))) as server:
        found = get(server, target)
    assert (found.status, message in text(found.text)) == (status, True), text(found.text)


def test_a_page_says_why_the_cluster_does_not_answer_and_recovers() -> None:
    client = ReadStateClient(state=leader(two_queues(named("b"))), error=ClusterError("no operator <answers>"))
    now = [0.0]
    with serving(client) as server:
        server.pages.reader._clock = lambda: now[0]
        found = get(server, "/jobs")
        assert (found.status, "no operator <answers>" in text(found.text)) == (502, True)
        client.error = None
        now[0] += 1.0
        assert get(server, "/jobs").status == 200


def test_a_user_who_may_not_list_queues_sees_the_jobs() -> None:
    class NoQueues(ReadStateClient):
        def read(self, url: str) -> object:
            if "/queues" in url:
                raise Refused("queues is forbidden")
            return super().read(url)

    with serving(NoQueues(state=leader(two_queues(named("b")), waiting("b", 1)))) as server:
        for target in ("/", "/pending", "/jobs"):
            found = get(server, target)
            assert found.status == 200
            assert "queues is forbidden" in found.text
            assert "<strong>b</strong>" in found.text


def test_a_standby_is_named_with_what_it_does_not_know() -> None:
    standby = ReadState(two_queues(), None, "operator-2", leading=False)
    page = text(one_page(standby, "/"))
    assert "Read from operator-2" in page
    assert "A standby answered" in page
    assert "A standby" not in text(one_page(leader(two_queues()), "/"))
